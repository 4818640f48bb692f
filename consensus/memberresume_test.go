package consensus_test

import (
	"errors"
	"testing"

	"northstar/cluster"
	"northstar/state"
)

// record puts one command about a member into the log, and nothing else of a change.
func (c *testCluster) record(what string, cmd state.Command) {
	c.t.Helper()
	c.onLeader(what, func(n *testNode) error {
		r, err := n.Propose(within(c.t, testTimeout), cmd)
		if err == nil && r.Err != nil {
			return r.Err
		}
		return err
	})
}

func isServer(n *testNode, id cluster.NodeID) bool {
	_, member := cluster.FindServer(n.Servers(), id)
	return member
}

// TestRemovalThatBrokeOff: a leader completes what another one has left of a removal. The removed node says that it is
// out, also when no other node runs. It was the leader itself, so its log certainly has the entry that removes it.
func TestRemovalThatBrokeOff(t *testing.T) {
	t.Parallel()
	c, out := startCluster(t, 4)
	c.write("a", "1")
	c.everywhere("a", "1")
	eventually(t, "its data directory is recorded",
		func() bool { return recordsOnDisk(out)[out.id].Incarnation != "" })
	c.onLeader("half of a removal", func(n *testNode) error {
		switch {
		case !isServer(n, out.id):
			return nil
		case n != out:
			return errors.Join(errors.New("another node leads"), n.TransferTo(within(t, testTimeout), to(out.id)))
		}
		return n.RemoveServerOnly(out.id)
	})
	eventually(t, "the removal is recorded", func() bool { return c.leader().Record(out.id).Removed })
	eventually(t, "the removed node knows", func() bool {
		st := out.Status()
		return st.Lifecycle == cluster.Dead && st.DeadReason != ""
	})

	// A non-voter's record is removed first.
	add := cluster.MemberAdd{ID: "n8", RaftAddress: freeAddress(t), HTTPAddress: "http-n8"}
	c.onLeader("an addition", func(n *testNode) error { return n.AddMember(within(t, testTimeout), add) })
	c.record("half of a removal", state.Command{
		Kind: state.KindMemberRemove, MemberRemove: &state.MemberRemove{ID: "n8"},
	})
	eventually(t, "the configuration follows", func() bool { return !isServer(c.leader(), "n8") })

	// The addition of a permanent non-voter is undone.
	c.record("half of an addition", state.Command{Kind: state.KindMember, Member: &cluster.Member{
		ID: "n9", RaftAddress: freeAddress(t), Priority: cluster.DefaultPriority, Lifecycle: cluster.Active,
	}})
	eventually(t, "the record is removed", func() bool { return c.leader().Record("n9").Removed })

	for _, n := range c.nodes {
		n.stop()
	}
	out.start()
	eventually(t, "it still knows, without the others", func() bool { return out.Status().Lifecycle == cluster.Dead })
}

// TestRemovalOfAPromotedNodeThatBrokeOff: a voter is removed whose record still says that it joins. What is left when
// that stops halfway is a removal, and no addition.
func TestRemovalOfAPromotedNodeThatBrokeOff(t *testing.T) {
	t.Parallel()
	c, leader := startCluster(t, 4)
	c.write("a", "1")
	c.everywhere("a", "1")
	out := c.others(leader)[0]
	c.onLeader("half of a removal", func(n *testNode) error {
		switch {
		case !isServer(n, out.id):
			return nil
		case n == out:
			return errors.Join(errors.New("it leads"), n.TransferTo(within(t, testTimeout), to(leader.id)))
		}
		return n.RemovePromotedOnly(within(t, testTimeout), out.id)
	})
	eventually(t, "the removal is recorded", func() bool { return c.leader().Record(out.id).Removed })
	if isServer(c.leader(), out.id) {
		t.Error("it was added again")
	}
}
