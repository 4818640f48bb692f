package transport

import (
	"time"

	"github.com/hashicorp/raft"

	"northstar/cluster"
)

// LeaderContact is the last message of a leader that this process has passed to raft, or answered for it. It outlives
// a raft.Raft that is replaced inside the process, which knows no leader then. It is recorded before the answer, so
// that no answer is missing when a vote is decided. The zero value is none.
type LeaderContact struct {
	Leader cluster.NodeID
	At     time.Time
}

// MayHoldLease reports whether the leader may have a lease because this process has acknowledged its message: for
// timeoutMin, which a lease is shorter than. This node itself starts no election by its timer then.
//
// raft's timer alone is not enough. A candidate that began with a TimeoutNow goes on being one when it gets appends of
// its term's leader, and acknowledges them. It starts the next election when its candidacy times out.
func (c LeaderContact) MayHoldLease(now time.Time, timeoutMin time.Duration) bool {
	return c.Leader != "" && now.Sub(c.At) < timeoutMin
}

// recordLeaderContact records a message of a leader of the current term, or of a later one.
func (m incoming) recordLeaderContact(term uint64) {
	if term >= m.local.CurrentTerm() {
		m.r.t.leaderContact.Store(&LeaderContact{m.p.id, time.Now()})
	}
}

// lastLeaderContact returns the zero value if this process has heard no leader.
func (t *Transport) lastLeaderContact() (last LeaderContact) {
	if c := t.leaderContact.Load(); c != nil {
		last = *c
	}
	return last
}

// lastOfTerm returns the index up to which an append shows its leader's log, if the entry there is of the leader's
// term; else 0. Such an entry comes after all that earlier leaders have committed.
func lastOfTerm(c *raft.AppendEntriesRequest) uint64 {
	term := c.PrevLogTerm
	if n := len(c.Entries); n > 0 {
		term = c.Entries[n-1].Term
	}
	if term != c.Term {
		return 0
	}
	return c.PrevLogEntry + uint64(len(c.Entries))
}
