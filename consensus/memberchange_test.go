package consensus_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"northstar/cluster"
	"northstar/state"
)

// TestWipedNode wipes the disk of a node. The node must not vote again as if it had never voted, and must not rejoin
// by itself. It must rejoin when an operator re-admits it.
func TestWipedNode(t *testing.T) {
	t.Parallel()
	c, leader := startCalmCluster(t, 3)
	c.write("a", "1")
	wiped := c.others(leader)[0]
	// Until its record is known, it may come with any data directory.
	eventually(t, "its data directory is on the roster", func() bool {
		m, _ := leader.View().Member(wiped.id)
		return m.Incarnation != ""
	})
	wiped.stop()
	wiped.wipe()
	term := leader.Status().Term
	wiped.start()
	eventually(t, "the wiped node is refused", func() bool {
		st := wiped.Status()
		return st.Lifecycle == cluster.Dead && st.DeadReason != ""
	})
	eventually(t, "it may not start an election", func() bool { return !wiped.MayStartElection() })
	if st := leader.Status(); st.Term != term || st.Role != cluster.Leader {
		t.Errorf("it disturbed the leader: %+v", st)
	}
	if _, ok := wiped.View().Get("a"); ok {
		t.Error("it was admitted")
	}
	leader = c.onLeader("a patch", func(n *testNode) error {
		return n.PatchMember(within(t, testTimeout), wiped.id, cluster.MemberPatch{Readmit: true})
	})
	eventually(t, "the wiped node is admitted", func() bool { return wiped.has("a", "1") })
	eventually(t, "it is a voter again", func() bool { return wiped.Status().Suffrage() == cluster.Voter })
	eventually(t, "it is active", func() bool { return wiped.Status().Lifecycle == cluster.Active })
}

func TestJoinAndPromotion(t *testing.T) {
	t.Parallel()
	c, leader := startCalmCluster(t, 3)
	c.write("a", "1")
	joiner := c.addNode("n4")
	joiner.join = true
	joiner.start()
	ctx := within(t, testTimeout)
	add := cluster.MemberAdd{ID: "n4", RaftAddress: joiner.addr, HTTPAddress: "http-n4", Promote: true}
	for range 2 { // the second changes nothing
		leader = c.onLeader("an addition", func(n *testNode) error { return n.AddMember(ctx, add) })
	}
	eventually(t, "n4 has the data", func() bool { return joiner.has("a", "1") })
	eventually(t, "n4 is a voter", func() bool { return joiner.Status().Suffrage() == cluster.Voter })
	eventually(t, "n4 is active", func() bool { return joiner.Status().Lifecycle == cluster.Active })
	if joiner.Identity().ClusterID != leader.Identity().ClusterID {
		t.Error("n4 has not adopted the cluster ID")
	}
	joiner.restart()
	eventually(t, "n4 follows again", func() bool { return joiner.Status().LeaderID == leader.id })

	leader = c.remove("n4")
	wantStatus(t, leader.RemoveMember(ctx, "n4"), 404)
	joiner.restart()
	eventually(t, "the removed node is refused", func() bool { return joiner.Status().Lifecycle == cluster.Dead })
	if len(leader.Status().Servers) != 3 {
		t.Errorf("servers %v", leader.Status().Servers)
	}
}

// TestInterruptedAddMember_IsResumed: of an addition only the record got into the log. The next leader does the rest.
func TestInterruptedAddMember_IsResumed(t *testing.T) {
	t.Parallel()
	c, _ := startCalmCluster(t, 3)
	joiner := c.addNode("n4")
	joiner.join = true
	joiner.start()
	half := cluster.Member{
		ID: "n4", RaftAddress: joiner.addr, HTTPAddress: "http-n4",
		Priority: cluster.DefaultPriority, Eligible: true, Lifecycle: cluster.Joining,
	}
	c.onLeader("half of an addition", func(n *testNode) error {
		_, err := n.Propose(within(t, testTimeout), state.Command{Kind: state.KindMember, Member: &half})
		return err
	})
	eventually(t, "n4 is a voter", func() bool { return joiner.Status().Suffrage() == cluster.Voter })
}

