package consensus

import (
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"northstar/cluster"
	"northstar/consensus/raftnode"
)

// StartTimes holds the end of each step of a start.
type StartTimes struct {
	Raft    time.Time // Raft runs
	Leader  time.Time // a leader is known
	Commit  time.Time // what is committed is known; on a leader, when it had committed an entry of its term
	Applied time.Time // all of that is applied
	Entries uint64    // applied since Raft runs
}

// catchUp is how far a start is. The zero value has no progress channel.
type catchUp struct {
	progress chan struct{} // capacity 1: more may be known, or applied

	mu     sync.Mutex
	commit uint64 // the first commit index that a leader sent; 0: none
	first  uint64 // the applied index when Raft started
	times  StartTimes
}

// reset begins again, for an instance of Raft that starts with an older state.
func (c *catchUp) reset() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.commit, c.first, c.times = 0, 0, StartTimes{}
}

func (c *catchUp) raftRuns(now time.Time, applied uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.times.Raft.IsZero() {
		c.times.Raft, c.first = now, applied
	}
}

// leaderCommit notes a commit index of the current leader. The first one counts: it covers all that was committed
// before this node started. That of a leader which has committed nothing in its term yet may be some entries lower.
func (c *catchUp) leaderCommit(index uint64, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.commit == 0 && index != 0 {
		c.commit, c.times.Commit = index, now
		raftnode.Notify(c.progress)
	}
}

// target returns what must be applied, 0 if that is unknown. A leader is known now.
func (c *catchUp) target(now time.Time) uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.times.Leader.IsZero() {
		c.times.Leader = now
	}
	return c.commit
}

func (c *catchUp) done(now time.Time, applied uint64) StartTimes {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.times.Applied, c.times.Entries = now, applied-min(c.first, applied)
	return c.times
}

// batchApplied is called after each batch of entries.
func (n *Node) batchApplied(took time.Duration) {
	if !n.caughtUp.Load() {
		raftnode.Notify(n.catchUp.progress)
	}
	if n.deps.Hooks.Applied != nil {
		n.deps.Hooks.Applied(took)
	}
}

// checkCaughtUp notes when a node that has a leader has applied what was committed when it started. A follower knows
// that from the first append of a leader, and a leader when it has committed an entry of its term.
func (n *Node) checkCaughtUp(inst *raftnode.Instance) {
	if n.caughtUp.Load() {
		return
	}
	s := n.currentSoftState()
	if s.Leader == "" {
		return
	}
	now := time.Now()
	if s.Role == cluster.Leader {
		n.catchUp.leaderCommit(inst.CommitIndex(), now)
	}
	target := n.catchUp.target(now)
	if target == 0 || !n.appliedThrough(target) {
		return
	}
	times := n.catchUp.done(time.Now(), n.fsm.Applied())
	n.caughtUp.Store(true)
	if n.deps.Hooks.CaughtUp != nil {
		n.deps.Hooks.CaughtUp(times)
	}
}

// appliedThrough reports whether the state holds everything up to index. The library does not hand every entry to the
// state machine: such entries at the end are skipped here.
func (n *Node) appliedThrough(index uint64) bool {
	for applied := n.fsm.Applied(); index > applied; index-- {
		var l raft.Log
		if err := n.store.Log().GetLog(index, &l); err != nil || l.Type == raft.LogCommand ||
			l.Type == raft.LogConfiguration {
			return false
		}
	}
	return true
}
