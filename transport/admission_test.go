package transport

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"northstar/cluster"
)

// A node that the hello refuses delivers no Raft message, so it cannot raise the other node's term.
func TestRefusedNode_MessagesDoNotReachRaft(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*cluster.Peer){
		"foreign cluster": func(p *cluster.Peer) { p.ClusterID = "other" },
		"old generation":  func(p *cluster.Peer) { p.Generation.Number = 0 },
		"rival recovery":  func(p *cluster.Peer) { p.Generation.RecoveryID = "b" },
		"wiped disk":      func(p *cluster.Peer) { p.Incarnation = "new" },
	} {
		t.Run(name, func(t *testing.T) {
			gen := cluster.Generation{Number: 1, RecoveryID: "a"}
			victim := newEnd(t, "n1", as(func(p *cluster.Peer) { p.Generation = gen }))
			victim.remember("n3", cluster.Record{Incarnation: "inc-n3"})
			got := victim.bind()
			stranger := newEnd(t, "n3", as(func(p *cluster.Peer) { p.Generation = gen; change(p) }))
			if _, err := stranger.vote(victim, 99); err == nil {
				t.Error("its vote was answered")
			}
			if _, err := stranger.preVote(victim, 99); err == nil {
				t.Error("its pre-vote was answered")
			}
			if _, err := stranger.append(victim, func(r *raft.AppendEntriesRequest) { r.Term = 99 }); err == nil {
				t.Error("its append was answered")
			}
			if n := reached(got); n != 0 {
				t.Errorf("%d messages reached raft", n)
			}
			if len(stranger.refusals()) == 0 {
				t.Error("it was not told why")
			}
		})
	}
}

// While this node was away, another node was wiped and re-admitted. As leader it may replicate to this node. They
// exchange votes once this node has caught up.
func TestLeaderThatWasReadmitted(t *testing.T) {
	t.Parallel()
	for name, old := range map[string]cluster.Record{
		"wiped":   {Incarnation: "inc-n2", AsOfIndex: 100},
		"removed": {Incarnation: "inc-n2", Removed: true, AsOfIndex: 100},
	} {
		t.Run(name, func(t *testing.T) {
			again := newEnd(t, "n2", as(func(p *cluster.Peer) { p.Incarnation, p.RecordedIndex = "new", 100 }))
			behind := newEnd(t, "n1")
			behind.leader.Store(cluster.NodeID("n2"))
			behind.remember("n2", old)
			got, asked := behind.bind(), again.bind()
			if _, err := again.append(behind, nil); err == nil {
				t.Error("it is believed although this node knows as much")
			}
			again.set(func(p *cluster.Peer) { p.RecordedIndex = 101 })
			if _, err := again.append(behind, nil); err == nil {
				t.Error("it is believed although no other member confirms its record")
			}
			old.Confirmed = "new"
			behind.remember("n2", old)

			if r, err := again.append(behind, nil); err != nil || !r.Success {
				t.Errorf("its entries: %+v, %v", r, err)
			}
			if r, err := again.heartbeat(behind); err != nil || !r.Success {
				t.Errorf("its heartbeat: %+v, %v", r, err)
			}
			if r, err := again.install(behind, 500, nil); err != nil || !r.Success {
				t.Errorf("its snapshot: %+v, %v", r, err)
			}
			if n := reached(got); n != 3 {
				t.Errorf("%d messages reached raft, want 3", n)
			}
			if v, err := again.vote(behind, 99); err != nil || v.Granted || v.Term != 5 {
				t.Errorf("its vote: %+v, %v; want a refusal in term 5", v, err)
			}
			if v, err := again.preVote(behind, 99); err != nil || v.Granted || v.Term != 5 {
				t.Errorf("its pre-vote: %+v, %v; want a refusal in term 5", v, err)
			}
			if err := again.timeoutNow(behind); !errors.As(err, new(*TimeoutNowUndelivered)) {
				t.Errorf("its TimeoutNow: %v", err)
			}
			if n := behind.rejected("vote/outdated") + behind.rejected("prevote/outdated") + behind.rejected(
				"timeout_now/no_votes"); n != 3 {
				t.Errorf("%d were counted: %v", n, behind.rejects)
			}
			if _, err := behind.vote(again, 99); !errors.Is(err, errNoVotes) {
				t.Errorf("it was asked for its vote: %v", err)
			}
			if _, err := behind.preVote(again, 99); !errors.Is(err, errNoVotes) {
				t.Errorf("it was asked for its pre-vote: %v", err)
			}
			if n := reached(got) + reached(asked); n != 0 {
				t.Errorf("%d more messages reached raft", n)
			}

			behind.remember("n2", cluster.Record{Incarnation: "new", AsOfIndex: 101})
			for _, pair := range [][2]*end{{again, behind}, {behind, again}} {
				if v, err := pair[0].vote(pair[1], 99); err != nil || !v.Granted {
					t.Errorf("caught up: %s asks %s for its vote: %+v, %v", pair[0].id, pair[1].id, v, err)
				}
			}
		})
	}
}