// TestPromotion_NeedsTheLog: a voter that has none of the log could leave a majority that cannot commit. What a node
// acknowledged before it was wiped does not count.
func TestPromotion_NeedsTheLog(t *testing.T) {
	t.Parallel()
	c, leader := startCalmCluster(t, 3)
	c.write("a", "1")
	ctx := within(t, testTimeout)
	voter, nonVoter := cluster.Voter, cluster.NonVoter
	promote := func(n *testNode) error {
		return leader.PatchMember(ctx, n.id, cluster.MemberPatch{Suffrage: &voter})
	}
	refused := func(n *testNode) {
		t.Helper()
		wantCode(t, promote(n), cluster.CodeQuorumAtRisk)
		plan, err := leader.PlanChange(ctx,
			cluster.MemberChange{ID: n.id, Patch: &cluster.MemberPatch{Suffrage: &voter}})
		if err != nil || plan.Refusal == nil || plan.Refusal.Code != cluster.CodeQuorumAtRisk {
			t.Errorf("plan %+v, %v", plan, err)
		}
	}
	late := c.addNode("n4")
	late.join = true
	leader = c.onLeader("an addition", func(n *testNode) error {
		return n.AddMember(ctx, cluster.MemberAdd{ID: late.id, RaftAddress: late.addr, HTTPAddress: "http-n4"})
	})
	refused(late)
	late.start()
	eventually(t, "n4 is made a voter once it has the log", func() bool { return promote(late) == nil })

	again := c.others(leader)[0]
	eventually(t, "all are in contact", func() bool { return healthy(leader, again.id) && healthy(leader, late.id) })
	leader = c.onLeader("a patch",
		func(n *testNode) error { return n.PatchMember(ctx, again.id, cluster.MemberPatch{Suffrage: &nonVoter}) })
	eventually(t, "one that was a voter just now is made one again", func() bool { return promote(again) == nil })
	again.stop()
	leader = c.remove(again.id)
	leader = c.onLeader("an addition", func(n *testNode) error {
		return n.AddMember(ctx, cluster.MemberAdd{ID: again.id, RaftAddress: again.addr, HTTPAddress: "http-" +
			string(again.id)})
	})
	refused(again)
}

func wantStatus(t *testing.T, err error, status int) {
	t.Helper()
	var e *cluster.Error
	if !errors.As(err, &e) || e.HTTPStatus() != status {
		t.Fatalf("got %v, want status %d", err, status)
	}
}

func TestMembershipRefusals(t *testing.T) {
	t.Parallel()
	c, leader := startCalmCluster(t, 3)
	ctx := within(t, testTimeout)
	prio, bad := 300, cluster.Suffrage("maybe")
	wantStatus(t, leader.PatchMember(ctx, "n9", cluster.MemberPatch{}), 404)
	wantStatus(t, leader.PatchMember(ctx, "n1", cluster.MemberPatch{Priority: &prio}), 400)
	wantStatus(t, leader.PatchMember(ctx, "n1", cluster.MemberPatch{Suffrage: &bad}), 400)
	wantStatus(t, leader.AddMember(ctx, cluster.MemberAdd{ID: "N!", RaftAddress: "x"}), 400)
	wantStatus(t, leader.AddMember(ctx, cluster.MemberAdd{ID: "n5", RaftAddress: leader.addr}), 400)
	wantStatus(t, leader.AddMember(ctx, cluster.MemberAdd{ID: "n1", RaftAddress: "x:1", HTTPAddress: "http-n1"}), 400)
	wantStatus(t, leader.AddMember(ctx, cluster.MemberAdd{
		ID: "n1", RaftAddress: c.nodes["n1"].addr,
		HTTPAddress: "elsewhere",
	}), 400)
	wantCode(t, c.others(leader)[0].AddMember(ctx, cluster.MemberAdd{ID: "n5", RaftAddress: "x:1"}),
		cluster.CodeNoLeader)

	prio = 7
	leader = c.onLeader("a patch",
		func(n *testNode) error { return n.PatchMember(ctx, "n1", cluster.MemberPatch{Priority: &prio}) })
	if m, _ := leader.View().Member("n1"); m.Priority != 7 {
		t.Errorf("priority %d", m.Priority)
	}
}

