package consensus_test

import (
	"testing"

	"northstar/cluster"
)

// TestVoteForAVoterOfALaterConfiguration: a voter was away when another node became a voter, and when a third one
// ceased to be one. Then the leader is lost. Only the two together are a majority, and only the new voter has the log.
// The other one votes for it, although its own configuration knows it as a non-voter.
func TestVoteForAVoterOfALaterConfiguration(t *testing.T) {
	t.Parallel()
	c, leader := startCalmCluster(t, 4)
	others := c.others(leader)
	demoted, away, promoted := others[0], others[1], others[2]
	setSuffrage := func(n *testNode, s cluster.Suffrage) {
		t.Helper()
		eventually(t, "a change of suffrage", func() bool {
			err := leader.PatchMember(within(t, testTimeout), n.id, cluster.MemberPatch{Suffrage: &s})
			if err != nil {
				t.Log(err)
			}
			return err == nil
		})
	}
	setSuffrage(promoted, cluster.NonVoter)
	c.write("a", "1")
	c.everywhere("a", "1")
	eventually(t, "the configuration is everywhere", func() bool {
		s, _ := cluster.FindServer(away.Status().Servers, promoted.id)
		return s.Suffrage == cluster.NonVoter
	})
	away.stop()
	setSuffrage(promoted, cluster.Voter)
	setSuffrage(demoted, cluster.NonVoter)
	c.write("a", "2")
	eventually(t, "the new voter has the log", func() bool { return promoted.has("a", "2") })
	lose(leader, demoted)
	away.start()
	eventually(t, "the new voter leads", promoted.elected)
	c.write("a", "3")
}