// A node was admitted, and is refused later on the same connection.
func TestAdmissionIsCheckedForEachMessage(t *testing.T) {
	t.Parallel()
	n1, n2 := newEnd(t, "n1"), newEnd(t, "n2")
	got := n1.bind()
	if v, err := n2.vote(n1, 6); err != nil || !v.Granted {
		t.Fatalf("vote: %+v, %v", v, err)
	}
	reached(got)
	n1.remember("n2", cluster.Record{Removed: true})
	v, err := n2.vote(n1, 99)
	if err != nil || v.Granted || v.Term != 5 {
		t.Errorf("vote of a removed node: %+v, %v; want a refusal in term 5", v, err)
	}
	if _, err := n2.append(n1, nil); err == nil {
		t.Error("append of a removed node was accepted")
	}
	if n := reached(got); n != 0 {
		t.Errorf("%d messages reached raft", n)
	}
	eventually(t, "the next hello tells it why", func() bool {
		_, _ = n2.vote(n1, 99)
		r := n2.refusals()
		return len(r) > 0 && r[0] == cluster.RefusedRemoved
	})
}

// A node with a cluster ID and a node without one exchange no votes, in either direction.
func TestNoVotesWithoutClusterID(t *testing.T) {
	t.Parallel()
	with, without := newEnd(t, "n1"), newEnd(t, "n2", noID)
	gotWith, gotWithout := with.bind(), without.bind()
	if v, err := without.vote(with, 99); err == nil {
		t.Errorf("it asked: %+v", v)
	}
	if v, err := with.preVote(without, 99); err == nil {
		t.Errorf("it asked: %+v", v)
	}
	// Request the vote without the candidate's own guard.
	for from, to := range map[*end]*end{with: without, without: with} {
		var resp raft.RequestVoteResponse
		req := &raft.RequestVoteRequest{RPCHeader: from.header(), Term: 99}
		err := from.to(to).RequestVote(raft.ServerID(to.id), raft.ServerAddress(to.addr), req, &resp)
		if err != nil || resp.Granted || resp.Term != 5 {
			t.Errorf("%s answers %+v, %v; want a refusal in term 5", to.id, resp, err)
		}
		if n := to.rejected("vote/no_cluster_id"); n != 1 {
			t.Errorf("%s counted %d", to.id, n)
		}
	}
	if n := reached(gotWith) + reached(gotWithout); n != 0 {
		t.Errorf("%d messages reached raft", n)
	}
}

// A node whose data directory is empty takes no part in a cluster without an ID: it may have voted, and stored
// entries, before its disk was wiped.
func TestEmptyDataDirectoryExchangesNoVotes(t *testing.T) {
	t.Parallel()
	n1, n2 := newEnd(t, "n1", noID), newEnd(t, "n2", empty)
	n1.bind()
	got := n2.bind()
	if v, err := n1.vote(n2, 99); err == nil {
		t.Errorf("it was asked: %+v", v)
	}
	var resp raft.RequestVoteResponse // past the asker's own guard
	req := &raft.RequestVoteRequest{RPCHeader: n1.header(), Term: 99}
	if err := n1.to(n2).RequestVote("n2", raft.ServerAddress(n2.addr), req, &resp); err != nil || resp.Granted ||
		resp.Term != 5 {
		t.Errorf("it answers %+v, %v; want a refusal in term 5", resp, err)
	}
	if _, err := n1.append(n2, nil); err == nil {
		t.Error("it took entries")
	}
	if _, err := n1.heartbeat(n2); err == nil {
		t.Error("it took a heartbeat")
	}
	if n := reached(got); n != 0 {
		t.Errorf("%d messages reached raft", n)
	}
	// Once it has bootstrapped too, they exchange votes after new hellos.
	n2.set(func(p *cluster.Peer) { p.Start = cluster.StartBootstrapped })
	eventually(t, "they vote for one another", func() bool {
		to, err := n1.vote(n2, 6)
		from, err2 := n2.vote(n1, 6)
		return err == nil && err2 == nil && to.Granted && from.Granted
	})
}

