package consensus

import "northstar/consensus/raftnode"

// RaftCallbacks is the running Raft node as the transport sees it. Its methods may be called from any goroutine. Only
// CheckEntry and FlushBeforeReply may block, for a disk write.
type RaftCallbacks struct {
	*raftnode.Instance
	n *Node
}

// Progress returns the last applied index, and a number that grows while a snapshot is restored.
func (c RaftCallbacks) Progress() (applied, restored uint64) {
	return c.AppliedIndex(), c.n.fsm.Progress() + c.n.store.Progress()
}

// CheckEntry returns why an entry of the current term's leader cannot belong to what this node has applied.
func (c RaftCallbacks) CheckEntry(index, term uint64) error {
	return c.n.checkEntry(c.Instance, index, term)
}
