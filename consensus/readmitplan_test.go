package consensus_test

import (
	"bytes"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"northstar/cluster"
	"northstar/state"
)

// TestReadmit_BesideAnUnfinishedPromotion: a promotion broke off before its record. The leader finds that, and before
// it completes the promotion, an operator re-admits the member. A record that is made active then would belong to a
// non-voter, which no leader promotes.
func TestReadmit_BesideAnUnfinishedPromotion(t *testing.T) {
	t.Parallel()
	c, leader := startCluster(t, 3)
	c.write("a", "1")
	c.everywhere("a", "1")
	again := c.others(leader)[0]
	eventually(t, "its data directory is recorded",
		func() bool { return leader.Record(again.id).Incarnation == again.Identity().Incarnation })
	joining := state.Command{Kind: state.KindMemberPatch, MemberPatch: &state.MemberPatch{
		ID: again.id, Lifecycle: new(cluster.Lifecycle),
	}}
	*joining.MemberPatch.Lifecycle = cluster.Joining
	var rounds atomic.Int64
	done := make(chan error, 2)
	between := func(of cluster.NodeID) { // the leader has read the servers and the records
		if of != again.id || !bytes.Contains(debug.Stack(), []byte("gatherMembers")) {
			return
		}
		switch rounds.Add(1) {
		case 1:
			_, err := leader.Propose(within(t, testTimeout), joining)
			done <- err
		case 3: // each round asks twice, and the second one has read the joining record
			done <- leader.PatchMember(within(t, testTimeout), again.id, cluster.MemberPatch{Readmit: true})
		}
	}
	leader.peerAck.Store(&between)
	for range cap(done) {
		select {
		case err := <-done:
			if err != nil {
				t.Fatal(err)
			}
		case <-time.After(testTimeout):
			t.Fatal("the leader compares nothing")
		}
	}
	leader.peerAck.Store(nil)
	defer func() {
		for _, n := range c.nodes {
			if st, rec := n.Status(), n.Record(again.id); t.Failed() {
				t.Logf("%s is a %s of %q in term %d, with %v and the record %+v; not followed: %s", n.id, st.Role, st.LeaderID,
					st.Term, st.Servers, rec, st.NotFollowed)
			}
		}
	}()
	eventually(t, "it is a voter again", func() bool {
		s, _ := cluster.FindServer(c.leader().Status().Servers, again.id)
		rec, _ := c.leader().View().Member(again.id)
		return s.Suffrage == cluster.Voter && rec.Lifecycle == cluster.Active && rec.Incarnation != ""
	})
}

// TestReadmit_AllOthersOfANode: while a node is away, all other members are wiped and re-admitted, one after another.
// Its records admit none of them any more, so it follows none of them, and says what to do. It is wiped and
// re-admitted, too.
func TestReadmit_AllOthersOfANode(t *testing.T) {
	t.Parallel()
	c, leader := startCluster(t, 5)
	c.write("a", "1")
	c.everywhere("a", "1")
	away := leader
	eventually(t, "all data directories are recorded", func() bool { return len(recordsOnDisk(away)) == 5 })
	away.stop()
	for _, n := range c.others(nil) {
		n.stop()
		n.wipe()
		eventually(t, "the re-admission of "+string(n.id), func() bool {
			return c.leader().PatchMember(within(t, testTimeout), n.id, cluster.MemberPatch{Readmit: true}) == nil
		})
		n.start()
		c.awaitVoter(n)
	}
	c.write("b", "1")
	away.idle.Store(true)
	away.start()
	eventually(t, "it says what to do", func() bool {
		why := away.Status().NotFollowed
		for _, n := range c.others(away) {
			if !strings.Contains(why, string(n.id)+" claims a re-admission") {
				return false
			}
		}
		return strings.Contains(why, "wipe and re-admit node "+string(away.id))
	})
	if st := away.Status(); st.LeaderID != "" || away.has("b", "1") {
		t.Errorf("it follows %s", st.LeaderID)
	}
	away.stop()
	away.wipe()
	away.idle.Store(false)
	eventually(t, "its own re-admission", func() bool {
		return c.leader().PatchMember(within(t, testTimeout), away.id, cluster.MemberPatch{Readmit: true}) == nil
	})
	away.start()
	c.awaitVoter(away)
	c.everywhere("b", "1")
}
