package library

import (
	"errors"
	"io"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"
)

// A vote is two writes. After a crash between them a node grants the candidate
// of its vote before, whose log lacks what this one's has, without looking.
func TestTornVote(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newDisk(1, "abc")
		n := start(t, "a", d)
		if !hear[raft.RequestVoteResponse](t, n, voteFor("c", 2, 1, 1)).Granted {
			t.Fatal("no first vote")
		}
		hear[raft.AppendEntriesResponse](t, n, appendOf("b", 3, 1, 1, 2, entry(2, 3, "committed")))
		n.stop()
		n = start(t, "a", d)
		if hear[raft.RequestVoteResponse](t, n, voteFor("c", 4, 1, 1)).Granted {
			t.Fatal("grants an old log without a crash")
		}
		d.set(nil, func(key string) error {
			if key == "LastVoteCand" {
				return errors.New("power lost")
			}
			return nil
		})
		hear[raft.RequestVoteResponse](t, n, voteFor("b", 5, 2, 3))
		n.stop()

		d.set(nil, nil)
		n = start(t, "a", d)
		if !hear[raft.RequestVoteResponse](t, n, voteFor("c", 5, 1, 1)).Granted {
			t.Fatal("refuses a log without its own last entry")
		}
		t.Log("grants a candidate that lacks its entry 2")
	})
}

// A vote is kept by the candidate's address: another node that has it is granted
// the same term.
func TestVotesCompareAddresses(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := start(t, "a", newDisk(1, "abc"))
		first := hear[raft.RequestVoteResponse](t, n, voteFor("b", 2, 1, 1))
		other := voteFor("b", 2, 1, 1)
		other.ID = []byte("c")
		second := hear[raft.RequestVoteResponse](t, n, other)
		if !first.Granted || !second.Granted {
			t.Fatalf("b %v, c %v", first.Granted, second.Granted)
		}
		t.Log("b and c are granted term 2")
	})
}

// A node that has lost its disk votes a second time in a term, for any candidate.
func TestWipedDiskVotesAgain(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := start(t, "a", newDisk(1, "abc", entry(2, 1, "committed")))
		first := hear[raft.RequestVoteResponse](t, n, voteFor("b", 2, 2, 1))
		n.stop()
		n = start(t, "a", &disk{InmemStore: raft.NewInmemStore(), snaps: raft.NewInmemSnapshotStore()})
		second := hear[raft.RequestVoteResponse](t, n, voteFor("c", 2, 1, 1))
		if !first.Granted || !second.Granted {
			t.Fatalf("b %v, c %v", first.Granted, second.Granted)
		}
		t.Log("b and c are granted term 2; c lacks entry 2")
	})
}

// A voter that restarts has forgotten its leader and grants a vote immediately.
func TestRestartForgetsTheLeader(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newDisk(1, "abc")
		n := start(t, "a", d)
		hear[raft.AppendEntriesResponse](t, n, appendOf("b", 2, 1, 1, 0))
		if hear[raft.RequestVoteResponse](t, n, voteFor("c", 3, 1, 1)).Granted {
			t.Fatal("grants while it has a leader")
		}
		n.stop()
		n = start(t, "a", d)
		asked := time.Now()
		if !hear[raft.RequestVoteResponse](t, n, voteFor("c", 3, 1, 1)).Granted {
			t.Fatal("refuses after a restart")
		}
		t.Logf("refused before, granted %v after the restart", time.Since(asked))
	})
}

// An error with certain words counts as a granted pre-vote: the node raises its
// term although no peer can vote for it.
func TestPreVoteErrorCountsAsGranted(t *testing.T) {
	for words, raised := range map[string]bool{"unexpected command": true, "unexpected problem": false} {
		bubble(t, func(t *testing.T) {
			n := start(t, "a", newDisk(1, "abc"))
			n.wire.set(func(raft.ServerAddress, any, io.Reader) (any, error) {
				return nil,
					errors.New("refused: " + words)
			})
			time.Sleep(10 * time.Second)
			if got := n.CurrentTerm() > 1; got != raised {
				t.Fatalf("%q: term %d", words, n.CurrentTerm())
			}
			t.Logf("%q: term %d", words, n.CurrentTerm())
		})
	}
}