// TestRemoveMember_KeepsTheQuorum: with one voter of three down, the other follower may not be removed. The one that is
// down may.
func TestRemoveMember_KeepsTheQuorum(t *testing.T) {
	t.Parallel()
	c, leader := startCluster(t, 3)
	down := c.others(leader)[0]
	down.stop()
	c.whileLeading("a removal is refused", func(leader *testNode) error {
		eventually(t, "the stopped node is missed", func() bool { return !inContact(leader, down.id) })
		err := leader.RemoveMember(within(t, testTimeout), c.others(leader)[0].id)
		if !cluster.IsCode(err, cluster.CodeQuorumAtRisk) || len(leader.Status().Servers) != 3 {
			return fmt.Errorf("answered with %w, servers %v", err, leader.Status().Servers)
		}
		return nil
	})
	leader = c.remove(down.id)
	if n := cluster.CountVoters(leader.Status().Servers); n != 2 {
		t.Errorf("%d voters", n)
	}
}

// TestAdmissionByRemovedPeer_DoesNotCount: an admission by a removed node does not count, and one by a member does.
func TestAdmissionByRemovedPeer_DoesNotCount(t *testing.T) {
	t.Parallel()
	c, leader := startCalmCluster(t, 3)
	gone, stays := c.others(leader)[0], c.others(leader)[1]
	admitted := func(by cluster.NodeID) bool {
		leader.OnAdmitted(by)
		return leader.AcceptedBy(by)
	}
	if !admitted(gone.id) {
		t.Error("an admission by a member does not count")
	}
	eventually(t, "all are in contact", func() bool { return healthy(leader, gone.id) && healthy(leader, stays.id) })
	leader = c.remove(gone.id)
	if admitted(gone.id) || !admitted(stays.id) {
		t.Error("an admission by a removed node counts, or one by a member does not")
	}
}

// TestRemoveLeader removes the leader through itself: leadership moves first.
func TestRemoveLeader(t *testing.T) {
	t.Parallel()
	c, old := startCalmCluster(t, 3)
	c.write("a", "1")
	eventually(t, "both followers can take over", func() bool {
		return healthy(old, c.others(old)[0].id) && healthy(old, c.others(old)[1].id)
	})
	wantCode(t, old.RemoveMember(within(t, testTimeout), old.id), cluster.CodeNoLeader)
	eventually(t, "repeating it does it",
		func() bool { return c.leader().RemoveMember(within(t, testTimeout), old.id) == nil })
	if c.leader() == old {
		t.Error("it removed itself while it led")
	}
	old.stop()
	c.write("b", "1")
}

