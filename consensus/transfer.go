package consensus

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"northstar/cluster"
)

// transferLag is how many entries a target may be behind when a transfer
// begins: one message brings it up to date, as no writes are proposed meanwhile.
const transferLag = maxAppendEntries

// TransferError is a transfer that did not arrive.
type TransferError struct {
	Reason string
	told   bool
}

// Error gives the reason.
func (e *TransferError) Error() string { return e.Reason }

// Told says that the target was, or may have been, told to stand: some election
// follows. Otherwise this node goes on leading.
func (e *TransferError) Told() bool { return e.told }

// transferAttempt is one library transfer. The library's future says only that
// leadership was lost, so it is not looked at: what counts is whether
// TimeoutNow was sent, and who leads then.
type transferAttempt struct {
	target cluster.NodeID
	term   uint64

	mu       sync.Mutex
	revoked  bool // must not be told any more
	reached  bool // the library has come to the point of telling
	told     bool // it was told, or may have been
	answered bool // it has answered that it will stand
	failed   error
	news     chan struct{} // capacity 1: one of the above has changed
}

// transferStage is how far an attempt has come.
type transferStage int

const (
	stageCatchUp  transferStage = iota // the library brings the target up to date
	stageTelling                       // TimeoutNow is on its way
	stageStanding                      // the target has taken it
	stageLost                          // this node leads no more
	stageFailed                        // the target could not be told, or was not heard to take it
)

// stage is how far the attempt has come, and why it has failed.
func (a *transferAttempt) stage(leads bool) (transferStage, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case !leads:
		return stageLost, nil
	case a.failed != nil:
		return stageFailed, a.failed
	case a.answered:
		return stageStanding, nil
	case a.told:
		return stageTelling, nil
	}
	return stageCatchUp, nil
}

// tell asks whether the target may still be told to stand.
func (a *transferAttempt) tell() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.reached = true
	if a.revoked {
		return false
	}
	a.told = true
	notify(a.news)
	return true
}

// answer takes the end of the TimeoutNow message.
func (a *transferAttempt) answer(err error) {
	var not interface{ NotTold() bool }
	a.mu.Lock()
	defer a.mu.Unlock()
	a.answered, a.failed = err == nil, err
	if errors.As(err, &not) && not.NotTold() {
		a.told = false
	}
	notify(a.news)
}

