package consensus

import (
	"context"
	"sync"
	"time"

	"northstar/cluster"
)

// lease is the clock-bounded right to serve reads without a round. It starts at the send time that a majority of voters
// has acknowledged: each of them votes for no other node for timeout-min after it received that append. The transport
// sees to that (transport/leadercontact.go), unless an operator or a transfer asks for the vote. Acknowledgements of
// voters that promise less than this node's timeout-min do not count (leasepromise.go).
//
// Send times are on Go's monotonic clock, which stops while the machine is suspended. The lease clock does not stop.
// When the two drift apart, earlier sends no longer count.
type lease struct {
	clock func() time.Duration
	now   func() time.Time

	mu      sync.Mutex
	started time.Duration // lease clock at process start
	sleep   suspendWatch
	limits  LeaseLimits
}

func newLease(length time.Duration, clock func() time.Duration, now func() time.Time) *lease {
	return &lease{
		limits: LeaseLimits{Length: length}, clock: clock, now: now, started: clock(),
		sleep: newSuspendWatch(clock, now()),
	}
}

// LeaseLimits is what a leader's lease depends on besides acknowledgements.
type LeaseLimits struct {
	Length    time.Duration
	NotBefore time.Time // only sends after it count
	OffTerm   uint64    // there is no lease in this term
}

// LeaseLength returns the length of a lease: less than the time for which voters vote for no other node, by the drift
// of the clocks.
func LeaseLength(timeoutMin time.Duration, drift float64) time.Duration {
	return time.Duration(float64(timeoutMin) * (1 - drift))
}

// Left returns how long the lease in term lasts from now on. quorumSent is the send time of the acknowledgements.
func (l LeaseLimits) Left(now time.Time, term uint64, quorumSent time.Time) time.Duration {
	if term == l.OffTerm {
		return 0
	}
	return max(0, leaseLeft(now, quorumSent, l.NotBefore, l.Length))
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
	if l.sleep.slept(now) > 0 {
		l.limits.NotBefore = now
	}
	return l.limits.Left(now, term, quorumSent)
}

// revoke ends the lease. Sends after this moment start it again.
func (l *lease) revoke() {
	if l == nil {
		return
	}
	l.mu.Lock()
	l.limits.NotBefore = l.now()
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
	before := l.limits.OffTerm
	l.limits.OffTerm = term
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.limits.OffTerm = before
	}
}

// running returns for how long the process has run, by the lease clock.
func (l *lease) running() time.Duration { return l.clock() - l.started }

// LeaseReadBarrier is ReadBarrier without a round while the lease is valid. With election.lease off it is ReadBarrier.
func (n *Node) LeaseReadBarrier(ctx context.Context) error {
	if n.lease == nil {
		return n.ReadBarrier(ctx)
	}
	inst := n.inst.Load()
	if inst == nil {
		return n.notLeading()
	}
	commit, term := inst.CommitIndex(), n.readyTerm.Load()
	// A restore of an earlier term is committed, or undone: this term's leader-start came after it.
	if n.leaseRemaining() <= 0 || n.replacing.Load() >= max(term, 1) {
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
	voters := voterIDs(inst.Servers())
	if n.leaseObstacle(voters) != "" {
		return 0
	}
	return n.lease.left(term, n.deps.Acks.LeaseTime(term, n.cfg.Self.NodeID, voters, n.cfg.LeasePromise()))
}

// MayVoteAfter reports whether a process that has run for so long may vote: with leases not before twice timeout-min.
func MayVoteAfter(running, timeoutMin time.Duration) bool { return running >= 2*timeoutMin }

// VoteObstacle returns why this node may grant no votes now, for the metric and as text; "" if it may. The transport
// calls it before each vote that it receives. With the lease on it may not for twice timeout-min after the start of the
// process: the node may have acknowledged an append, and with it a lease, that it does not remember. A longer promise
// of an earlier process counts instead.
func (n *Node) VoteObstacle() (kind, why string) {
	switch {
	case !n.peersProbed.Load():
		return "starting", "has not reached enough peers since it started"
	case n.GenerationSuperseded():
		return string(cluster.RefusedSelfOld), "a peer has a newer generation of the cluster"
	case n.lease != nil && !MayVoteAfter(n.lease.running(), n.cfg.TimeoutMin), n.promise.earlierBinds() > 0:
		return "lease", "a lease from before this node's restart may be running"
	}
	return "", ""
}
