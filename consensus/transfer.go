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
	Reason         string
	timeoutNowSent bool
}

// Error gives the reason.
func (e *TransferError) Error() string { return e.Reason }

// TimeoutNowSent says that the target was, or may have been, told to stand: some election
// follows. Otherwise this node goes on leading.
func (e *TransferError) TimeoutNowSent() bool { return e.timeoutNowSent }

// UndeliveredError is an error of the transport's TimeoutNow. Undelivered reports whether the message
// certainly did not reach the target's raft.Raft.
type UndeliveredError interface {
	error
	Undelivered() bool
}

// transferAttempt is one library transfer. The library's future says only that
// leadership was lost, so it is not looked at: what counts is whether
// TimeoutNow was sent, and who leads then.
type transferAttempt struct {
	target cluster.NodeID
	term   uint64

	mu                  sync.Mutex
	revoked             bool // must not be told any more
	timeoutNowAttempted bool // the library has come to the point of telling
	timeoutNowSent      bool // it was told, or may have been
	timeoutNowAccepted  bool // it has answered that it will stand
	failed              error
	updated             chan struct{} // capacity 1: one of the above has changed
}

// transferStage is how far an attempt has come.
type transferStage int

const (
	stageCatchUp        transferStage = iota // the library brings the target up to date
	stageTimeoutNow                          // TimeoutNow is on its way
	stageTargetElecting                      // the target has taken it
	stageLeadershipLost                      // this node leads no more
	stageFailed                              // the target could not be told, or was not heard to take it
)

// stage is how far the attempt has come, and why it has failed.
func (a *transferAttempt) stage(leads bool) (transferStage, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case !leads:
		return stageLeadershipLost, nil
	case a.failed != nil:
		return stageFailed, a.failed
	case a.timeoutNowAccepted:
		return stageTargetElecting, nil
	case a.timeoutNowSent:
		return stageTimeoutNow, nil
	}
	return stageCatchUp, nil
}

// allowTimeoutNow asks whether the target may still be told to stand.
func (a *transferAttempt) allowTimeoutNow() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.timeoutNowAttempted = true
	if a.revoked {
		return false
	}
	a.timeoutNowSent = true
	notify(a.updated)
	return true
}

// applyResult takes the end of the TimeoutNow message.
func (a *transferAttempt) answer(err error) {
	var undelivered UndeliveredError
	a.mu.Lock()
	defer a.mu.Unlock()
	a.timeoutNowAccepted, a.failed = err == nil, err
	if errors.As(err, &undelivered) && undelivered.Undelivered() {
		a.timeoutNowSent = false
	}
	notify(a.updated)
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
	return a.revoked && !a.timeoutNowAttempted
}

// revoke makes sure that the target is not told from now on; it says whether it
// was before.
func (a *transferAttempt) revoke() (told bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.revoked = true
	return a.timeoutNowSent
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
	case n.changeSem <- struct{}{}:
		defer func() { <-n.changeSem }()
	default:
		return cluster.Errorf(cluster.CodeBusy, "another change of membership or leadership is in progress")
	}
	inst := n.inst.Load()
	if inst == nil || !n.leads() {
		return n.notLeading()
	}
	return n.transferLocked(ctx, inst, h)
}

// transferLocked is TransferTo for a caller that holds the turn.
func (n *Node) transferLocked(ctx context.Context, inst *raftInstance, h cluster.TransferNotice) error {
	server, ok := cluster.FindServer(inst.servers(), h.To)
	if !ok {
		return notFound(h.To)
	}
	if server.Suffrage != cluster.Voter || h.To == n.cfg.Self.NodeID {
		return badField("target", h.To, "must be a voter other than the leader")
	}
	term := inst.raft.CurrentTerm()
	if n.electedOverLiveLeader(term) {
		return &TransferError{Reason: "this node waits until the lease of the leader before has run out"}
	}
	if why := n.transferRisk(inst, h.To, term); why != "" {
		return &TransferError{Reason: why}
	}
	if n.deps.Announce != nil {
		defer n.deps.Announce(ctx, h)()
	}
	release, err := n.pauseWrites(ctx, term)
	defer release()
	if err != nil {
		return &TransferError{Reason: "the writes in flight did not end in time: " + err.Error()}
	}
	n.lease.revokeTerm(term)
	attempt := &transferAttempt{target: h.To, term: term, updated: make(chan struct{}, 1)}
	inst.transferMu.Lock()
	inst.transfers[h.To] = attempt
	inst.transferMu.Unlock()
	inst.trans.transfer.Store(attempt)
	// The future is dropped: its nil means only that leadership was lost, and
	// after a shutdown it is never answered.
	_ = inst.raft.LeadershipTransferToServer(raft.ServerID(h.To), raft.ServerAddress(server.Address))
	err = n.awaitTransfer(ctx, inst, attempt, term)
	if err != nil && inst.leads(term) {
		n.jobs.Go(func() { n.probeTransferFlag(inst, term) })
	}
	return err
}

// pauseWrites closes the gate and waits for the batch in flight: told to stand
// before that is committed, the target would make its outcome unknown. release
// opens the gate again where it was open and this reign goes on.
func (n *Node) pauseWrites(ctx context.Context, term uint64) (release func(), err error) {
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

// probeTransferFlag asks the library, after a transfer that did not arrive, whether it
// takes entries again. Should it never, the watchdog rebuilds it, also when
// nobody writes.
func (n *Node) probeTransferFlag(inst *raftInstance, term uint64) {
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
func (inst *raftInstance) stuckTransfer(target cluster.NodeID, term uint64) string {
	inst.transferMu.Lock()
	defer inst.transferMu.Unlock()
	if !inst.transfers[target].stuckIn(term) {
		return ""
	}
	return "a transfer to node " + string(target) + " was given up in this term before it was told: not again in this term"
}

// transferRisk says why a transfer to target could get stuck in the library; ""
// when it should not. It waits for a peer that lags, and does not always stop.
func (n *Node) transferRisk(inst *raftInstance, target cluster.NodeID, term uint64) string {
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

// stageTimeout is how long a stage of an attempt may last. The library gives the
// target timeout-min to catch up, and the message that tells it has timeout-max.
// Standing takes the target a few milliseconds.
func (n *Node) stageTimeout(stage transferStage) time.Duration {
	switch stage {
	case stageCatchUp:
		return n.cfg.TimeoutMax
	case stageTimeoutNow:
		return n.cfg.TimeoutMax + n.cfg.TimeoutMin
	}
	return n.cfg.TimeoutMin
}

// awaitTransfer waits for the end of an attempt.
func (n *Node) awaitTransfer(ctx context.Context, inst *raftInstance, attempt *transferAttempt, term uint64) error {
	fail := func(why string) error { return &TransferError{timeoutNowSent: attempt.revoke(), Reason: why} }
	reached := stageCatchUp
	limit := time.NewTimer(n.stageTimeout(reached))
	defer limit.Stop()
	silent := time.NewTimer(n.cfg.TimeoutMin)
	defer silent.Stop()
	for {
		changed := n.LeaderChanged()
		s := n.currentSoftState()
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
			limit.Reset(n.stageTimeout(stage))
		}
		select {
		case <-changed:
		case <-attempt.updated:
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
