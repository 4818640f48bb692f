package consensus_test

import (
	"strings"
	"testing"

	"github.com/hashicorp/raft"

	"northstar/cluster"
	"northstar/transport"
)

// claimsToLead sends a heartbeat of a later term, and returns that term.
func (n *testNode) claimsToLead(to *testNode) (later uint64) {
	n.t.Helper()
	later = to.Status().Term + 1000
	header := raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: []byte(n.id), Addr: []byte(n.addr)}
	id, addr := raft.ServerID(to.id), raft.ServerAddress(to.addr)
	eventually(n.t, "an answer", func() bool {
		err := n.tr.Raft().AppendEntries(id, addr, &raft.AppendEntriesRequest{RPCHeader: header, Term: later},
			new(raft.AppendEntriesResponse))
		return err == nil || strings.Contains(err.Error(), "not a member")
	})
	return later
}

// TestStranger_IsNotFollowed: a member was away while another node was added, and meets it alone. Nothing shows that it
// is a member, so its messages do not count. Once another member confirms the addition, it is followed.
func TestStranger_IsNotFollowed(t *testing.T) {
	t.Parallel()
	c, leader := startCluster(t, 4)
	c.write("a", "1")
	c.everywhere("a", "1")
	victim := c.others(leader)[0]
	victim.stop()
	stranger := c.addNode("n9")
	stranger.join = true
	stranger.start()
	add := cluster.MemberAdd{ID: "n9", RaftAddress: stranger.addr, HTTPAddress: "http-n9", Promote: true}
	c.onLeader("an addition", func(n *testNode) error { return n.AddMember(within(t, testTimeout), add) })
	c.awaitVoter(stranger)
	rest := c.others(nil)
	lose(rest...)
	victim.start()
	stranger.idle.Store(true)
	victim.idle.Store(true)
	eventually(t, "the two have met", func() bool {
		return strings.Contains(victim.Status().NotFollowed, "not in the configuration")
	})
	if later := stranger.claimsToLead(victim); victim.Status().Term >= later {
		t.Errorf("the stranger's term %d counts", later)
	}
	if st := victim.Status(); st.LeaderID != "" {
		t.Errorf("it follows %s", st.LeaderID)
	}
	for _, n := range rest {
		n.drop(func(m transport.Message) bool { return m.To == victim.id }) // only the stranger can inform it
		n.start()
	}
	c.transferTo(stranger)
	c.write("b", "1")
	c.everywhere("b", "1")
}

// TestRemovedNodeMeetsWhoMissedIt: a member missed the removal of another one, and gets no entries. It has heard from
// other members that their records lack the removed node, so it does not follow that one.
func TestRemovedNodeMeetsWhoMissedIt(t *testing.T) {
	t.Parallel()
	c, leader := startCluster(t, 4)
	c.write("a", "1")
	c.everywhere("a", "1")
	removed, victim := c.others(leader)[0], c.others(leader)[1]
	eventually(t, "its data directory is recorded",
		func() bool { return recordsOnDisk(victim)[removed.id].Incarnation != "" })
	victim.idle.Store(true)
	victim.stop()
	for _, n := range c.others(nil) {
		n.drop(func(m transport.Message) bool { return m.To == victim.id })
	}
	c.remove(removed.id)
	removed.idle.Store(true)
	removed.drop(nil)
	victim.start()
	eventually(t, "others have told it", func() bool { return victim.Record(removed.id).Superseded })
	if victim.Record(removed.id).Removed {
		t.Fatal("its own records have the removal")
	}
	if later := removed.claimsToLead(victim); victim.Status().Term >= later {
		t.Errorf("the removed node's term %d counts", later)
	}
	for _, n := range c.others(nil) {
		n.drop(nil)
	}
	victim.idle.Store(false)
	eventually(t, "its records have the removal", func() bool { return victim.Record(removed.id).Removed })
}

// TestRecoveryClaimOfAStranger: any node certificate can claim that this generation was superseded. Nodes that have a
// leader believe only members, so the claim neither stops the service nor the next election. Without a leader they
// believe it: the nodes of the new generation may all have been added after the recovery.
func TestRecoveryClaimOfAStranger(t *testing.T) {
	t.Parallel()
	const superseded = "newer generation"
	c, leader := startCluster(t, 3)
	c.write("a", "1")
	c.everywhere("a", "1")
	rest := c.others(leader)
	for _, n := range c.others(nil) {
		n.OnRefused("n9", cluster.RefusedGeneration, "old")
		if why := n.ElectionObstacle(); strings.Contains(why, superseded) || n.BelievesRecovery("n9") {
			t.Errorf("%s believes a stranger: %s", n.id, why)
		}
	}
	leader.stop()
	eventually(t, "another leader", func() bool {
		for _, n := range rest {
			n.OnRefused("n9", cluster.RefusedGeneration, "old")
		}
		return rest[0].Status().LeaderID != leader.id && rest[0].Status().LeaderID != ""
	})
	rest[0].OnRefused(rest[1].id, cluster.RefusedGeneration, "old")
	if why := rest[0].ElectionObstacle(); !strings.Contains(why, superseded) || !rest[0].BelievesRecovery(rest[1].id) {
		t.Errorf("a member is not believed: %q", why)
	}
	lose(rest...)
	rest[1].start()
	eventually(t, "a stranger is believed after a restart without a leader", func() bool {
		rest[1].OnRefused("n9", cluster.RefusedGeneration, "old")
		return strings.Contains(rest[1].ElectionObstacle(), superseded) && rest[1].BelievesRecovery("n9")
	})
}

// TestSurvivorNamedByAStranger: any node certificate can name this node as a survivor of a recovery. That counts only
// from a server of its configuration, and does not replace what that one has said.
func TestSurvivorNamedByAStranger(t *testing.T) {
	t.Parallel()
	c, leader := startCluster(t, 3)
	c.write("a", "1")
	c.everywhere("a", "1")
	n, member := c.others(leader)[0], c.others(leader)[1]
	self := n.Identity()
	says := func(from cluster.NodeID) {
		n.OnHello(cluster.Peer{
			Identity: cluster.Identity{
				NodeID: from, ClusterID: self.ClusterID, Generation: cluster.Generation{Number: 2, RecoveryID: "r"},
			},
			Survivors: map[cluster.NodeID]string{n.id: self.Incarnation},
		}, cluster.Admission{Refusal: cluster.RefusedSelfOld})
	}
	for _, step := range []struct{ from, waits cluster.NodeID }{{"n9", ""}, {member.id, member.id}, {"n9", member.id}} {
		says(step.from)
		request := cluster.RecoveryRequest{Confirm: self.ClusterID, Survivors: []cluster.NodeID{"n9", member.id}}
		plan, _, resumes := n.ResumeRecovery(request)
		if resumes != (step.waits != "") || resumes && plan.Chosen != step.waits {
			t.Errorf("after a hello of %s: resumes %v, chosen %s; want %s", step.from, resumes, plan.Chosen, step.waits)
		}
	}
}
