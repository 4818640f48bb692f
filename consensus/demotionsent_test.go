package consensus_test

import (
	"context"
	"sync/atomic"
	"testing"

	"northstar/cluster"
	"northstar/consensus"
	"northstar/transport"
)

// TestDemotionReachesDemotedVoterLast: a leader that reaches only one of its voters takes that voter's vote away, and
// is lost. The other voters still need that vote, so the voter must not have the longer log that would refuse it.
func TestDemotionReachesDemotedVoterLast(t *testing.T) {
	t.Parallel()
	nonVoter := cluster.NonVoter
	for name, tc := range map[string]struct {
		size   int
		change func(ctx context.Context, leader *consensus.Node, id cluster.NodeID) error
		gone   bool
	}{
		"demotion of one of four": {4, func(ctx context.Context, leader *consensus.Node, id cluster.NodeID) error {
			return leader.PatchMember(ctx, id, cluster.MemberPatch{Suffrage: &nonVoter})
		}, false},
		"removal of one of three": {3, func(_ context.Context, leader *consensus.Node, id cluster.NodeID) error {
			return leader.RemoveServerOnly(id)
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, leader := startCalmCluster(t, tc.size)
			demoted, next := c.others(leader)[0], c.others(leader)[1]
			c.write("a", "1")
			c.everywhere("a", "1")
			var heartbeats atomic.Int64
			leader.drop(func(m transport.Message) bool {
				if m.Kind == "heartbeat" && m.To == next.id {
					heartbeats.Add(1)
				}
				return m.Kind == "append" && m.To != demoted.id
			})
			ctx, node, changed := within(t, testTimeout), leader.Node, make(chan error, 1)
			go func() { changed <- tc.change(ctx, node, demoted.id) }()
			eventually(t, "the leader has appended the change", func() bool {
				s, found := cluster.FindServer(node.Status().Servers, demoted.id)
				return found != tc.gone && s.Suffrage != cluster.Voter
			})
			sent := heartbeats.Load() + 2 // the demoted node has all that it is sent by then
			eventually(t, "two heartbeats", func() bool { return heartbeats.Load() >= sent })
			lose(leader)
			if err := <-changed; err == nil {
				t.Error("the change succeeded without a majority")
			}
			eventually(t, "another node leads", next.elected)
			c.write("a", "2")
		})
	}
}

// TestVoterGetsItsFormerDemotion: a voter was away while it was demoted and promoted again. Then only it and another
// voter are up. That one leads, does not know what is committed, and needs it for that.
func TestVoterGetsItsFormerDemotion(t *testing.T) {
	t.Parallel()
	c, leader := startCalmCluster(t, 3)
	away, other := c.others(leader)[0], c.others(leader)[1]
	c.write("a", "1")
	c.everywhere("a", "1")
	away.stop()
	for _, s := range []cluster.Suffrage{cluster.NonVoter, cluster.Voter} {
		if err := leader.PatchMember(within(t, testTimeout), away.id, cluster.MemberPatch{Suffrage: &s}); err != nil {
			t.Fatal(err)
		}
	}
	c.write("a", "2")
	lose(leader, other)
	leader.start()
	away.start()
	eventually(t, "the only node with the log leads", leader.elected)
	c.write("a", "3")
}
