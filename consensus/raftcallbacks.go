package consensus

import "northstar/cluster"

// RaftCallbacks is the running Raft node as the transport sees it. Its methods may
// be called from any goroutine and do not block, unless their comment says so.
type RaftCallbacks struct {
	n    *Node
	inst *raftInstance
}

// CurrentTerm returns Raft's term.
func (c RaftCallbacks) CurrentTerm() uint64 { return c.inst.raft.CurrentTerm() }

// Leader returns the leader that Raft knows, "" when it knows none.
func (c RaftCallbacks) Leader() cluster.NodeID {
	_, id := c.inst.raft.LeaderWithID()
	return cluster.NodeID(id)
}

// Progress returns the last applied index, and a number that grows while a snapshot
// is restored.
func (c RaftCallbacks) Progress() (applied, restored uint64) {
	return c.inst.raft.AppliedIndex(), c.n.fsm.progress.Load() + c.n.store.Progress()
}

// LastEntry returns the position of the last entry, in log or snapshot.
func (c RaftCallbacks) LastEntry() (index, term uint64) { return c.n.lastEntry(c.inst) }

// CheckEntry returns why an entry of the current term's leader cannot be taken. It
// may block for a disk write then.
func (c RaftCallbacks) CheckEntry(index, term uint64) error {
	return c.n.checkEntry(c.inst.snaps, index, term)
}

// TrackVote is called when a vote enters Raft, and when it is no longer there:
// meanwhile a term may wait, to be recorded with the vote.
func (c RaftCallbacks) TrackVote(inside bool) { c.inst.disk.trackVote(inside) }

// FlushBeforeReply makes durable what waits, and waits for what is being written. An
// answer of Raft may leave this node only after that, and not after an error. It
// blocks for a disk write.
func (c RaftCallbacks) FlushBeforeReply() error { return c.inst.disk.flushBeforeReply() }

// ElectionBlocked reports whether this node must not start an election, not even for
// an operator: its log may end with a configuration that is not about its data
// directory.
func (c RaftCallbacks) ElectionBlocked() bool { return c.inst.electionBlocked.Load() }
