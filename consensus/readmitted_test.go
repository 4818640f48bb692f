package consensus_test

import (
	"bytes"
	"cmp"
	"errors"
	"runtime/debug"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"northstar/cluster"
	"northstar/transport"
)

// TestReadmittedLeader: while one node is away, another is removed, wiped, added again and made the leader. The node
// that comes back has recorded the old data directory, or that there is no such member. Only that leader can inform it
// of the new one, and the other members confirm it.
func TestReadmittedLeader(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ stops, seesTheRemoval bool }{
		"down before the removal":    {stops: true},
		"down before the addition":   {stops: true, seesTheRemoval: true},
		"without a leader meanwhile": {},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, leader := startCluster(t, 4)
			c.write("a", "1")
			c.everywhere("a", "1")
			away, again := c.others(leader)[0], c.others(leader)[1]
			leave := func() {
				if tc.stops {
					away.stop()
				}
				for _, n := range c.nodes {
					n.drop(func(m transport.Message) bool { return m.To == away.id || n == away })
				}
			}
			eventually(t, "its data directory is recorded",
				func() bool { return recordsOnDisk(away)[again.id].Incarnation != "" })
			if !tc.seesTheRemoval {
				leave()
			}
			ctx := within(t, 3*testTimeout)
			eventually(t, "it is removed", func() bool {
				err := c.leader().RemoveMember(ctx, again.id)
				return err == nil || c.leader().Record(again.id).Removed
			})
			if tc.seesTheRemoval {
				eventually(t, "its removal is recorded", func() bool { return recordsOnDisk(away)[again.id].Removed })
				leave()
			}
			again.stop()
			again.wipe()
			again.start()
			eventually(t, "it is added", func() bool {
				return c.leader().AddMember(ctx, cluster.MemberAdd{
					ID: again.id, RaftAddress: again.addr,
					HTTPAddress: "http-" + string(again.id), Promote: true,
				}) == nil
			})
			c.awaitVoter(again)
			c.transferTo(again)

			away.drop(nil) // the library's leader of before still sends what it had begun
			again.drop(nil)
			if tc.stops {
				away.start()
			}
			eventually(t, "it is followed", func() bool {
				c.transferTo(again) // on a busy machine it may have lost its place
				return away.Status().LeaderID == again.id
			})
			c.write("b", "1")
			c.everywhere("b", "1")
			if rec := away.Record(again.id); rec.Incarnation != again.Identity().Incarnation || rec.Removed {
				t.Errorf("recorded is %+v, its data directory is %s", rec, again.Identity().Incarnation)
			}
		})
	}
}

// TestReadmit_BesideARecordUpdate: a stopped node is re-admitted while the leader compares the records with the hellos.
// The leader must not record the old data directory again: the new one would be refused for ever.
func TestReadmit_BesideARecordUpdate(t *testing.T) {
	t.Parallel()
	c, leader := startCluster(t, 3)
	c.write("a", "1")
	c.everywhere("a", "1")
	again := c.others(leader)[0]
	old := again.Identity().Incarnation
	eventually(t, "its data directory is recorded", func() bool { return leader.Record(again.id).Incarnation == old })
	again.stop()
	again.wipe()
	var begun atomic.Bool
	readmitted := make(chan error, 1)
	between := func(cluster.NodeID) { // the leader has read a part of what it compares
		if bytes.Contains(debug.Stack(), []byte("gatherMembers")) && begun.CompareAndSwap(false, true) {
			readmitted <- leader.PatchMember(within(t, testTimeout), again.id, cluster.MemberPatch{Readmit: true})
		}
	}
	leader.peerAck.Store(&between)
	select {
	case err := <-readmitted:
		if err != nil {
			t.Fatal(err)
		}
	case <-time.After(testTimeout):
		t.Fatal("the leader compares nothing")
	}
	again.start()
	eventually(t, "the new data directory is recorded", func() bool {
		return leader.Record(again.id).Incarnation == again.Identity().Incarnation
	})
	c.everywhere("a", "1")
}

