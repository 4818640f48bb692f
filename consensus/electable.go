package consensus

// ReadOnly reports whether the disk has too little space left for new entries.
func (n *Node) ReadOnly() bool { return n.store.ReadOnly() }

// Stalled reports whether the disk is stalled: this node must then send no appends, so that the others elect another
// leader.
func (n *Node) Stalled() bool { return n.store.Stalled() }

// MayStartElection reports whether this node may start an election. It may not with a stalled or full disk, while peers
// only refuse it, before it has probed them, or before its log reaches its own admission entry.
func (n *Node) MayStartElection() bool {
	inst := n.inst.Load()
	barred := inst != nil && inst.ElectionBlocked()
	return !barred && !n.store.Stalled() && !n.store.ReadOnly() && !n.peers.onlyRefused() && n.mayTakePartInElections()
}

// mayTakePartInElections reports whether this node has probed the others since it started, and knows no newer
// generation.
func (n *Node) mayTakePartInElections() bool {
	return n.peersProbed.Load() && !n.peers.generationSuperseded(n.now())
}