// stuckIn says whether this attempt was given up in term, and may still be inside
// the library. A second one for the same peer would then hang there, and its flag
// with it.
func (a *transferAttempt) stuckIn(term uint64) bool {
	if a == nil || a.term != term {
		return false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.revoked && !a.reached
}

// giveUp makes sure that the target is not told from now on; it says whether it
// was before.
func (a *transferAttempt) giveUp() (told bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.revoked = true
	return a.told
}

// TransferTo makes one library transfer of leadership to h.To, which must be a
// voter other than this node, in contact and nearly caught up; whether it is fit
// to lead is the caller's to check. It is told why first. Writes wait from when
// those in flight are done until the target leads, or the attempt has ended. It
// returns nil when this node has seen the target lead. Errors: CodeNoLeader,
// CodeBusy while the membership is changed or another transfer runs,
// CodeBadRequest, or a *TransferError.
func (n *Node) TransferTo(ctx context.Context, h cluster.TransferNotice) error {
	select {
	case n.changing <- struct{}{}:
		defer func() { <-n.changing }()
	default:
		return cluster.Errorf(cluster.CodeBusy, "another change of membership or leadership is in progress")
	}
	inst := n.inst.Load()
	if inst == nil || !n.leads() {
		return n.notLeading()
	}
	return n.transferHolding(ctx, inst, h)
}

// transferHolding is TransferTo for a caller that holds the turn.
func (n *Node) transferHolding(ctx context.Context, inst *instance, h cluster.TransferNotice) error {
	server, ok := cluster.FindServer(inst.servers(), h.To)
	if !ok {
		return notFound(h.To)
	}
	if server.Suffrage != cluster.Voter || h.To == n.cfg.Self.NodeID {
		return badField("target", h.To, "must be a voter other than the leader")
	}
	term := inst.raft.CurrentTerm()
	if n.passesOver(term) {
		return &TransferError{Reason: "this node waits until the lease of the leader before has run out"}
	}
	if why := n.transferRisk(inst, h.To, term); why != "" {
		return &TransferError{Reason: why}
	}
	if n.deps.Announce != nil {
		defer n.deps.Announce(ctx, h)()
	}
	release, err := n.holdWrites(ctx, term)
	defer release()
	if err != nil {
		return &TransferError{Reason: "the writes in flight did not end in time: " + err.Error()}
	}
	n.lease.revokeTerm(term)
	attempt := &transferAttempt{target: h.To, term: term, news: make(chan struct{}, 1)}
	inst.transferMu.Lock()
	inst.transfers[h.To] = attempt
	inst.transferMu.Unlock()
	inst.trans.transfer.Store(attempt)
	// The future is dropped: its nil means only that leadership was lost, and
	// after a shutdown it is never answered.
	_ = inst.raft.LeadershipTransferToServer(raft.ServerID(h.To), raft.ServerAddress(server.Address))
	err = n.followTransfer(ctx, inst, attempt, term)
	if err != nil && inst.leads(term) {
		n.jobs.Go(func() { n.probeFlag(inst, term) })
	}
	return err
}

// holdWrites closes the gate and waits for the batch in flight: told to stand
// before that is committed, the target would make its outcome unknown. release
// opens the gate again where it was open and this reign goes on.
func (n *Node) holdWrites(ctx context.Context, term uint64) (release func(), err error) {
	if term == 0 || n.readyTerm.Load() != term {
		return func() {}, nil // nothing of users is in flight
	}
	n.queue.setGate(false)
	release = func() {
		if n.readyTerm.Load() == term {
			n.queue.setGate(true)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, n.cfg.TimeoutMax)
	defer cancel()
	return release, n.queue.idle(ctx)
}

// probeFlag asks the library, after a transfer that did not arrive, whether it
// takes entries again. Should it never, the watchdog rebuilds it, also when
// nobody writes.
func (n *Node) probeFlag(inst *instance, term uint64) {
	tick := time.NewTicker(n.cfg.TimeoutMin)
	defer tick.Stop()
	for inst.leads(term) {
		err := inst.raft.Barrier(2 * n.cfg.TimeoutMax).Error()
		inst.watchdog.note(n.now(), err)
		if !errors.Is(err, raft.ErrLeadershipTransferInProgress) {
			return
		}
		<-tick.C
	}
}

// stuckTransfer says why no transfer to target may begin in term; "" when none is
// stuck. Another peer may be the target.
func (inst *instance) stuckTransfer(target cluster.NodeID, term uint64) string {
	inst.transferMu.Lock()
	defer inst.transferMu.Unlock()
	if !inst.transfers[target].stuckIn(term) {
		return ""
	}
	return "a transfer to node " + string(target) + " was given up in this term before it was told: not again in this term"
}

// transferRisk says why a transfer to target could get stuck in the library; ""
// when it should not. It waits for a peer that lags, and does not always stop.
func (n *Node) transferRisk(inst *instance, target cluster.NodeID, term uint64) string {
	if why := inst.stuckTransfer(target, term); why != "" {
		return why
	}
	if !n.inContact(target) {
		return "node " + string(target) + " is not in contact"
	}
	ack := n.deps.PeerAck(target)
	if last := inst.raft.LastIndex(); ack.Term != term || last-min(last, ack.MatchIndex) > transferLag {
		return "node " + string(target) + " is not caught up"
	}
	return ""
}

// patience is how long a stage of an attempt may last. The library gives the
// target timeout-min to catch up, and the message that tells it has timeout-max.
// Standing takes the target a few milliseconds.
func (n *Node) patience(stage transferStage) time.Duration {
	switch stage {
	case stageCatchUp:
		return n.cfg.TimeoutMax
	case stageTelling:
		return n.cfg.TimeoutMax + n.cfg.TimeoutMin
	}
	return n.cfg.TimeoutMin
}

// followTransfer waits for the end of an attempt.
func (n *Node) followTransfer(ctx context.Context, inst *instance, attempt *transferAttempt, term uint64) error {
	fail := func(why string) error { return &TransferError{told: attempt.giveUp(), Reason: why} }
	reached := stageCatchUp
	limit := time.NewTimer(n.patience(reached))
	defer limit.Stop()
	silent := time.NewTimer(n.cfg.TimeoutMin)
	defer silent.Stop()
	for {
		changed := n.LeaderChanged()
		s := n.sight()
		switch {
		case s.leader == attempt.target && s.term > term:
			return nil
		case s.leader != "" && s.term > term:
			return fail("node " + string(s.leader) + " was elected instead")
		}
		stage, err := attempt.stage(inst.leads(term))
		if stage == stageFailed {
			return fail("the target could not be told to stand: " + err.Error())
		}
		if stage != reached {
			reached = stage
			limit.Reset(n.patience(stage))
		}
		select {
		case <-changed:
		case <-attempt.news:
		case <-silent.C: // writes wait; one that lags and answers gets longer
			left := n.cfg.TimeoutMin - n.now().Sub(n.deps.PeerAck(attempt.target).LastContact)
			switch {
			case left > 0:
				silent.Reset(left)
			case reached == stageCatchUp:
				return fail("the target does not answer")
			}
		case <-limit.C:
			if reached == stageCatchUp {
				return fail("the target could not be brought up to date in time")
			}
			return fail("the target was not seen leading in time")
		case <-ctx.Done():
			return fail("the deadline passed: " + ctx.Err().Error())
		}
	}
}