// awaitVoter waits until the leader has a node as a voter. The node's own log may still be that of an earlier time.
func (c *testCluster) awaitVoter(n *testNode) {
	c.t.Helper()
	eventually(c.t, string(n.id)+" is a voter", func() bool {
		s, ok := cluster.FindServer(c.leader().Status().Servers, n.id)
		return ok && s.Suffrage == cluster.Voter && n.Status().Suffrage() == cluster.Voter
	})
}

// onceTheOnlyVoter returns a cluster with a node that was once its only voter. That node is wiped and re-admitted. It
// gets the log only up to the time when it was the only voter.
func onceTheOnlyVoter(t *testing.T) (c *testCluster, once *testNode) {
	t.Helper()
	c, once = startCluster(t, 3)
	voter, nonVoter := cluster.Voter, cluster.NonVoter
	ctx := within(t, 3*testTimeout)
	suffrage := func(s *cluster.Suffrage) {
		for _, n := range c.others(once) {
			eventually(t, "it is a "+string(*s), func() bool {
				has, _ := cluster.FindServer(c.leader().Status().Servers, n.id)
				if has.Suffrage != *s { // each change is an entry, and the first message must hold all until then
					_ = c.leader().PatchMember(ctx, n.id, cluster.MemberPatch{Suffrage: s})
				}
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
		return c.leader().AddMember(ctx, cluster.MemberAdd{ID: once.id, RaftAddress: once.addr, HTTPAddress: "http-" +
			string(once.id), Promote: true}) == nil
	})
	eventually(t, "it has the beginning of the log", func() bool { return once.Status().LastLogIndex > 0 })
	if last := once.Status().LastLogIndex; last < before || once.Status().Suffrage() != cluster.Voter ||
		len(once.Status().Servers) == 0 {
		t.Fatalf("it has the log up to %d, and is a %s; want %d at least, and the only voter", last,
			once.Status().Suffrage(), before)
	}
	return c, once
}

// TestOnceTheOnlyVoter: a node was once the only voter, and has the log up to that time. It must not elect itself,
// even if another node sends a TimeoutNow or an operator requests it.
func TestOnceTheOnlyVoter(t *testing.T) {
	t.Parallel()
	c, once := onceTheOnlyVoter(t)
	ctx := within(t, 3*testTimeout)
	if _, err := once.tr.Raft().StartElection(ctx, once.Status().Term, cluster.CauseOperator); err == nil {
		t.Error("it starts an election at an operator's request")
	}
	for end := time.Now().Add(noElection); time.Now().Before(end); time.Sleep(timeoutMin / 10) {
		if st := once.Status(); st.Role == cluster.Leader {
			t.Fatalf("it is a %s of term %d", st.Role, st.Term)
		}
	}
	for _, n := range c.others(once) {
		n.drop(nil)
	}
	c.awaitVoter(once)
	c.transferTo(once) // it has caught up
	c.write("b", "1")
	c.everywhere("b", "1")
}

// TestRecover_JustReadmittedNode: only a node is left that was being re-admitted. An operator can recover it with the
// log that it has. It starts elections after that, and its record has its present data directory.
func TestRecover_JustReadmittedNode(t *testing.T) {
	t.Parallel()
	c, once := onceTheOnlyVoter(t)
	lost := c.others(once)
	request := c.recoveryRequest(once)
	if plan, err := once.PlanRecovery(within(t, testTimeout), request); !cluster.IsCode(err, cluster.CodeQuorumExists) {
		t.Errorf("while the others live: %+v, %v", plan, err)
	}
	lose(lost...)
	eventually(t, "a plan", func() bool {
		plan, err := once.PlanRecovery(within(t, testTimeout), request)
		return err == nil && plan.Chosen == once.id
	})
	if _, err := once.Recover(within(t, testTimeout), request); err != nil {
		t.Fatal(err)
	}
	if known, last := once.LocalPeer().Roster.Index, once.Status().LastLogIndex; known > last {
		t.Errorf("it knows the members as of entry %d, and its log ends at %d", known, last)
	}
	eventually(t, "its own data directory is recorded", func() bool {
		return once.View().Record(once.id).Incarnation == once.Identity().Incarnation
	})
	once.restart()
	c.leader()
	c.write("after", "recovery")
	for _, n := range lost {
		n.drop(nil)
		n.wipe()
		n.start()
		eventually(t, "readmission", func() bool {
			return c.leader().PatchMember(within(t, testTimeout), n.id, cluster.MemberPatch{Readmit: true}) == nil
		})
	}
	c.everywhere("after", "recovery")
}

// TestElectionBlocked_ForgetsLeader: a voter of the first configuration starts late, and has none of the log when the
// leader is lost. It must not become a candidate. It must not prevent an election either, because the other survivor
// needs its vote.
func TestElectionBlocked_ForgetsLeader(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	late := c.nodes["n3"]
	c.nodes["n1"].start()
	c.nodes["n2"].start()
	leader := c.elect()
	next := c.others(leader)[0]
	eventually(t, "the cluster is known", func() bool { // otherwise the late one takes part in the first election
		return leader.Identity().ClusterID != "" && next.Identity().ClusterID != "" &&
			recordsOnDisk(next)[leader.id].Incarnation != ""
	})
	for _, n := range []*testNode{leader, next} { // leadership may move on a busy machine
		n.drop(func(m transport.Message) bool { return m.To == late.id && m.Kind == "append" })
	}
	late.start()
	eventually(t, "it knows its leader", func() bool {
		known := c.nodes[late.Status().LeaderID]
		if known == nil || late.Identity().ClusterID == "" {
			return false
		}
		if known != leader {
			leader, next = next, leader
		}
		return true
	})
	if late.MayStartElection() {
		t.Errorf("it may start an election, with the log up to %d", late.Status().LastLogIndex)
	}
	next.drop(nil)
	lose(leader)
	if l := c.leader(); l != next {
		t.Errorf("%s leads", l.id)
	}
	c.write("a", "1")
	leader.drop(nil)
	leader.start()
	c.everywhere("a", "1")
	eventually(t, "it may start elections", late.MayStartElection)
}

// TestWipedNodeKnowsWhatIsCommitted: a voter of the first configuration started late, when another voter had gone. It
// is wiped and re-admitted, and has none of the log when only those two meet. It must not vote for the other because
// of that one's old log. The other never learned that there was another data directory.
func TestWipedNodeKnowsWhatIsCommitted(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	late := c.nodes["n3"]
	c.nodes["n1"].start()
	c.nodes["n2"].start()
	leader := c.elect()
	behind := c.others(leader)[0]
	behind.idle.Store(true)
	eventually(t, "the cluster is known", func() bool {
		return leader.Identity().ClusterID != "" && behind.Identity().ClusterID != "" && len(recordsOnDisk(behind)) > 1
	})
	var wiped atomic.Bool
	add := func(id cluster.NodeID) *testNode {
		n := c.addNode(id)
		n.join = true
		return n
	}
	ctx := within(t, 3*testTimeout)
	c.transferTo(leader) // on a busy machine who is to be behind may lead by now
	others := []*testNode{leader, add("n4"), add("n5")}
	for _, n := range append(others, late) { // who is behind hears of its leader, and of nothing else
		n.drop(func(m transport.Message) bool {
			return m.Kind == "append" && (m.To == behind.id || m.To == late.id && wiped.Load())
		})
	}
	late.idle.Store(true)
	late.start()
	eventually(t, "who came late is recorded",
		func() bool { return c.leader().View().Record(late.id).Incarnation == late.Identity().Incarnation })
	voter := cluster.Voter
	for _, n := range others[1:] {
		n.start()
		eventually(t, string(n.id)+" is added", func() bool {
			return c.leader().AddMember(ctx, cluster.MemberAdd{ID: n.id, RaftAddress: n.addr, HTTPAddress: "http-" +
				string(n.id), Promote: true}) == nil
		})
		eventually(t, string(n.id)+" is a voter", func() bool {
			_ = c.leader().PatchMember(ctx, n.id, cluster.MemberPatch{Suffrage: &voter})
			return n.Status().Suffrage() == cluster.Voter
		})
	}
	behind.stop()
	if rec := behind.Record(late.id); rec.Incarnation != "" {
		t.Fatalf("who is behind knows who came late: %+v", rec)
	}
	late.stop()
	late.wipe()
	wiped.Store(true)
	eventually(t, "readmission", func() bool {
		return c.leader().PatchMember(ctx, late.id, cluster.MemberPatch{Readmit: true}) == nil
	})
	late.start()
	eventually(t, "it is of the cluster again", func() bool { return late.Identity().ClusterID != "" })
	c.write("a", "1")
	lose(others...)
	behind.idle.Store(false)
	behind.start()
	for end := time.Now().Add(noElection); time.Now().Before(end); time.Sleep(timeoutMin / 10) {
		if st := behind.Status(); st.Role == cluster.Leader {
			t.Fatalf("the node with the oldest log leads in term %d, with entries up to %d", st.Term, st.LastLogIndex)
		}
	}
	// Each of them needs the votes of all: together they would keep a starved machine so busy with new connections that
	// none is elected.
	behind.idle.Store(true)
	for _, n := range others {
		n.idle.Store(true)
		n.drop(nil)
		n.start()
		eventually(t, "its log is there", func() bool { return n.Claim().LastLogIndex > 0 })
	}
	newest := slices.MaxFunc(others, func(a, b *testNode) int {
		x, y := a.Claim(), b.Claim()
		return cmp.Or(cmp.Compare(x.LastLogTerm, y.LastLogTerm), cmp.Compare(x.LastLogIndex, y.LastLogIndex))
	})
	newest.idle.Store(false)
	c.write("b", "1")
	for _, key := range []string{"a", "b"} {
		c.everywhere(key, "1")
	}
}

// recordsOnDisk returns the member records that a node has after a restart.
func recordsOnDisk(n *testNode) map[cluster.NodeID]cluster.Record {
	return n.LocalPeer().Roster.Records
}

// TestRemovedNodeClaimsARecord: a removed node says that it was added again, and sends entries of a later term. No
// other member confirms that, so a member does not follow it.
func TestRemovedNodeClaimsARecord(t *testing.T) {
	t.Parallel()
	c, leader := startCluster(t, 4)
	c.write("a", "1")
	c.everywhere("a", "1")
	liar, victim := c.others(leader)[0], c.others(leader)[1]
	c.remove(liar.id)
	eventually(t, "its removal is known", func() bool { return victim.Record(liar.id).Removed })
	liar.claimed.Store(1 << 60)
	later := c.leader().Status().Term + 1000
	header := raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: []byte(liar.id), Addr: []byte(liar.addr)}
	liar.tr.ResetPeers() // its next hello has the claim
	eventually(t, "its hello is refused", func() bool {
		err := liar.tr.Raft().AppendEntries(raft.ServerID(victim.id), raft.ServerAddress(victim.addr),
			&raft.AppendEntriesRequest{RPCHeader: header, Term: later},
			new(raft.AppendEntriesResponse))
		refused := (*transport.RefusedError)(nil)
		return err == nil || errors.As(err, &refused) && refused.Refusal == cluster.RefusedRemoved
	})
	if st := victim.Status(); st.Term >= later || st.LeaderID == liar.id {
		t.Errorf("term %d, leader %s", st.Term, st.LeaderID)
	}
}