// This node neither grants its vote to a peer whose incarnation it could not record, nor requests that peer's vote.
func TestNoVotesWithoutARecord(t *testing.T) {
	t.Parallel()
	n1, n2 := newEnd(t, "n1", noID), newEnd(t, "n2", noID)
	n1.bind()
	n2.bind()
	n1.recordErr = errors.New("disk full")
	if v, err := n1.vote(n2, 6); err == nil {
		t.Errorf("it asked: %+v", v)
	}
	if v, err := n2.vote(n1, 6); err != nil || v.Granted {
		t.Errorf("it answers %+v, %v", v, err)
	}
}

// A leader without a cluster ID sends no entries to a peer whose incarnation it has not recorded, even if the peer
// would accept them.
func TestNoEntriesWithoutARecord(t *testing.T) {
	t.Parallel()
	n1, n2 := newEnd(t, "n1", noID), newEnd(t, "n2", noID)
	n1.bind()
	got := n2.bind()
	n1.recordErr = errors.New("disk full")
	if _, err := n1.append(n2, nil); err == nil {
		t.Error("entries were sent")
	}
	if _, err := n1.heartbeat(n2); err == nil {
		t.Error("a heartbeat was sent")
	}
	if _, err := n1.install(n2, 500, nil); err == nil {
		t.Error("a snapshot was sent")
	}
	if n := reached(got); n != 0 {
		t.Errorf("%d messages reached raft", n)
	}
	n1.mu.Lock()
	n1.recordErr = nil
	n1.mu.Unlock()
	if _, err := n1.append(n2, nil); err != nil {
		t.Errorf("once it is recorded: %v", err)
	}
}

// A leader without a cluster ID cannot lead a node that has one: its log would replace the other's.
func TestLeaderWithoutClusterID_IsRefusedByNodeWithOne(t *testing.T) {
	t.Parallel()
	with, without := newEnd(t, "n1"), newEnd(t, "n2", noID)
	with.leader.Store(cluster.NodeID("n2"))
	got := with.bind()
	if _, err := without.append(with, nil); err == nil {
		t.Error("its entries were accepted")
	}
	if _, err := without.heartbeat(with); err == nil {
		t.Error("its heartbeat was accepted")
	}
	if _, err := without.install(with, 500, nil); err == nil {
		t.Error("its snapshot was accepted")
	}
	if err := without.timeoutNow(with); err == nil {
		t.Error("its TimeoutNow was accepted")
	}
	if n := reached(got); n != 0 {
		t.Errorf("%d messages reached raft", n)
	}
}

// A leader that has adopted a cluster ID continues to lead, also over a connection whose hello had none. Such a
// connection was in use when the others were closed for the adoption.
func TestLeaderLeadsOnceItHasAdopted(t *testing.T) {
	t.Parallel()
	with, without := newEnd(t, "n1"), newEnd(t, "n2", noID)
	with.leader.Store(cluster.NodeID("n2"))
	with.bind()
	if _, err := without.append(with, nil); err == nil {
		t.Fatal("its entries were accepted")
	}
	without.set(func(p *cluster.Peer) { p.ClusterID = with.peer().ClusterID })
	eventually(t, "its entries are accepted", func() bool {
		_, err := without.append(with, nil)
		return err == nil
	})
}

// This node adopts a cluster ID between the hello of a connection and its handover to Raft. The connection is closed:
// otherwise the peer would still assume that this node has no cluster ID.
func TestHelloRepeatedAfterAdoption(t *testing.T) {
	t.Parallel()
	hellos := make(chan struct{}, 10)
	n2 := newEnd(t, "n2")
	n1 := newEnd(t, "n1", noID, func(_ *Config, e *end) {
		e.onHello = func() {
			hellos <- struct{}{}
			e.set(func(p *cluster.Peer) { p.ClusterID = n2.peer().ClusterID })
		}
	})
	n1.leader.Store(cluster.NodeID("n2"))
	n1.bind()
	eventually(t, "the second hello", func() bool {
		_, _ = n2.append(n1, nil) // the first connection ends under it
		return len(hellos) == 2
	})
	if _, err := n2.append(n1, nil); err != nil || len(hellos) != 2 {
		t.Errorf("after that: %v, %d hellos", err, len(hellos))
	}
}