// TestRemoveLeader_Successor: leadership does not move to a voter that must not lead, although that is the first one in
// the configuration. If no other may lead, nothing happens.
func TestRemoveLeader_Successor(t *testing.T) {
	t.Parallel()
	c, old := startCalmCluster(t, 3)
	c.write("a", "1")
	none := 0
	ineligible, heir := c.others(old)[0], c.others(old)[1]
	for _, n := range []*testNode{ineligible, heir} {
		c.onLeader("no priority for "+string(n.id), func(l *testNode) error {
			return l.PatchMember(within(t, testTimeout), n.id, cluster.MemberPatch{Priority: &none})
		})
	}
	c.awaitHealthy(old)
	err := old.RemoveMember(within(t, testTimeout), old.id)
	wantCode(t, err, cluster.CodeQuorumAtRisk)
	if !strings.Contains(err.Error(), "node "+string(ineligible.id)+" has priority 0") || c.leader() != old {
		t.Errorf("%v; %s leads", err, c.leader().id)
	}
	some := 1
	if err := old.PatchMember(within(t, testTimeout), heir.id, cluster.MemberPatch{Priority: &some}); err != nil {
		t.Fatal(err)
	}
	wantCode(t, old.RemoveMember(within(t, testTimeout), old.id), cluster.CodeNoLeader)
	if l := c.leader(); l != heir {
		t.Errorf("%s leads, which must not", l.id)
	}
}

// TestMoveAddress_QuorumAtRisk moves a voter to an address where no node listens while a third one is down. The leader
// would lose its quorum with the entry, and could never take it back.
func TestMoveAddress_QuorumAtRisk(t *testing.T) {
	t.Parallel()
	c, leader := startCalmCluster(t, 3)
	c.write("a", "1")
	down, other := c.others(leader)[0], c.others(leader)[1]
	down.stop()
	eventually(t, "the leader misses a follower", func() bool {
		p, err := leader.PlanChange(within(t, testTimeout), cluster.MemberChange{ID: other.id})
		return err == nil && p.Refusal != nil && p.Refusal.Code == cluster.CodeQuorumAtRisk
	})
	unused := freeAddress(t)
	for _, n := range []*testNode{other, leader} {
		wantCode(t, leader.PatchMember(within(t, testTimeout), n.id, cluster.MemberPatch{RaftAddress: &unused}),
			cluster.CodeQuorumAtRisk)
	}
	err := leader.PatchMember(within(t, testTimeout), down.id, cluster.MemberPatch{RaftAddress: &unused})
	if err != nil {
		t.Error(err)
	}
	c.write("b", "1")
}

// TestPatchOfSeveralSteps_RefusedAsAWhole: a voter may not move when it is one of two. A patch that promotes a node and
// moves it changes nothing then, as its dry run says.
func TestPatchOfSeveralSteps_RefusedAsAWhole(t *testing.T) {
	t.Parallel()
	c, leader := startCalmCluster(t, 1)
	other := c.addNode("n2")
	other.join = true
	other.start()
	ctx := within(t, testTimeout)
	leader = c.onLeader("an addition", func(n *testNode) error {
		return n.AddMember(ctx, cluster.MemberAdd{ID: other.id, RaftAddress: other.addr, HTTPAddress: "http-n2"})
	})
	voter, unused, zone := cluster.Voter, freeAddress(t), "x"
	plan := func(p cluster.MemberPatch) *cluster.Error {
		plan, err := leader.PlanChange(ctx, cluster.MemberChange{ID: other.id, Patch: &p})
		if err != nil {
			t.Fatal(err)
		}
		return plan.Refusal
	}
	eventually(t, "n2 can become a voter", func() bool { return plan(cluster.MemberPatch{Suffrage: &voter}) == nil })
	all := cluster.MemberPatch{Suffrage: &voter, RaftAddress: &unused, Zone: &zone}
	wantCode(t, leader.PatchMember(ctx, other.id, all), cluster.CodeQuorumAtRisk)
	if refusal := plan(all); refusal == nil || refusal.Code != cluster.CodeQuorumAtRisk {
		t.Errorf("the dry run is refused with %+v", refusal)
	}
	rec, _ := leader.View().Member(other.id)
	server, _ := cluster.FindServer(leader.Status().Servers, other.id)
	if rec.Zone != "" || rec.RaftAddress != other.addr || server.Suffrage != cluster.NonVoter ||
		server.Address != other.addr {
		t.Errorf("record %+v, server %+v", rec, server)
	}
}

