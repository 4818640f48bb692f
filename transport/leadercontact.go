package transport

import (
	"time"

	"northstar/cluster"
)

// LeaderContact is the last message of a leader that this process has passed to raft, or answered for it. It outlives
// a raft.Raft that is replaced inside the process, which knows no leader then. It is recorded before the answer, so
// that no answer is missing when a vote is decided. The zero value is none.
type LeaderContact struct {
	Leader cluster.NodeID
	At     time.Time
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
