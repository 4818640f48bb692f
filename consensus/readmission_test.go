package consensus_test

import (
	"testing"

	"northstar/cluster"
	"northstar/state"
)

// TestReadmissionThatBrokeOff: a leader completes a re-admission that stopped before or after the demotion.
func TestReadmissionThatBrokeOff(t *testing.T) {
	t.Parallel()
	c, leader := startCluster(t, 3)
	c.write("a", "1")
	c.everywhere("a", "1")
	wiped := c.others(leader)[0]
	eventually(t, "its data directory is recorded", func() bool {
		m, _ := leader.View().Member(wiped.id)
		return m.Incarnation != ""
	})
	dead := cluster.Dead
	mark := state.Command{
		Kind: state.KindMemberPatch, MemberPatch: &state.MemberPatch{ID: wiped.id, Lifecycle: &dead},
	}
	back := func() bool {
		st := wiped.Status()
		rec := c.leader().Record(wiped.id)
		return st.Suffrage() == cluster.Voter && st.Lifecycle == cluster.Active && rec.Incarnation == st.Incarnation
	}
	wiped.stop()
	wiped.wipe()
	wiped.start()
	c.record("the first step", mark)
	eventually(t, "it is a voter again, with its new data", back)

	wiped.stop()
	wiped.wipe()
	wiped.start()
	c.record("the first step", mark)
	c.onLeader("the second step", func(n *testNode) error {
		if m, _ := n.View().Member(wiped.id); m.Lifecycle != cluster.Dead {
			return nil // the leader was faster
		}
		return n.DemoteOnly(wiped.id)
	})
	eventually(t, "it is a voter again, with its newest data", back)
}
