package consensus

// StepDown ends this node's leadership of a term because of evidence that Raft does not have: another node leads. From
// its return on this node rejects what only a leader does. Entries in flight may still be committed in that term, and
// their callers learn it. The library has no such call, so its node is replaced by another one, which follows. No term
// is raised and no node gets TimeoutNow. StepDown does nothing when this node does not lead in that term.
func (n *Node) StepDown(term uint64, why string) {
	inst := n.inst.Load()
	if inst == nil || !inst.StepDown(term) {
		return
	}
	n.log.Error("stepping down", "term", term, "reason", why)
	n.closeGate()
	n.requestRestart("stepped down")
}

// StepDownPending reports whether StepDown was called and the Raft node has not been replaced yet: its appends must
// fail until then.
func (n *Node) StepDownPending() bool {
	inst := n.inst.Load()
	return inst != nil && inst.SteppedDown()
}
