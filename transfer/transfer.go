// Package transfer moves leadership from this node to another and verifies the result.
package transfer

import (
	"context"
	"errors"
	"time"

	"github.com/hashicorp/go-hclog"

	"northstar/cluster"
	"northstar/state"
)

// Consensus is what a transfer needs of the consensus node. Its methods may be called from any goroutine.
type Consensus interface {
	Status() cluster.NodeStatus
	Peers() []cluster.PeerStatus
	View() *state.View
	// LeaderChanged returns a channel that is closed when the leader or its term changes.
	LeaderChanged() <-chan struct{}
	// TransferTo makes one library transfer to h.To. It returns nil when the target was seen leading. The target got a
	// TimeoutNow only if the error is a TimeoutNowError that says so.
	TransferTo(ctx context.Context, h cluster.TransferNotice) error
}

// TimeoutNowError is an error of TransferTo. It reports whether the target may have been sent TimeoutNow.
type TimeoutNowError interface {
	error
	TimeoutNowSent() bool
}

const (
	catchUpEvery   = 10 * time.Millisecond
	resolveTimeout = time.Second // for a leader to be known after a failed transfer
)

// Transfer executes planned transfers of leadership. Safe for concurrent use.
type Transfer struct {
	node        Consensus
	opts        Options
	log         hclog.Logger
	transferSem chan struct{} // capacity 1: one transfer at a time to a target that has caught up
}

// Options holds the callbacks of a Transfer, and its logger.
type Options struct {
	// Done is called at the end of each transfer that was started, by two of them concurrently too. It must not block.
	Done func(Result)
	// ReclaimLeadership starts an election of this node after a transfer that left the cluster without a leader.
	ReclaimLeadership func(ctx context.Context, term uint64, h cluster.TransferNotice) error
	Zones             []string // failover.zones: preferred for the leader, in this order
	Logger            hclog.Logger
}

// Result is the result of one transfer, for metrics and events.
type Result struct {
	cluster.TransferOutcome // NewLeader is "" if none was seen
	Target                  cluster.NodeID
	Err                     error
}

// New returns a Transfer.
func New(node Consensus, opts Options) *Transfer {
	return &Transfer{
		node: node, opts: opts, log: opts.Logger.Named("transfer"),
		transferSem: make(chan struct{}, 1),
	}
}

// Execute moves leadership from this node to h.To, "" for the best target, and returns when the target was seen
// leading. It waits, within ctx, until the target has caught up. Errors are:
//
//   - CodeNoLeader: this node does not lead.
//   - CodeBusy: another transfer, or a change of the membership, is in progress. Callers must not simply retry:
//     that transfer may have the same effect, or the opposite one. Nothing was started, and Done is not called.
//   - CodeBadRequest with status 404: the target is not a member.
//   - CodeTransferFailed with status 409: refused, or failed before the target got TimeoutNow; this node
//     continues to lead.
//   - CodeTransferFailed with status 504: failed after that; it names the leader.
func (t *Transfer) Execute(ctx context.Context, h cluster.TransferNotice) (cluster.TransferOutcome, error) {
	start := time.Now()
	st := t.node.Status()
	if st.Role != cluster.Leader {
		return cluster.TransferOutcome{}, cluster.Errorf(cluster.CodeNoLeader, "node %s does not lead", st.NodeID)
	}
	if h.To == "" {
		if _, err := t.Best(); err != nil {
			return cluster.TransferOutcome{}, err
		}
	}
	var r Result
	r.Target, r.Err = t.run(ctx, st.Term, h)
	if cluster.IsCode(r.Err, cluster.CodeBusy) {
		return cluster.TransferOutcome{}, r.Err // nothing was started: a change of the membership holds the lock
	}
	after := t.node.Status()
	r.TransferOutcome = cluster.TransferOutcome{
		OldLeader: st.NodeID, NewLeader: after.LeaderID, Term: after.Term, Duration: time.Since(start),
	}
	t.log.Info("transfer of leadership", "target", h.To, "leader", r.NewLeader, "term", r.Term, "took", r.Duration,
		"error", r.Err)
	t.opts.Done(r)
	if r.Err != nil {
		return cluster.TransferOutcome{}, r.Err
	}
	return r.TransferOutcome, nil
}

