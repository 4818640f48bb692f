package consensus

// StepDown ends this node's leadership of a term because of evidence that Raft
// does not have: that another node leads. From its return on this node refuses
// what only a leader does; what Raft has in hand may still be committed, in that
// term, and is answered so. The library has no such call: its node is replaced by
// another one, which follows. No term is raised and nobody is told to stand. It
// does nothing when this node does not lead in that term.
func (n *Node) StepDown(term uint64, why string) {
	inst := n.inst.Load()
	if inst == nil || !inst.StepDown(term) {
		return
	}
	n.log.Error("this node stops leading", "term", term, "reason", why)
	n.closeGate()
	n.requestRestart("it must not lead any more")
}

// StepDownPending says that this node was told to step down and its Raft node has
// not been replaced yet: its appends are to fail until then.
func (n *Node) StepDownPending() bool {
	inst := n.inst.Load()
	return inst != nil && inst.SteppedDown()
}
