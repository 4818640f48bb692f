// Package transfer moves leadership from this node to another, and proves that
// it arrived.
package transfer

import (
	"context"
	"errors"
	"time"

	"github.com/hashicorp/go-hclog"

	"northstar/cluster"
	"northstar/state"
)

// Consensus is what a transfer needs of the node's consensus. Its methods may
// be called from any goroutine.
type Consensus interface {
	Status() cluster.NodeStatus
	Peers() []cluster.PeerStatus
	View() *state.View
	// LeaderChanged is closed when the leader, or its term, changes.
	LeaderChanged() <-chan struct{}
	// TransferTo makes one library transfer to h.To. It returns nil when the target
	// was seen leading. The target got a TimeoutNow only if the error is a
	// TimeoutNowError that says so.
	TransferTo(ctx context.Context, h cluster.TransferNotice) error
}

// TimeoutNowError is an error of TransferTo. TimeoutNowSent reports whether the target was, or may
// have been, sent TimeoutNow.
type TimeoutNowError interface {
	error
	TimeoutNowSent() bool
}

const (
	catchUpEvery   = 10 * time.Millisecond
	resolveTimeout = time.Second // for some leader to be seen after a transfer went wrong
)

// Transfer makes planned transfers of leadership. Safe for concurrent use.
type Transfer struct {
	node        Consensus
	opts        Options
	log         hclog.Logger
	now         func() time.Time
	transferSem chan struct{} // capacity 1: one transfer at a time
}

// Options are what a Transfer may be given beside the consensus; nil functions
// are left out.
type Options struct {
	// Done hears of each transfer that was begun. It must not block.
	Done func(Result)
	// ReclaimLeadership makes this node stand for election, in the term that it knows, after
	// a transfer that has left the cluster without a leader.
	ReclaimLeadership func(ctx context.Context, term uint64, h cluster.TransferNotice) error
	Logger            hclog.Logger
}

// Result is how one transfer that was begun ended, for metrics and events.
type Result struct {
	OldLeader, Target cluster.NodeID
	NewLeader         cluster.NodeID // "" when none was seen
	Term              uint64
	Duration          time.Duration
	Err               error
}

// New makes a Transfer.
func New(node Consensus, opts Options) *Transfer {
	if opts.Done == nil {
		opts.Done = func(Result) {}
	}
	if opts.ReclaimLeadership == nil {
		opts.ReclaimLeadership = func(context.Context, uint64, cluster.TransferNotice) error { return nil }
	}
	return &Transfer{node: node, opts: opts, log: opts.Logger.Named("transfer"), now: time.Now, transferSem: make(chan struct{}, 1)}
}

// Execute moves leadership from this node to h.To, "" for the best one, and returns
// when it was seen leading. It waits, within ctx, until the target is caught up.
// Errors are:
//
//   - CodeNoLeader: this node does not lead.
//   - CodeBusy: another transfer is in progress. It is not to be repeated by
//     itself: the one that is in progress may do what is wanted, or undo it.
//   - CodeBadRequest with status 404: the target is no member.
//   - CodeTransferFailed with status 409: refused, or failed before the target
//     was told to stand; this node goes on leading.
//   - CodeTransferFailed with status 504: failed after that; it names who leads.
func (t *Transfer) Execute(ctx context.Context, h cluster.TransferNotice) (cluster.TransferOutcome, error) {
	select {
	case t.transferSem <- struct{}{}:
		defer func() { <-t.transferSem }()
	default:
		return cluster.TransferOutcome{}, inProgress("another transfer of leadership is in progress")
	}
	start := t.now()
	st := t.node.Status()
	if st.Role != cluster.Leader {
		return cluster.TransferOutcome{}, cluster.Errorf(cluster.CodeNoLeader, "node %s does not lead", st.NodeID)
	}
	if h.To == "" {
		best, err := t.Best()
		if err != nil {
			return cluster.TransferOutcome{}, err
		}
		h.To = best
	}
	r := Result{OldLeader: st.NodeID, Target: h.To}
	r.Err = t.run(ctx, st.Term, h)
	after := t.node.Status()
	r.NewLeader, r.Term, r.Duration = after.LeaderID, after.Term, t.now().Sub(start)
	t.log.Info("transfer of leadership", "target", h.To, "leader", r.NewLeader, "term", r.Term, "took", r.Duration, "error", r.Err)
	t.opts.Done(r)
	if r.Err != nil {
		return cluster.TransferOutcome{}, r.Err
	}
	return cluster.TransferOutcome{OldLeader: r.OldLeader, NewLeader: r.NewLeader, Term: r.Term, Duration: r.Duration}, nil
}

