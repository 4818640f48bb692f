package consensus

import (
	"context"
	"sync"
	"time"
)

// lease is the clock-bounded right to serve reads without a round. It starts at the send time that a majority of voters
// has acknowledged: each of them votes for no other node for timeout-min after it received that append. The transport
// sees to that (transport/leadercontact.go), unless an order or a transfer asks for the vote.
//
// Send times are on Go's monotonic clock, which stops while the machine is suspended. The lease clock does not stop.
// When the two drift apart, earlier sends no longer count.
type lease struct {
	length time.Duration // timeout-min × (1 − drift)
	clock  func() time.Duration
	now    func() time.Time

	mu        sync.Mutex
	started   time.Duration // lease clock at process start
	offset    time.Duration // lease clock minus monotonic clock, when last read
	epoch     time.Time
	notBefore time.Time // only sends after it count
	offTerm   uint64    // there is no lease in this term
}

// suspendSlack is how far the two clocks may differ between two readings without a suspension: they are not read in one
// step.
const suspendSlack = 5 * time.Millisecond

func newLease(length time.Duration, clock func() time.Duration, now func() time.Time) *lease {
	l := &lease{length: length, clock: clock, now: now, epoch: now(), started: clock()}
	l.offset = l.started
	return l
}

// leaseLeft returns how long the lease lasts from now on; ≤ 0: there is none.
func leaseLeft(now, quorumSent, floor time.Time, length time.Duration) time.Duration {
	if quorumSent.IsZero() || !quorumSent.After(floor) {
		return 0
	}
	// With a quorum of one, or a clock that was set, the lease is never longer than its length.
	return min(quorumSent.Add(length).Sub(now), length)
}

// left returns the lease's remaining time in term for the quorum's send time.
func (l *lease) left(term uint64, quorumSent time.Time) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	offset := l.clock() - now.Sub(l.epoch)
	if offset-l.offset > suspendSlack {
		l.notBefore = now
	}
	l.offset = offset
	if term == l.offTerm {
		return 0
	}
	return max(0, leaseLeft(now, quorumSent, l.notBefore, l.length))
}

// revoke ends the lease. Sends after this moment start it again.
func (l *lease) revoke() {
	if l == nil {
		return
	}
	l.mu.Lock()
	l.notBefore = l.now()
	l.mu.Unlock()
}

// revokeTerm ends the lease for the rest of a term: a peer gets TimeoutNow, and voters then grant a vote although they
// know a leader. restore undoes this call, and no earlier one: TimeoutNow was certainly not delivered.
func (l *lease) revokeTerm(term uint64) (restore func()) {
	if l == nil {
		return func() {}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	before := l.offTerm
	l.offTerm = term
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.offTerm = before
	}
}

// runningFor reports whether the process has run for d of the lease clock.
func (l *lease) runningFor(d time.Duration) bool { return l.clock()-l.started >= d }

// LeaseReadBarrier is ReadBarrier without a round while the lease is valid. With election.lease off it is ReadBarrier.
func (n *Node) LeaseReadBarrier(ctx context.Context) error {
	if n.lease == nil {
		return n.ReadBarrier(ctx)
	}
	inst := n.inst.Load()
	if inst == nil {
		return n.notLeading()
	}
	commit := inst.CommitIndex()
	if n.leaseRemaining() <= 0 || n.replacing.Load() != 0 {
		return n.ReadBarrier(ctx)
	}
	if err := n.fsm.Wait(ctx, commit); err != nil {
		return notLeader("the leader did not apply its log in time: %w", err)
	}
	return nil
}

// leaseRemaining returns the remaining time of the lease, 0 without one.
func (n *Node) leaseRemaining() time.Duration {
	inst := n.inst.Load()
	if n.lease == nil || inst == nil {
		return 0
	}
	term := n.readyTerm.Load()
	if term == 0 || !inst.Leads(term) {
		return 0
	}
	return n.lease.left(term, n.deps.Acks.QuorumTime(term, n.cfg.Self.NodeID, voterIDs(inst.Servers())))
}

// MayVote reports whether this node may grant votes. The transport calls it before each vote that it receives. With the
// lease on it is false for twice timeout-min after the start of the process: the node may have acknowledged an append,
// and with it a lease, that it does not remember. It is also false in a superseded generation.
func (n *Node) MayVote() bool {
	return n.mayTakePartInElections() && (n.lease == nil || n.lease.runningFor(2*n.cfg.TimeoutMin))
}
