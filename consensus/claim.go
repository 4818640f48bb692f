package consensus

import (
	"strconv"

	"github.com/hashicorp/raft"

	"northstar/cluster"
)

// Servers is Raft's latest configuration, nil while Raft does not run. It is
// cheap.
func (n *Node) Servers() []cluster.Server {
	if inst := n.inst.Load(); inst != nil {
		return inst.servers()
	}
	return nil
}

// Claim is what this node says to its peers of itself and of the leader that it
// sees, now. What its connections know beside that, the transport adds. It takes
// no lock for longer than a copy, and asks nobody.
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
		// Newer than what was sighted: an election is about now.
		s := inst.sampleSoftState(st.NodeID)
		c.Term, c.Role, c.LeaderID = s.term, s.role, s.leader
		c.LastLogIndex, c.LastLogTerm = n.lastEntry(inst)
	}
	return c
}

// lastEntry is the position of the last entry that this node holds, in its log
// or its snapshot.
func (n *Node) lastEntry(inst *raftInstance) (index, term uint64) {
	index = inst.raft.LastIndex()
	if term, ok := inst.disk.termAt(index); ok {
		return index, term
	}
	var l raft.Log
	if index != 0 && n.store.Log().GetLog(index, &l) == nil {
		return index, l.Term
	}
	// A snapshot has taken the place of the log. The library shows that nowhere
	// else.
	stats := inst.raft.Stats()
	for _, of := range []string{"last_log", "last_snapshot"} {
		i, _ := strconv.ParseUint(stats[of+"_index"], 10, 64)
		t, _ := strconv.ParseUint(stats[of+"_term"], 10, 64)
		if i >= index {
			index, term = i, t
		}
	}
	return index, term
}
