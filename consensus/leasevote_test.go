package consensus_test

import (
	"fmt"
	"strings"
	"testing"

	"northstar/cluster"
	"northstar/consensus"
	"northstar/consensus/raftnode"
	"northstar/transport"
)

// leaseCluster starts a cluster with leases. Tests start the elections that they need.
func leaseCluster(t *testing.T, size int) (c *testCluster, leader *testNode) {
	t.Helper()
	c = newCluster(t, size)
	c.tune = func(cfg *consensus.Config) { cfg.Lease, cfg.LeaseDrift = true, 0.1 }
	for _, n := range c.nodes {
		n.start()
	}
	c.write("a", "1")
	c.everywhere("a", "1")
	leader = c.leader()
	for _, n := range c.others(leader) {
		eventually(t, string(n.id)+" may vote", n.MayVote)
	}
	eventually(t, "a lease", func() bool { return leader.Status().LeaseRemaining > timeoutMin/2 })
	return c, leader
}

// TestLeaseNeedsThePromiseOfAll: a voter is restarted without leases, or with a shorter timeout. It may elect another
// node sooner than the leader's lease would end, so that there is none. Its next process promises enough again. A node
// that is elected at an operator's request waits for the longest promise of all.
func TestLeaseNeedsThePromiseOfAll(t *testing.T) {
	t.Parallel()
	for name, tune := range map[string]func(*consensus.Config){
		"node n3 has election.lease off": func(cfg *consensus.Config) { cfg.Lease = false },
		"node n3 has election.timeout-min": func(cfg *consensus.Config) {
			cfg.TimeoutMin, cfg.TimeoutMax = cfg.TimeoutMin/2, cfg.TimeoutMax/2
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, _ := leaseCluster(t, 3)
			voter, equal := c.nodes["n3"], c.nodes["n3"].tune
			restart := func(tune func(*consensus.Config)) {
				voter.tune = func(cfg *consensus.Config) { equal(cfg); tune(cfg) }
				voter.restart()
				c.write("b", "1")
				c.everywhere("b", "1")
			}
			restart(tune)
			voter.idle.Store(true)
			c.transferTo(c.nodes["n1"])
			leader := c.nodes["n1"]
			eventually(t, "the leader knows", func() bool { return strings.Contains(leader.LeaseObstacle(), name) })
			if left := leader.Status().LeaseRemaining; left > 0 {
				t.Errorf("the leader has a lease for %v", left)
			}
			if err := leader.LeaseReadBarrier(within(t, testTimeout)); err != nil {
				t.Errorf("a read by lease without a lease: %v", err)
			}
			if wait := voter.LeaseWait(); wait != timeoutMin {
				t.Errorf("elected at an operator's request, the voter waits for %v, want %v", wait, timeoutMin)
			}
			restart(func(*consensus.Config) {})
			eventually(t, "a lease", func() bool {
				return c.leader().Status().LeaseRemaining > 0 && c.leader().LeaseObstacle() == ""
			})
		})
	}
}

// elect has a node start elections until it leads, and requires that the old leader has no lease then.
func (n *testNode) elect(t *testing.T, old *testNode) {
	t.Helper()
	eventually(t, string(n.id)+" is elected", func() bool {
		if n.Status().Role == cluster.Leader {
			return true
		}
		ctx := within(t, timeoutMin)
		if _, err := n.tr.Raft().StartElection(ctx, n.Status().Term, cluster.CauseLeaderFailed); err != nil {
			t.Log(err)
		}
		return false
	})
	if left := old.Status().LeaseRemaining; left > 0 {
		t.Errorf("%s leads, and the old leader has a lease for %v", n.id, left)
	}
}

// TestRebuiltVoterKeepsTheLease: a voter's Raft node is replaced right after it has acknowledged an append. The new one
// knows no leader.
func TestRebuiltVoterKeepsTheLease(t *testing.T) {
	t.Parallel()
	c, leader := leaseCluster(t, 3)
	voter, other := c.others(leader)[0], c.others(leader)[1]
	leader.drop(func(m transport.Message) bool { return m.To == other.id })
	eventually(t, "the other has lost its leader", func() bool { return other.Status().LeaderID == "" })
	eventually(t, "a lease", func() bool { return leader.Status().LeaseRemaining > timeoutMin/2 })
	before, none := voter.Instance(), any((*raftnode.Instance)(nil))
	leader.cut.Store(true)
	voter.RestartRaft("a test")
	eventually(t, "the voter is rebuilt", func() bool { return voter.Instance() != before && voter.Instance() != none })
	other.elect(t, leader)
}

// TestRefusedElection_KeepsLease: an operator requests an election of a node whose log is behind, when the leader is
// cut off. The voters refuse, and forget their leader: the request has the LeadershipTransfer flag. A third node,
// whose election no operator requested, waits for no lease when it is elected.
func TestRefusedElection_KeepsLease(t *testing.T) {
	t.Parallel()
	c, _ := leaseCluster(t, 5)
	var leader, behind, third *testNode
	tries := 0
	eventually(t, "the leader is cut off, and the third node has lost it and no entry", func() bool {
		tries++
		leader, behind, third = c.cutOffWithLease(fmt.Sprint(tries))
		// A leader that was elected again in between has an entry more: the voters would refuse the third node.
		last := third.Status().LastLogIndex
		return leader.Status().Role == cluster.Leader && leader.Status().LastLogIndex == last &&
			behind.Status().LastLogIndex < last
	})
	term := leader.Status().Term
	ctx := within(t, timeoutMin)
	if _, err := behind.tr.Raft().StartElection(ctx, behind.Status().Term, cluster.CauseOperator); err != nil {
		t.Fatal(err)
	}
	for _, n := range c.others(leader) {
		eventually(t, string(n.id)+" is in the next term", func() bool { return n.Status().Term > term })
		n.idle.Store(n != third) // no other node is elected, if this takes longer than its election timeout
	}
	third.elect(t, leader)
}

// cutOffWithLease writes a value to all nodes but one, and cuts the leader off from a third node. When that node has
// lost its leader and the leader has a lease, it is cut off from all. Each step also ends when the leader is deposed.
func (c *testCluster) cutOffWithLease(value string) (leader, behind, third *testNode) {
	t := c.t
	t.Helper()
	for _, n := range c.nodes {
		n.cut.Store(false)
		n.drop(nil)
	}
	leader = c.leader()
	behind, third = c.others(leader)[0], c.others(leader)[1]
	await := func(what string, ok func() bool) {
		t.Helper()
		eventually(t, what, func() bool { return ok() || leader.Status().Role != cluster.Leader })
	}
	toBehind := func(m transport.Message) bool { return m.To == behind.id && m.Kind == "append" }
	leader.drop(toBehind)
	c.write("b", value)
	for _, n := range c.others(leader)[1:] {
		await("b", func() bool { return n.has("b", value) })
	}
	await("the third node has all entries", func() bool {
		return third.Status().LastLogIndex == leader.Status().LastLogIndex
	})
	leader.drop(func(m transport.Message) bool { return toBehind(m) || m.To == third.id })
	await("the third node has lost its leader", func() bool { return third.Status().LeaderID == "" })
	await("a lease", func() bool { return leader.Status().LeaseRemaining > timeoutMin/2 })
	leader.cut.Store(true)
	return leader, behind, third
}