// TestOldMemberVersion_DoesNotBlockWrites adds a member that says nothing about what it reads: calls go on with what is
// in the log already, as audit records, and what needs a newer build is refused.
func TestOldMemberVersion_DoesNotBlockWrites(t *testing.T) {
	t.Parallel()
	c, leader := startCalmCluster(t, 1)
	c.write("a", "1")
	write := func() {
		t.Helper()
		r, err := leader.Propose(within(t, testTimeout), state.Command{
			Kind: state.KindPut, Put: &state.Put{Key: "k", Value: []byte("v")},
			Audit: &state.AuditRecord{Who: "ann", What: "PUT /v1/kv/k"},
		})
		if err != nil || r.Err != nil {
			t.Fatal(err, r.Err)
		}
	}
	batch := state.Command{Kind: state.KindAudit, AuditBatch: &state.AuditBatch{
		Producer: "b", First: 1,
		Records: []state.AuditRecord{{Who: "bob"}},
	}}
	eventually(t, "the leader's own record says what it reads",
		func() bool { return leader.ReadsVersion() == state.CommandVersion })
	write()
	if _, err := leader.Propose(within(t, testTimeout), batch); err != nil {
		t.Fatal(err)
	}
	leader = c.onLeader("an addition", func(n *testNode) error {
		return n.AddMember(within(t, testTimeout), cluster.MemberAdd{
			ID: "n9", RaftAddress: "127.0.0.1:1",
			HTTPAddress: "h",
		})
	})
	write()
	_, err := leader.Propose(within(t, testTimeout), state.Command{
		Kind: state.KindLeaseGrant, LeaseGrant: &state.LeaseGrant{ID: 1, TTL: 10},
	})
	wantStatus(t, err, 409)
	made, err := leader.Propose(within(t, testTimeout), state.Command{
		Kind:          state.KindSessionCreate,
		SessionCreate: &state.SessionCreate{Nonce: "abcdefgh", TTL: state.MinSessionTTL, Owner: "client ann"},
	})
	if err != nil || made.Err != nil || made.Session.Owner != "" {
		t.Errorf("%+v, %v: want a session without an owner", made, err)
	}
	if n := leader.View().AuditCounts().Records; n != [2]uint64{3, 0} {
		t.Errorf("records %v", n)
	}
}

// A new process takes a call before it has read its log. The command has the call's audit record although the process
// learns only later which command versions all members read.
func TestAuditRecordOfACallBeforeTheLeaderStart(t *testing.T) {
	t.Parallel()
	c, leader := startCluster(t, 3)
	eventually(t, "the records say what members read",
		func() bool { return leader.ReadsVersion() == state.CommandVersion })
	c.write("a", "1")
	c.everywhere("a", "1")
	call := 0
	eventually(t, "a call is answered", func() bool { // it is not when leadership moves, as on a busy machine
		call++
		leader = c.leaderThatCommitsNothing()
		proposed := make(chan error, 1)
		go func() {
			_, err := leader.Propose(within(t, testTimeout), state.Command{
				Kind: state.KindPut, Put: &state.Put{Key: "k", Value: []byte("v")},
				Audit: &state.AuditRecord{Who: "ann", What: fmt.Sprint("call ", call)},
			})
			proposed <- err
		}()
		eventually(t, "it waits, is in the log already, or was refused",
			func() bool { return leader.HasWrites() || len(proposed) > 0 })
		for _, n := range c.nodes {
			n.drop(nil)
		}
		err := <-proposed
		if err != nil && !cluster.IsCode(err, cluster.CodeNoLeader) {
			wantCode(t, err, cluster.CodeOutcomeUnknown)
		}
		return err == nil
	})
	var recorded []string
	for r := range leader.View().AuditAfter(0) {
		recorded = append(recorded, r.What)
	}
	if want := fmt.Sprint("call ", call); !slices.Contains(recorded, want) {
		t.Errorf("recorded are %q, want %q", recorded, want)
	}
}
