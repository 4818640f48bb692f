package consensus_test

import (
	"testing"
	"time"

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

// TestOnceTheOnlyVoter takes a node in again that was the only voter once, and
// lets it have no more of the log than up to then. It must not elect itself.
func TestOnceTheOnlyVoter(t *testing.T) {
	c, once := startCluster(t, 3)
	voter, nonVoter := cluster.Voter, cluster.NonVoter
	ctx := within(t, 3*patience)
	suffrage := func(s *cluster.Suffrage) {
		for _, n := range c.others(once) {
			eventually(t, "it is a "+string(*s), func() bool {
				_ = c.leader().PatchMember(ctx, n.id, cluster.MemberPatch{Suffrage: s})
				return n.Status().Suffrage() == *s
			})
		}
	}
	suffrage(&nonVoter)
	before := once.Status().LastLogIndex
	for range 40 { // more than one message holds
		c.write("a", "1")
	}
	suffrage(&voter)
	next := c.others(once)[0]
	eventually(t, "another leads", func() bool {
		if c.leader() == once {
			_ = once.TransferTo(ctx, to(next.id))
		}
		return c.leader() != once
	})
	eventually(t, "it is removed", func() bool {
		err := c.leader().RemoveMember(ctx, once.id)
		return err == nil || c.leader().Record(once.id).Removed
	})
	once.stop()
	once.wipe()
	once.start()
	for _, n := range c.others(once) {
		n.drop(func(m transport.Message) bool { return m.To == once.id && once.Status().LastLogIndex > 0 })
	}
	eventually(t, "it is added", func() bool {
		return c.leader().AddMember(ctx, cluster.MemberAdd{ID: once.id, RaftAddress: once.addr, HTTPAddress: "http-" + string(once.id), Promote: true}) == nil
	})
	eventually(t, "it has the beginning of the log", func() bool { return once.Status().LastLogIndex > 0 })
	if last := once.Status().LastLogIndex; last < before || once.Status().Suffrage() != cluster.Voter || len(once.Status().Servers) == 0 {
		t.Fatalf("it has the log up to %d, and is a %s; want %d at least, and the only voter", last, once.Status().Suffrage(), before)
	}
	for end := time.Now().Add(4 * timeoutMax); time.Now().Before(end); time.Sleep(timeoutMin / 10) {
		if st := once.Status(); st.Role != cluster.Follower {
			t.Fatalf("it is a %s of term %d", st.Role, st.Term)
		}
	}
	for _, n := range c.others(once) {
		n.drop(nil)
	}
	eventually(t, "it leads, as it has caught up", func() bool {
		if l := c.leader(); l != once {
			_ = l.TransferTo(ctx, to(once.id))
		}
		return c.leader() == once
	})
	c.write("b", "1")
	c.everywhere("b", "1")
}

// recordsOnDisk gives what a node knows of the members after a restart.
func recordsOnDisk(n *testNode) map[cluster.NodeID]cluster.Record {
	return n.LocalPeer().Roster.Records
}