// A transport inside of another one is no WithPreVote any more: pre-votes are off.
func TestEmbeddedTransportHasNoPreVote(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := &node{wire: newWire("a"), disk: newDisk(1, "abc"), fsm: &words{}}
		n.startWith(t, n.disk, n.disk.snaps, struct{ raft.Transport }{n.wire})
		time.Sleep(10 * time.Second)
		if n.CurrentTerm() == 1 {
			t.Fatal("the term stays")
		}
		t.Logf("alone for 10 s: term %d", n.CurrentTerm())
	})
}

// Any node's TimeoutNow makes a node leave its leader and start an election, and its request
// is granted by a voter that hears its leader.
func TestTimeoutNowIsNotChecked(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := start(t, "a", newDisk(1, "abc"))
		var asked atomic.Pointer[raft.RequestVoteRequest]
		n.wire.set(func(_ raft.ServerAddress, cmd any, _ io.Reader) (any, error) {
			if m, ok := cmd.(*raft.RequestVoteRequest); ok {
				asked.CompareAndSwap(nil, m)
			}
			return n.wire.hang()
		})
		voter := start(t, "b", newDisk(1, "abc"))
		for _, follower := range []*node{n, voter} {
			hear[raft.AppendEntriesResponse](t, follower, appendOf("c", 2, 1, 1, 0))
		}
		hear[raft.TimeoutNowResponse](t, n, &raft.TimeoutNowRequest{RPCHeader: from("stranger")})
		await(t, "it asks for votes", func() bool { return asked.Load() != nil })
		got := hear[raft.RequestVoteResponse](t, voter, asked.Load())
		if n.CurrentTerm() != 3 || !got.Granted {
			t.Fatalf("term %d, granted %v", n.CurrentTerm(), got.Granted)
		}
		t.Log("a stranger's word: term 3, and a vote of a follower that hears its leader")
	})
}

// A candidate that waits for pre-votes takes a TimeoutNow, and starts no election.
func TestTimeoutNowToACandidate(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := start(t, "a", newDisk(1, "abc"))
		await(t, "it is a candidate", func() bool { return n.State() == raft.Candidate })
		for range 10 {
			hear[raft.TimeoutNowResponse](t, n, &raft.TimeoutNowRequest{RPCHeader: from("c")})
			time.Sleep(5 * time.Second)
		}
		if n.CurrentTerm() != 1 {
			t.Fatalf("term %d: it has started an election", n.CurrentTerm())
		}
		t.Log("told ten times, accepted each time: still term 1")
	})
}

// A candidate that began with a TimeoutNow acknowledges the appends of its term's leader and remains a candidate. It
// asks for the next pre-votes directly after such an acknowledgement.
func TestCandidateAcknowledgesAndGoesOn(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := start(t, "a", newDisk(1, "abc"))
		var asked atomic.Pointer[raft.RequestPreVoteRequest]
		n.wire.set(func(_ raft.ServerAddress, cmd any, _ io.Reader) (any, error) {
			if m, ok := cmd.(*raft.RequestPreVoteRequest); ok {
				asked.CompareAndSwap(nil, m)
			}
			return n.wire.hang()
		})
		hear[raft.TimeoutNowResponse](t, n, &raft.TimeoutNowRequest{RPCHeader: from("c")})
		await(t, "it is a candidate of term 2", func() bool { return n.State() == raft.Candidate && n.CurrentTerm() == 2 })
		var acknowledged time.Time
		for asked.Load() == nil {
			if hear[raft.AppendEntriesResponse](t, n, appendOf("b", 2, 1, 1, 0)).Success && n.State() == raft.Candidate {
				acknowledged = time.Now()
			}
			time.Sleep(time.Millisecond)
		}
		ago := time.Since(acknowledged)
		if acknowledged.IsZero() || ago > 5*time.Millisecond || asked.Load().Term != 3 {
			t.Fatalf("acknowledged %v ago, asks for term %d", ago, asked.Load().Term)
		}
		t.Logf("asks for pre-votes of term 3, %v after it acknowledged the leader of term 2", ago)
	})
}