// After both have adopted, they exchange votes again, although both have recorded the other's old hello.
func TestVotesFlowAfterAdoption(t *testing.T) {
	t.Parallel()
	n1, n2 := newEnd(t, "n1", noID), newEnd(t, "n2", noID)
	n1.bind()
	n2.bind()
	for _, pair := range [][2]*end{{n1, n2}, {n2, n1}} {
		if v, err := pair[0].vote(pair[1], 6); err != nil || !v.Granted {
			t.Fatalf("before: %+v, %v", v, err)
		}
	}
	for _, e := range []*end{n1, n2} {
		e.set(func(p *cluster.Peer) { p.ClusterID = "c1" })
		e.tr.ResetPeers()
	}
	for _, pair := range [][2]*end{{n1, n2}, {n2, n1}} {
		if v, err := pair[0].vote(pair[1], 7); err != nil || !v.Granted {
			t.Errorf("after: %+v, %v", v, err)
		}
	}
}

// The leader knows immediately that a node has adopted its cluster ID, also if only monitor connections had a hello.
func TestAdoptionIsKnown(t *testing.T) {
	t.Parallel()
	inBubble(t, 2, func(t *testing.T, ends []*end) {
		leader, n2 := ends[0], ends[1]
		n2.bind()
		acquaint(t, ends...)
		leader.set(func(p *cluster.Peer) { p.ClusterID = "c1" })
		if err := n2.tr.adopt(leader.peer()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Millisecond)
		synctest.Wait()
		leader.mu.Lock()
		defer leader.mu.Unlock()
		if last := leader.known[len(leader.known)-1]; last.ClusterID != "c1" {
			t.Errorf("the leader's newest hello of n2 has the cluster ID %q", last.ClusterID)
		}
	}, noID)
}

func TestAdoptBeforeTheFirstEntry(t *testing.T) {
	t.Parallel()
	leader, n2 := newEnd(t, "n1"), newEnd(t, "n2", noID)
	var before string
	n2.bindOnly()
	n2.serve(func(rpc raft.RPC) {
		before = n2.peer().ClusterID
		answer(&rpc, 5)
	})
	if _, err := leader.append(n2, nil); err != nil {
		t.Fatal(err)
	}
	if before != "c1" {
		t.Errorf("the entry reached raft while the cluster ID was %q", before)
	}
}

func TestFailedAdoptionKeepsEntriesOut(t *testing.T) {
	t.Parallel()
	leader, n2 := newEnd(t, "n1"), newEnd(t, "n2", noID)
	n2.adoptErr = errors.New("disk full")
	got := n2.bind()
	if _, err := leader.append(n2, nil); err == nil || !strings.Contains(err.Error(), "disk full") {
		t.Errorf("append: %v", err)
	}
	if _, err := leader.heartbeat(n2); err == nil {
		t.Error("a heartbeat was accepted")
	}
	if n := reached(got); n != 0 {
		t.Errorf("%d messages reached raft", n)
	}
}

// A leader of an older term is not adopted: raft will refuse it.
func TestStaleLeaderIsNotAdopted(t *testing.T) {
	t.Parallel()
	leader, n2 := newEnd(t, "n1"), newEnd(t, "n2", noID)
	n2.bind()
	_, _ = leader.append(n2, func(r *raft.AppendEntriesRequest) { r.Term = 4 })
	if id := n2.peer().ClusterID; id != "" {
		t.Errorf("adopted %q", id)
	}
}

// A client that ignores the refusal cannot send messages.
func TestRefusedConnectionIsClosed(t *testing.T) {
	t.Parallel()
	n1, n3 := newEnd(t, "n1"), newEnd(t, "n3", as(func(p *cluster.Peer) { p.ClusterID = "other" }))
	got := n1.bind()
	conn, x, err := n3.tr.open(t.Context(), n1.addr, purposeRaft, "n1")
	if err != nil || x.refused() == nil {
		t.Fatal(err, x)
	}
	defer conn.Close()
	_, _ = conn.Write(encode(t, int(wireRequestVote), &raft.RequestVoteRequest{RPCHeader: n3.header(), Term: 99}))
	if n, _ := conn.Read(make([]byte, 1)); n != 0 {
		t.Error("answered")
	}
	if _, ok := n1.raft.peers["n3"]; ok || reached(got) != 0 {
		t.Error("it got as far as raft")
	}
}

