package node

import (
	"fmt"
	"strings"

	"northstar/cluster"
)

// ownRecord returns this node's member record, an empty one if it has none.
func (n *Node) ownRecord() cluster.Member {
	m, _ := n.consensus.ElectionView().Member(n.cfg.ID)
	return m
}

// mayWrite returns what prevents this leader from serving users' writes. A leader that is not eligible, and that was
// elected as a last resort, only brings another node up to date and transfers leadership. It is called before each
// batch and restore.
func (n *Node) mayWrite() error {
	if n.lastResort.Load() {
		switch m := n.ownRecord(); {
		case m.ID == "": // after a restart, until it has applied what is committed
			return fmt.Errorf("node %s does not know yet whether it may lead", n.cfg.ID)
		case mayBeIneligible(m):
			return fmt.Errorf("node %s %s and leads only to transfer leadership", m.ID, m.IneligibleReason())
		}
	}
	if n.external != nil {
		return n.external.mayWrite()
	}
	return nil
}

// mayBeIneligible reports whether a record forbids its node to lead, or is not known. It is false for a drained node,
// which serves until another node leads.
func mayBeIneligible(m cluster.Member) bool { return m.ID == "" || !m.Eligible || m.Priority <= 0 }

// lastResortReason explains the election of a node that Raft's timer started although its record forbids it to lead.
func lastResortReason(self cluster.NodeID, rec cluster.Member, trigger string) string {
	why := rec.IneligibleReason()
	if rec.ID == "" || why == "" || trigger != "" {
		return ""
	}
	return fmt.Sprintf("last resort: node %s %s, and no eligible node could win: it leads to transfer leadership",
		self, why)
}

// lastResortWarning warns when voters that may not lead, with the leader, are a majority. They can be the only ones
// with the newest entries when the leader fails.
func lastResortWarning(servers []cluster.Server, members []cluster.Member) string {
	var ineligible []string
	for _, m := range members {
		s, ok := cluster.FindServer(servers, m.ID)
		if ok && s.Suffrage == cluster.Voter && mayBeIneligible(m) && !m.Removed {
			ineligible = append(ineligible, string(m.ID))
		}
	}
	voters := cluster.CountVoters(servers)
	switch {
	case voters == 1 && len(ineligible) == 1:
		return "no voter may lead: the only one has priority 0 or is not eligible; it leads as a last resort, and takes " +
			"no writes"
	case voters > 0 && len(ineligible) == voters:
		return "no voter may lead: each has priority 0 or is not eligible; when the leader fails, none is elected until " +
			"an operator requests it"
	}
	if voters < 3 || len(ineligible) == 0 || len(ineligible)+1 < cluster.Quorum(voters) {
		return ""
	}
	return fmt.Sprintf("of %d voters, %s may not lead: if only they have the newest entries when the leader fails, "+
		"one of them leads as a last resort, takes no writes and transfers leadership", voters, strings.Join(ineligible, ", "))
}
