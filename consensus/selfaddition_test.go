package consensus_test

import (
	"fmt"
	"testing"

	"northstar/cluster"
)

// selfAddition returns the request of a node that does not run.
func selfAddition(t *testing.T) cluster.MemberAdd {
	t.Helper()
	return cluster.MemberAdd{
		ID: "n9", RaftAddress: freeAddress(t), HTTPAddress: "http-n9", Promote: true, ByNode: true,
	}
}

// TestSelfAddition_DuringRemoval: a node asks to be added while an operator removes it. Its request waits for the
// removal, and is refused then.
func TestSelfAddition_DuringRemoval(t *testing.T) {
	t.Parallel()
	c, _ := startCalmCluster(t, 3)
	add := selfAddition(t)
	c.onLeader("an addition", func(n *testNode) error { return n.AddMember(within(t, testTimeout), add) })
	leader := c.whileLeading("its own request is refused", func(n *testNode) error {
		answer := make(chan error, 1)
		err := n.RemoveMemberDuring(within(t, testTimeout), add.ID, func() {
			go func() { answer <- n.AddMember(within(t, testTimeout), add) }()
		})
		if cluster.IsCode(err, cluster.CodeNoLeader) || !n.Record(add.ID).Removed {
			return err
		}
		if err := <-answer; !cluster.IsCode(err, cluster.CodeForbidden) {
			return fmt.Errorf("answered with %w", err)
		}
		return nil
	})
	if isServer(leader, add.ID) {
		t.Error("it is a member")
	}
	add.ByNode = false
	c.onLeader("an operator's addition", func(n *testNode) error { return n.AddMember(within(t, testTimeout), add) })
}

// TestSelfAddition_BeforeTheLeaderStart: a new leader that has not applied the removal of a node is asked by that node.
func TestSelfAddition_BeforeTheLeaderStart(t *testing.T) {
	t.Parallel()
	c, _ := startCluster(t, 3)
	add := selfAddition(t)
	c.onLeader("an addition", func(n *testNode) error { return n.AddMember(within(t, testTimeout), add) })
	c.remove(add.ID)
	eventually(t, "a call is answered", func() bool { // it is not when leadership moves, as on a busy machine
		leader := c.leaderThatCommitsNothing()
		answer := make(chan error, 1)
		go func() { answer <- leader.AddMember(within(t, testTimeout), add) }()
		eventually(t, "it waits, or was refused",
			func() bool { return leader.ChangeInProgress() || len(answer) > 0 })
		rec, _ := leader.View().Member(add.ID)
		for _, n := range c.nodes {
			n.drop(nil)
		}
		err := <-answer
		if !cluster.IsCode(err, cluster.CodeNoLeader) {
			wantCode(t, err, cluster.CodeForbidden)
			return !rec.Removed // otherwise it had applied the removal
		}
		return false
	})
}
