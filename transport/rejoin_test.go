package transport

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"northstar/cluster"
)

// startingInBubble runs a test in virtual time. start makes an end, on a network of pipes.
func startingInBubble(t *testing.T, test func(t *testing.T, start func(id string) *end)) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		network := newSimNet()
		test(t, func(id string) *end {
			return newEndOn(t, cluster.NodeID(id), network.listen(id+":1"),
				func(cfg *Config, _ *end) { cfg.Dial = network.dial })
		})
	})
}

// A message that comes while a node starts waits for Raft, and for TimeoutMin at most.
func TestMessageWaitsForRaft(t *testing.T) {
	startingInBubble(t, func(t *testing.T, start func(string) *end) {
		n1, n2 := start("n1"), start("n2")
		began := time.Now()
		if _, err := n1.append(n2, nil); err == nil || !strings.Contains(err.Error(), errNotReady.Error()) {
			t.Errorf("got %v", err)
		}
		if d := time.Since(began); d < testMin || d > testMin+2*minFailureDelay {
			t.Errorf("it has waited for %v", d)
		}
		began = time.Now()
		var sending sync.WaitGroup
		sending.Go(func() {
			if r, err := n1.append(n2, nil); err != nil || !r.Success {
				t.Errorf("got %+v, %v", r, err)
			}
		})
		time.Sleep(testMin / 2)
		n2.bind()
		sending.Wait()
		if d := time.Since(began); d != testMin/2 {
			t.Errorf("it was answered after %v", d)
		}
	})
}

// A leader records the data directory of a node after the hello of their connection. Raft does not run on that node
// before it adopts the cluster's ID, which the leader's next message brings.
func TestHelloRepeatedOnceRecorded(t *testing.T) {
	startingInBubble(t, func(t *testing.T, start func(string) *end) {
		leader, late := start("n1"), start("n2")
		late.set(func(p *cluster.Peer) { p.ClusterID = "" })
		if _, err := leader.append(late, nil); err == nil || late.peer().ClusterID != "" {
			t.Fatalf("not recorded: %v, cluster ID %q", err, late.peer().ClusterID)
		}
		leader.remember("n2", cluster.Record{Incarnation: late.peer().Incarnation})
		_, _ = leader.append(late, nil) // Raft does not run yet
		if id := late.peer().ClusterID; id != "c1" {
			t.Errorf("recorded, and has the cluster ID %q", id)
		}
	})
}

// A leader sends the next heartbeat to a peer that was down as soon as that peer has said hello.
func TestHeartbeatFollowsTheHello(t *testing.T) {
	startingInBubble(t, func(t *testing.T, start func(string) *end) {
		n1 := start("n1")
		n1.bind()
		var sending sync.WaitGroup
		var answered time.Time
		sending.Go(func() {
			req := raft.AppendEntriesRequest{RPCHeader: n1.header(), Term: 5}
			var resp raft.AppendEntriesResponse
			if err := n1.raft.AppendEntries("n2", "n2:1", &req, &resp); err != nil || !resp.Success {
				t.Errorf("got %+v, %v", resp, err)
			}
			answered = time.Now()
		})
		time.Sleep(10 * time.Second)
		n2 := start("n2")
		n2.bind()
		if _, _, err := n2.tr.Probe(t.Context(), "n1:1"); err != nil {
			t.Fatal(err)
		}
		returned := time.Now()
		sending.Wait()
		if d := answered.Sub(returned); d > minFailureDelay {
			t.Errorf("it was sent %v after the hello", d)
		}
	})
}

// A leader that has yielded for a while is heard again as soon as it leads on: its followers would elect another one.
func TestHeartbeatsAfterAPause(t *testing.T) {
	startingInBubble(t, func(t *testing.T, start func(string) *end) {
		n1, n2 := start("n1"), start("n2")
		n1.bind()
		n2.bind()
		n1.replicationPaused.Store(true)
		var sending sync.WaitGroup
		sending.Go(func() {
			req := raft.AppendEntriesRequest{RPCHeader: n1.header(), Term: 5}
			if err := n1.raft.AppendEntries("n2", "n2:1", &req, new(raft.AppendEntriesResponse)); err != nil {
				t.Error(err)
			}
		})
		time.Sleep(time.Second + time.Millisecond)
		n1.replicationPaused.Store(false)
		resumed := time.Now()
		sending.Wait()
		if d := time.Since(resumed); d > firstHeartbeatDelay+minFailureDelay {
			t.Errorf("it was heard %v later", d)
		}
	})
}

