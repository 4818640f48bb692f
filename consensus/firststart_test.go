package consensus_test

import (
	"testing"

	"northstar/cluster"
	"northstar/transport"
)

// TestFirstLeaderLost_ClusterIDOnOneFollower: the first leader dies and does not come back. One follower has adopted
// the cluster's ID, and does not know yet that the command with the roster is committed. The two remaining nodes were
// never wiped, and must elect a leader.
func TestFirstLeaderLost_ClusterIDOnOneFollower(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	for i, n := range c.first {
		node, hears := c.nodes[n.ID], c.first[(i+1)%3].ID
		node.drop(func(m transport.Message) bool {
			return node.Node != nil && node.View().ClusterID() != "" && (m.Kind != "heartbeat" || m.To != hears)
		})
	}
	for _, n := range c.nodes {
		n.start()
	}
	var first, adopted *testNode
	eventually(t, "one follower adopts the ID", func() bool {
		for _, n := range c.nodes {
			switch {
			case n.Identity().ClusterID == "":
			case n.Status().Role == cluster.Leader:
				first = n
			default:
				adopted = n
			}
		}
		return first != nil && adopted != nil
	})
	if adopted.View().ClusterID() != "" {
		t.Log("it has heard of the commit: nothing is shown this time")
	}
	first.stop()
	for _, n := range c.others(first) {
		n.drop(nil)
		n.restart()
	}
	c.leader()
}

// A node that starts late cannot probe the others in time. One of them has recorded it and reaches it, and it adopts
// their cluster's ID. Then it joins.
func TestLateFirstStart_ProbesAreLost(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	late := c.nodes["n3"]
	c.nodes["n1"].start()
	c.nodes["n2"].start()
	c.leader()
	late.lostProbes = true
	late.start()
	eventually(t, "it adopts the cluster's ID", func() bool { return late.Identity().ClusterID != "" })
	c.write("a", "1")
	eventually(t, "it follows", func() bool { return late.has("a", "1") })
}