func inProgress(format string, args ...any) *cluster.Error {
	err := cluster.Errorf(cluster.CodeBusy, format, args...)
	err.NoRetry = true
	return err
}

// run waits for the target, and transfers leadership to it. Others may transfer leadership during that wait, which may
// last as long as an operator likes: a leader that stops, or that is not eligible any more, must not wait for it.
func (t *Transfer) run(ctx context.Context, term uint64, h cluster.TransferNotice) (to cluster.NodeID, err error) {
	if h.To, err = t.awaitCaughtUp(ctx, term, h.To); err != nil {
		return h.To, err
	}
	select {
	case t.transferSem <- struct{}{}:
		defer func() { <-t.transferSem }()
	default:
		return h.To, inProgress("another transfer of leadership is in progress")
	}
	return h.To, t.transfer(ctx, term, h)
}

// transfer transfers leadership to a target that has caught up.
func (t *Transfer) transfer(ctx context.Context, term uint64, h cluster.TransferNotice) error {
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
	return cluster.Errorf(cluster.CodeTransferFailed, "node %s continues to lead: %w", t.node.Status().NodeID, err)
}

// awaitCaughtUp waits until the target is acceptable and has caught up, and returns it. Without a target it is the one
// that is the best at that moment.
func (t *Transfer) awaitCaughtUp(ctx context.Context, term uint64, target cluster.NodeID) (cluster.NodeID, error) {
	tick := time.NewTicker(catchUpEvery)
	defer tick.Stop()
	for {
		changed := t.node.LeaderChanged()
		st := t.node.Status()
		if st.Role != cluster.Leader || st.Term != term {
			return target, cluster.Errorf(cluster.CodeNoLeader, "node %s no longer leads", st.NodeID)
		}
		to := target
		if to == "" {
			best, err := t.Best()
			if err != nil {
				return "", err
			}
			to = best
		}
		c, refusal := evaluateTarget(to, st, t.node.Peers(), t.node.View())
		if refusal != nil {
			return to, refusal
		}
		if c.LagEntries <= caughtUpLag {
			return to, nil
		}
		select {
		case <-tick.C:
		case <-changed:
		case <-ctx.Done():
			return to, cluster.Errorf(cluster.CodeTransferFailed,
				"node %s was still %d entries behind at the deadline; node %s continues to lead", to, c.LagEntries,
				st.NodeID)
		}
	}
}

// resolveFailed waits a moment for the next leader after a failed transfer, and starts an election if there is
// none. It ignores the caller's deadline, which has usually passed: the cluster must not stay without a leader.
func (t *Transfer) resolveFailed(ctx context.Context, term uint64, h cluster.TransferNotice, cause error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), resolveTimeout)
	defer cancel()
	returned := false
	for {
		changed := t.node.LeaderChanged()
		st := t.node.Status()
		switch {
		case st.LeaderID == h.To && st.Term > term:
			return nil // late, but successful
		case st.LeaderID != "" && st.Term > term:
			return failedAfterTimeoutNow(st.LeaderID, "node %s got TimeoutNow, but node %s leads (term %d): %w", h.To,
				st.LeaderID, st.Term, cause)
		case st.LeaderID == "" && !returned:
			// The target had its time. While failover is paused, no other node may start an election.
			returned = true
			if err := t.opts.ReclaimLeadership(ctx, st.Term, h); err != nil {
				t.log.Warn("transfer failed and this node cannot start an election", "target", h.To, "error", err)
			}
			continue
		}
		select {
		case <-changed:
		case <-ctx.Done():
			if st.LeaderID != "" {
				return failedAfterTimeoutNow(st.LeaderID,
					"node %s got TimeoutNow, but node %s continues to lead (term %d): %w",
					h.To, st.LeaderID, st.Term, cause)
			}
			return failedAfterTimeoutNow("", "node %s got TimeoutNow, and no leader is known: %w", h.To, cause)
		}
	}
}

// failedAfterTimeoutNow returns the error of a transfer that failed after TimeoutNow; leader may be "".
func failedAfterTimeoutNow(leader cluster.NodeID, format string, args ...any) error {
	err := cluster.Errorf(cluster.CodeTransferFailed, format, args...)
	err.Status, err.Leader = 504, leader
	return err
}