// A leader that has lost its term, or the peer as a member, repeats no heartbeat.
func TestHeartbeatsEndWithTheLeadership(t *testing.T) {
	startingInBubble(t, func(t *testing.T, start func(string) *end) {
		n1 := start("n1")
		n1.bind()
		var sending sync.WaitGroup
		sending.Go(func() {
			req := raft.AppendEntriesRequest{RPCHeader: n1.header(), Term: 5}
			if n1.raft.AppendEntries("n2", "n2:1", &req, new(raft.AppendEntriesResponse)) == nil {
				t.Error("nobody can have answered")
			}
		})
		time.Sleep(10 * time.Second)
		n1.term.Store(6)
		over := time.Now()
		sending.Wait()
		if d := time.Since(over); d > testMin {
			t.Errorf("it ended %v after the leadership", d)
		}
	})
}

// A peer that returns gets the commit index immediately. If it lacks entries, its refusal is the answer to the append
// that failed, so that raft goes on from the peer's last entry without a pause. Otherwise raft gets the error: the peer
// has not got that append. So it does if the peer's log is long enough for the append: raft would step back before it.
func TestReturningPeerGetsTheCommitIndex(t *testing.T) {
	type peer struct {
		lacks bool   // entries
		last  uint64 // index of its log
	}
	for name, p := range map[string]peer{
		"it lacks entries": {true, 40}, "it has all": {false, 40}, "it has others": {true, 51},
	} {
		t.Run(name, func(t *testing.T) {
			lacks, older := p.lacks, p.last < 51
			startingInBubble(t, func(t *testing.T, start func(string) *end) {
				n1 := start("n1")
				n1.bind()
				n1.commitMessage = func(term uint64) (*raft.AppendEntriesRequest, error) {
					return &raft.AppendEntriesRequest{
						RPCHeader: n1.header(), Term: term, PrevLogEntry: 50, PrevLogTerm: 5, LeaderCommitIndex: 50,
					}, nil
				}
				var sending sync.WaitGroup
				sending.Go(func() {
					req := raft.AppendEntriesRequest{
						RPCHeader: n1.header(), Term: 5, PrevLogEntry: 51, PrevLogTerm: 5, LeaderCommitIndex: 48,
						Entries: []*raft.Log{{Index: 52, Term: 5, Type: raft.LogCommand, Data: []byte("x")}},
					}
					var resp raft.AppendEntriesResponse
					err := n1.raft.AppendEntries("n2", "n2:1", &req, &resp)
					refused := err == nil && !resp.Success && resp.LastLog == 40
					if want := lacks && older; refused != want || !want && err == nil {
						t.Errorf("got %+v, %v", resp, err)
					}
				})
				time.Sleep(10 * time.Second)
				n2 := start("n2")
				var got []uint64
				n2.bindOnly()
				n2.serve(func(rpc raft.RPC) {
					c := rpc.Command.(*raft.AppendEntriesRequest)
					if c.PrevLogEntry != 0 {
						got = append(got, c.PrevLogEntry)
					}
					rpc.Respond(&raft.AppendEntriesResponse{
						Term: 5, LastLog: p.last, Success: c.PrevLogEntry == 0 || !lacks, NoRetryBackoff: true,
					}, nil)
				})
				if _, err := n1.heartbeat(n2); err != nil {
					t.Fatal(err)
				}
				sending.Wait()
				if len(got) != 1 || got[0] != 50 || n2.leaderCommit.Load() != 50 {
					t.Errorf("it got appends behind %v, and commit index %d", got, n2.leaderCommit.Load())
				}
			})
		})
	}
}

// An append is sent again if the pooled connection was one to the peer's former process.
func TestAppendOnADeadConnection(t *testing.T) {
	t.Parallel()
	n1, n2 := newEnd(t, "n1"), newEnd(t, "n2")
	for range 2 {
		n2.bind()
		if r, err := n1.append(n2, nil); err != nil || !r.Success {
			t.Fatalf("got %+v, %v", r, err)
		}
		n2 = newEndOn(t, "n2", n2.relisten())
	}
}

// Any failure of an append is delayed, also a refusal of the peer: raft waits longer after each one.
func TestRefusedAppendIsDelayed(t *testing.T) {
	startingInBubble(t, func(t *testing.T, start func(string) *end) {
		n1 := start("n1")
		n1.bind()
		for _, err := range []error{errors.New("no"), errNotReady, errReplicationPaused} {
			n1.replicationPaused.Store(errors.Is(err, errReplicationPaused))
			var waiting sync.WaitGroup
			var delay time.Duration
			waiting.Go(func() {
				began := time.Now()
				n1.raft.awaitRetryable(err, "n2", "n2:1", 5)
				delay = time.Since(began)
			})
			time.Sleep(time.Minute)
			n1.tr.acks.contact("n2", time.Now())
			n1.replicationPaused.Store(false)
			waiting.Wait()
			if delay < time.Minute || delay > time.Minute+testMin {
				t.Errorf("%v: it was delayed by %v", err, delay)
			}
		}
	})
}