func TestDialExpectsThePeer(t *testing.T) {
	t.Parallel()
	n1, n3 := newEnd(t, "n1"), newEnd(t, "n3")
	got := n3.bind()
	var resp raft.AppendEntriesResponse
	err := n1.raft.sendAppend("n2", raft.ServerAddress(n3.addr), &raft.AppendEntriesRequest{
		RPCHeader: n1.header(),
		Term:      5,
	}, &resp)
	if !errors.Is(err, errIdentity) || reached(got) != 0 {
		t.Errorf("a message for n2 was sent to n3: %v", err)
	}
	if len(n3.refusals()) != 0 {
		t.Error("n3 was told that it is refused")
	}
}

// After ResetPeers both directions make a new hello, and lose no message.
func TestResetPeersRepeatsHello(t *testing.T) {
	t.Parallel()
	n1, n2 := newEnd(t, "n1"), newEnd(t, "n2")
	n1.bind()
	n2.bind()
	hellos := func() int {
		n2.mu.Lock()
		defer n2.mu.Unlock()
		return len(n2.known)
	}
	if _, err := n1.heartbeat(n2); err != nil {
		t.Fatal(err)
	}
	if _, err := n1.heartbeat(n2); err != nil || hellos() != 1 {
		t.Fatalf("%v, %d hellos", err, hellos())
	}
	n1.tr.ResetPeers()
	if _, err := n1.heartbeat(n2); err != nil || hellos() != 2 {
		t.Errorf("%v, %d hellos", err, hellos())
	}
	n2.tr.ResetPeers() // n1 finds its connection closed
	eventually(t, "n1 says hello again", func() bool {
		_, err := n1.heartbeat(n2)
		return err == nil && hellos() == 3
	})
}

// TestResetPeers_InUse: a connection whose message is in progress at ResetPeers is not used again either.
func TestResetPeers_InUse(t *testing.T) {
	t.Parallel()
	n1, n2 := newEnd(t, "n1"), newEnd(t, "n2")
	n1.bind()
	n2.bindOnly()
	arrived, held := make(chan struct{}, 1), make(chan struct{})
	n2.serve(func(rpc raft.RPC) {
		select {
		case arrived <- struct{}{}:
		default:
		}
		<-held
		rpc.Respond(&raft.AppendEntriesResponse{RPCHeader: n2.header(), Term: 5, Success: true}, nil)
	})
	done := make(chan error, 1)
	go func() {
		_, err := n1.append(n2, nil)
		done <- err
	}()
	<-arrived
	n1.tr.ResetPeers()
	close(held)
	if err := <-done; err != nil {
		t.Errorf("the message in progress: %v", err)
	}
	eventually(t, "n1 says hello again", func() bool {
		_, err := n1.append(n2, nil)
		return err == nil && n2.hellos() >= 2
	})
}

func TestMessagesBearTheConnectionsIdentity(t *testing.T) {
	t.Parallel()
	n1, n2 := newEnd(t, "n1"), newEnd(t, "n2")
	got := n2.bind()
	for name, change := range map[string]func(*raft.AppendEntriesRequest){
		"another ID":      func(r *raft.AppendEntriesRequest) { r.ID = []byte("n3") },
		"no ID":           func(r *raft.AppendEntriesRequest) { r.ID = nil },
		"another address": func(r *raft.AppendEntriesRequest) { r.Addr = []byte("10.0.0.1:1") },
		"no address":      func(r *raft.AppendEntriesRequest) { r.Addr = nil },
	} {
		if _, err := n1.append(n2, change); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if n := reached(got); n != 0 {
		t.Errorf("%d messages reached raft", n)
	}
	if n := n2.rejected("append/identity"); n != 4 {
		t.Errorf("rejected %d, want 4", n)
	}
	if _, err := n1.append(n2, nil); err != nil {
		t.Errorf("a good message: %v", err)
	}
}
