package consensus_test

import (
	"testing"

	"northstar/cluster"
	"northstar/transport"
)

// TestReadmittedLeader: while one node is down another is removed, wiped, added
// again and made the leader. The one that comes back has the old data directory
// on record, or that there is no such member, and hears otherwise from nobody
// but that leader.
func TestReadmittedLeader(t *testing.T) {
	for name, seesTheRemoval := range map[string]bool{"down before the removal": false, "down before the addition": true} {
		t.Run(name, func(t *testing.T) {
			c, leader := startCluster(t, 4)
			c.write("a", "1")
			c.everywhere("a", "1")
			down, again := c.others(leader)[0], c.others(leader)[1]
			eventually(t, "its data directory is on record", func() bool { return recordsOnDisk(down)[again.id].Incarnation != "" })
			if !seesTheRemoval {
				down.stop()
			}
			ctx := within(t, 3*patience)
			eventually(t, "it is removed", func() bool {
				err := c.leader().RemoveMember(ctx, again.id)
				return err == nil || c.leader().Record(again.id).Removed
			})
			if seesTheRemoval {
				eventually(t, "its removal is on record", func() bool { return recordsOnDisk(down)[again.id].Removed })
				down.stop()
			}
			again.stop()
			again.wipe()
			again.start()
			eventually(t, "it is added", func() bool {
				return c.leader().AddMember(ctx, cluster.MemberAdd{ID: again.id, RaftAddress: again.addr, HTTPAddress: "http-" + string(again.id), Promote: true}) == nil
			})
			eventually(t, "it is a voter", func() bool { return again.Status().Suffrage() == cluster.Voter })
			leads := func() bool {
				if l := c.leader(); l != again { // or again: on a busy machine it may lose its place
					_ = l.TransferTo(ctx, to(again.id))
				}
				return c.leader() == again
			}
			eventually(t, "it leads", leads)

			for _, n := range c.others(again) { // the library's leader of before still sends what it had begun
				n.drop(func(m transport.Message) bool { return m.To == down.id })
			}
			down.start()
			eventually(t, "it is followed", func() bool { return leads() && down.Status().LeaderID == again.id })
			c.write("b", "1")
			c.everywhere("b", "1")
			if rec := down.Record(again.id); rec.Incarnation != again.Identity().Incarnation || rec.Removed {
				t.Errorf("on record is %+v, its data directory is %s", rec, again.Identity().Incarnation)
			}
		})
	}
}

// recordsOnDisk gives what a node knows of the members after a restart.
func recordsOnDisk(n *testNode) map[cluster.NodeID]cluster.Record {
	return n.LocalPeer().Roster.Records
}
