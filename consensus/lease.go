package consensus

import (
	"context"
	"sync"
	"time"
)

// lease is the clock-bounded right to answer reads without a round. It runs from
// the send time that a majority of voters has acknowledged: each of them takes
// no part in an election for timeout-min after it received that append.
//
// Send times are on Go's monotonic clock, which stands still while the machine
// is suspended. The lease clock does not: when the two drift apart, sends from
// before count no more.
type lease struct {
	length time.Duration // timeout-min × (1 − drift)
	clock  func() time.Duration
	now    func() time.Time

	mu        sync.Mutex
	started   time.Duration // lease clock at process start
	offset    time.Duration // lease clock minus monotonic clock, when last looked at
	epoch     time.Time
	notBefore time.Time // only sends after it count
	offTerm   uint64    // no lease in this term any more
}

// suspendSlack is what the two clocks may differ by between two looks without a
// suspension: reading them is not one step.
const suspendSlack = 5 * time.Millisecond

func newLease(length time.Duration, clock func() time.Duration, now func() time.Time) *lease {
	l := &lease{length: length, clock: clock, now: now, epoch: now(), started: clock()}
	l.offset = l.started
	return l
}

// leaseLeft is how long the lease lasts from now on; ≤ 0: there is none.
func leaseLeft(now, quorumSent, floor time.Time, length time.Duration) time.Duration {
	if quorumSent.IsZero() || !quorumSent.After(floor) {
		return 0
	}
	// With a quorum of one, or a clock that was set, never more than its length.
	return min(quorumSent.Add(length).Sub(now), length)
}

// left is the lease's remaining time in term, given the quorum's send time.
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

// revoke ends the lease; it comes back with sends after this moment.
func (l *lease) revoke() {
	if l == nil {
		return
	}
	l.mu.Lock()
	l.notBefore = l.now()
	l.mu.Unlock()
}

// revokeTerm ends the lease for the rest of a term: a peer was told to stand,
// and voters grant that although they know a leader.
func (l *lease) revokeTerm(term uint64) {
	if l == nil {
		return
	}
	l.mu.Lock()
	l.offTerm = term
	l.mu.Unlock()
}

// runningFor says whether the process has run for d of the lease clock.
func (l *lease) runningFor(d time.Duration) bool { return l.clock()-l.started >= d }

// LeaseReadBarrier is Barrier without a round while the lease is valid. With
// election.lease off it is Barrier.
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

// leaseRemaining is 0 without a lease.
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

// MayVote says whether this node may grant votes. With the lease on it must not
// for twice timeout-min after its process started: it may have acknowledged an
// append, and with it a lease, that it does not remember. The transport asks
// before each vote that comes in. Nor may a node of an old generation.
func (n *Node) MayVote() bool {
	return n.mayTakePartInElections() && (n.lease == nil || n.lease.runningFor(2*n.cfg.TimeoutMin))
}
