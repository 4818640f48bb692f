package consensus

import "northstar/cluster"

// Servers returns Raft's latest configuration, nil while Raft does not run. It is cheap.
func (n *Node) Servers() []cluster.Server {
	if inst := n.inst.Load(); inst != nil {
		return inst.Servers()
	}
	return nil
}

// Claim returns what this node tells its peers about itself and about the leader that it knows. The transport adds what
// its connections know. It holds no lock for longer than a copy, and sends nothing.
func (n *Node) Claim() cluster.Claim {
	st := n.Status()
	c := cluster.Claim{
		NodeID: st.NodeID, ClusterID: st.ClusterID, Generation: st.Generation, BootID: n.cfg.Self.BootID,
		Term: st.Term, Role: st.Role, LeaderID: st.LeaderID, LeaderContactAge: st.LeaderContactAge,
		LastLogIndex: st.LastLogIndex, AppliedIndex: st.AppliedIndex,
		Priority: n.cfg.Self.Priority, Eligible: n.cfg.Self.Eligible, IsVoter: st.Suffrage() == cluster.Voter,
		Lifecycle: st.Lifecycle, Draining: st.Lifecycle == cluster.Draining, Disk: st.Disk,
	}
	view := n.View()
	if m, ok := view.Member(st.NodeID); ok {
		c.Priority, c.Eligible = m.Priority, m.Eligible
	}
	c.Paused = !view.AutoFailover(n.now())
	if inst := n.inst.Load(); inst != nil {
		// Newer than the last sample: an election is about the present.
		s := inst.SoftState()
		c.Term, c.Role, c.LeaderID = s.Term, s.Role, s.Leader
		c.LastLogIndex, c.LastLogTerm = inst.LastEntry()
	}
	return c
}
