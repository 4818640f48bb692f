package transport

import (
	"fmt"
	"time"

	"northstar/cluster"
)

// leaderContact is the last message of a leader that this process has passed to raft, or answered for it. It outlives
// a raft.Raft that is replaced inside the process, which knows no leader then. It is recorded before the answer, so
// that no answer is missing when a vote is decided.
type leaderContact struct {
	leader cluster.NodeID
	at     time.Time
}

// recordLeaderContact records a message of a leader of the current term, or of a later one.
func (m incoming) recordLeaderContact(term uint64) {
	if term >= m.local.CurrentTerm() {
		m.r.t.leaderContact.Store(&leaderContact{m.p.id, time.Now()})
	}
}

// boundByLease returns why a vote for candidate may contradict a lease, "" if it does not. The lease is of the leader
// that this process has acknowledged last. It ends less than TimeoutMin after it. This voter waits for TimeoutMax
// unless it has evidence that the leader has failed.
//
// raft's own rule, no vote while it knows a leader, is not enough. A replaced raft.Raft knows none. A vote request with
// the LeadershipTransfer flag makes raft forget its leader even when it refuses the vote.
func (r *Raft) boundByLease(candidate cluster.NodeID, term uint64, now time.Time) string {
	last := r.t.leaderContact.Load()
	if !r.t.cfg.Lease || last == nil || last.leader == candidate {
		return ""
	}
	age := now.Sub(last.at)
	if age >= r.t.cfg.TimeoutMax ||
		age >= r.t.cfg.TimeoutMin && r.t.cfg.Elections.MayIgnoreLeader(candidate, term, now) {
		return ""
	}
	return fmt.Sprintf("has acknowledged %s recently, which may have a lease", last.leader)
}