func inProgress(format string, args ...any) *cluster.Error {
	err := cluster.Errorf(cluster.CodeBusy, format, args...)
	err.NoRetry = true
	return err
}

func (t *Transfer) run(ctx context.Context, term uint64, h cluster.TransferNotice) error {
	if err := t.awaitCaughtUp(ctx, term, h.To); err != nil {
		return err
	}
	err := t.node.TransferTo(ctx, h)
	if err == nil {
		return nil
	}
	var failed TimeoutNowError
	if errors.As(err, &failed) && failed.TimeoutNowSent() {
		return t.resolveFailed(ctx, term, h, err)
	}
	var known *cluster.Error
	if errors.As(err, &known) {
		if known.Code == cluster.CodeBusy {
			return inProgress("%s", known.Detail)
		}
		return known
	}
	return cluster.Errorf(cluster.CodeTransferFailed, "node %s goes on leading: %w", t.node.Status().NodeID, err)
}

// awaitCaughtUp waits until nothing but its lag speaks against the target, and then
// not even that.
func (t *Transfer) awaitCaughtUp(ctx context.Context, term uint64, target cluster.NodeID) error {
	tick := time.NewTicker(catchUpEvery)
	defer tick.Stop()
	for {
		changed := t.node.LeaderChanged()
		st := t.node.Status()
		if st.Role != cluster.Leader || st.Term != term {
			return cluster.Errorf(cluster.CodeNoLeader, "node %s leads no more", st.NodeID)
		}
		c := evaluateTarget(target, st, t.node.Peers(), t.node.View())
		if c.err != nil {
			return c.err
		}
		if c.lag <= caughtUpLag {
			return nil
		}
		select {
		case <-tick.C:
		case <-changed:
		case <-ctx.Done():
			return cluster.Errorf(cluster.CodeTransferFailed, "node %s was still %d entries behind at the deadline; node %s goes on leading", target, c.lag, st.NodeID)
		}
	}
}

// resolveFailed waits a moment for whoever leads after a transfer that went wrong, and
// sees to it that somebody does. It is not cut short by the caller's deadline:
// that is over, as a rule, and leadership must not stay lost for that.
func (t *Transfer) resolveFailed(ctx context.Context, term uint64, h cluster.TransferNotice, cause error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), resolveTimeout)
	defer cancel()
	returned := false
	for {
		changed := t.node.LeaderChanged()
		st := t.node.Status()
		switch {
		case st.LeaderID == h.To && st.Term > term:
			return nil // late, but it arrived
		case st.LeaderID != "" && st.Term > term:
			return failedAfterTimeoutNow(st.LeaderID, "node %s was told to stand, but node %s leads (term %d): %w", h.To, st.LeaderID, st.Term, cause)
		case st.LeaderID == "" && !returned:
			// The target has had its time. Raft's timers would take theirs, and
			// while failover is paused nobody else may stand.
			returned = true
			if err := t.opts.ReclaimLeadership(ctx, st.Term, h); err != nil {
				t.log.Warn("leadership did not arrive, and this node cannot stand again", "target", h.To, "error", err)
			}
			continue
		}
		select {
		case <-changed:
		case <-ctx.Done():
			if st.LeaderID != "" {
				return failedAfterTimeoutNow(st.LeaderID, "node %s was told to stand, but node %s goes on leading (term %d): %w", h.To, st.LeaderID, st.Term, cause)
			}
			return failedAfterTimeoutNow("", "node %s was told to stand, and no leader is known: %w", h.To, cause)
		}
	}
}

// failedAfterTimeoutNow is a transfer that went wrong once the target was told to stand;
// leader is who leads then, "" when nobody is known to.
func failedAfterTimeoutNow(leader cluster.NodeID, format string, args ...any) error {
	err := cluster.Errorf(cluster.CodeTransferFailed, format, args...)
	err.Status, err.Leader = 504, leader
	return err
}
