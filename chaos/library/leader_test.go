// Package library holds, as tests, minimal reproductions of what goes wrong on
// bare hashicorp/raft: nothing of this project takes part but a transport and a
// disk for tests. Each passes as long as the fault shows. One that fails after an
// update of the library says that a guard may have become needless; README.md
// lists them.
package library

import (
	"io"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
)

// A heartbeat of a later leader raises the term beside the main loop, which then
// writes an entry under a term that this node never won. That leader's entry of
// the same index and term is taken for a duplicate.
func TestHeartbeatBesideTheMainLoop(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := start(t, "a", newDisk(1, "abc"))
		n.lead(t)
		n.wire.set(func(raft.ServerAddress, any, io.Reader) (any, error) { return n.wire.hang() })
		synctest.Wait() // the main loop waits for something to do
		won, last := n.CurrentTerm(), n.LastIndex()
		n.wire.heartbeat(raft.RPC{Command: appendOf("c", won+1, 0, 0, 0), RespChan: make(chan raft.RPCResponse, 1)})
		write := n.Apply([]byte("never won"), 0)
		if err := write.Error(); err == nil {
			t.Fatal("the write is committed")
		}
		var own raft.Log
		if err := n.disk.GetLog(last+1, &own); err != nil || own.Term != won+1 {
			t.Fatalf("entry %d: term %d, %v", last+1, own.Term, err)
		}
		hear[raft.AppendEntriesResponse](t, n, appendOf("c", won+1, last, won, last+1,
			entry(last+1, won+1, "committed")))
		synctest.Wait()
		if n.fsm.text() != "never won" {
			t.Fatalf("applied %q", n.fsm.text())
		}
		t.Logf("elected in term %d; applied %q of term %d, where c has committed another", won, n.fsm.text(), own.Term)
	})
}

// VerifyLeader counts a node without a vote: this leader reaches no voter.
func TestVerifyLeaderCountsNonVoters(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := start(t, "a", newDisk(1, "abcD"))
		n.lead(t)
		n.wire.set(func(to raft.ServerAddress, cmd any, data io.Reader) (any, error) {
			if to != "D" {
				return nil, errCut
			}
			return agree(to, cmd, data)
		})
		time.Sleep(10 * time.Millisecond)
		if err := n.VerifyLeader().Error(); err != nil {
			t.Fatal(err)
		}
		t.Log("nil, with both other voters cut off")
	})
}

// VerifyLeader takes the answer to a heartbeat that was sent, and answered,
// before it was called. Since then the others may have another leader.
func TestVerifyLeaderCountsOldAnswers(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := start(t, "a", newDisk(1, "abc"))
		n.lead(t)
		var answered atomic.Int32
		arrive := make(chan struct{})
		n.wire.set(func(to raft.ServerAddress, cmd any, data io.Reader) (any, error) {
			if !isHeartbeat(cmd) || to != "b" {
				return nil, errCut
			}
			if answered.Add(1) > 1 {
				return nil, errCut
			}
			<-arrive
			return agree(to, cmd, data)
		})
		await(t, "b has answered", func() bool { return answered.Load() == 1 })
		asked := n.VerifyLeader()
		time.Sleep(time.Millisecond)
		close(arrive) // on its way since before the question
		if err := asked.Error(); err != nil {
			t.Fatal(err)
		}
		t.Log("nil, by an answer that is older than the question")
	})
}

// A heartbeat that is refused, in the same term, deposes a leader that verifies.
func TestRefusedHeartbeatDeposes(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := start(t, "a", newDisk(1, "abc"))
		n.lead(t)
		n.wire.set(refuse)
		time.Sleep(100 * time.Millisecond) // no answer of before is on its way any more; a refusal counts as contact
		if err := n.VerifyLeader().Error(); err != raft.ErrNotLeader || n.State() == raft.Leader {
			t.Fatalf("%v, %v", n.State(), err)
		}
		t.Logf("%v", raft.ErrNotLeader)
	})
}

// refuse rejects heartbeats. Other messages do not arrive.
func refuse(_ raft.ServerAddress, cmd any, _ io.Reader) (any, error) {
	if !isHeartbeat(cmd) {
		return nil, errCut
	}
	return &raft.AppendEntriesResponse{Term: cmd.(*raft.AppendEntriesRequest).Term}, nil
}

// Refusals count as contact: a leader without followers keeps its role.
func TestRefusalsAreContact(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := start(t, "a", newDisk(1, "abc"))
		n.lead(t)
		n.wire.set(refuse)
		time.Sleep(time.Minute)
		if n.State() != raft.Leader {
			t.Fatal(n.State())
		}
		t.Logf("after a minute of refusals: %v", n.State())
	})
}

// Contact is when an answer comes, not when its question was sent: one that is
// late prolongs a leader's lease by as much.
func TestContactIsWhenTheAnswerComes(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := start(t, "a", newDisk(1, "abc"))
		n.lead(t)
		var sent sync.Map
		n.wire.set(func(to raft.ServerAddress, cmd any, data io.Reader) (any, error) {
			if isHeartbeat(cmd) {
				return nil, errCut
			}
			if _, before := sent.LoadOrStore(to, true); before {
				return nil, errCut
			}
			time.Sleep(350 * time.Millisecond) // of a lease of 500
			return agree(to, cmd, data)
		})
		await(t, "an append is under way", func() bool { _, ok := sent.Load(raft.ServerAddress("b")); return ok })
		sure := time.Now()
		await(t, "it steps down", func() bool { return n.State() != raft.Leader })
		led := time.Since(sure).Round(10 * time.Millisecond)
		if led < 800*time.Millisecond {
			t.Fatalf("steps down after %v", led)
		}
		t.Logf("lease 500 ms; a leader for %v after it last sent what arrived", led)
	})
}

// errored is a pipeline whose appends fail, after a while.
type errored struct {
	after    time.Duration
	done     chan raft.AppendFuture
	inFlight atomic.Int32
}

type failedAppend struct {
	raft.AppendFuture
	req *raft.AppendEntriesRequest
}

func (f failedAppend) Error() error                          { return errCut }
func (f failedAppend) Start() time.Time                      { return time.Now() }
func (f failedAppend) Request() *raft.AppendEntriesRequest   { return f.req }
func (f failedAppend) Response() *raft.AppendEntriesResponse { return &raft.AppendEntriesResponse{} }

func (p *errored) AppendEntries(req *raft.AppendEntriesRequest, _ *raft.AppendEntriesResponse) (raft.AppendFuture,
	error,
) {
	f := failedAppend{req: req}
	if p.inFlight.Add(1) == 1 {
		time.AfterFunc(p.after, func() { p.done <- f })
	}
	return f, nil
}
func (p *errored) Consumer() <-chan raft.AppendFuture { return p.done }
func (p *errored) Close() error                       { return nil }

// A pipelined append that has failed counts as contact: a leader that is cut off
// goes on until its lease after that.
func TestFailedPipelinedAppendIsContact(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := start(t, "a", newDisk(1, "abc"))
		n.lead(t)
		n.wire.mu.Lock()
		n.wire.pipeline = func() (raft.AppendPipeline, error) {
			return &errored{after: 400 * time.Millisecond, done: make(chan raft.AppendFuture, 1)}, nil
		}
		n.wire.mu.Unlock()
		if err := n.Barrier(0).Error(); err != nil { // later appends use pipelines
			t.Fatal(err)
		}
		n.wire.set(silent)
		left := time.Now()
		await(t, "it steps down", func() bool { return n.State() != raft.Leader })
		if time.Since(left) < 800*time.Millisecond {
			t.Fatalf("steps down after %v", time.Since(left))
		}
		t.Logf("lease 500 ms; cut off, and a leader for %v", time.Since(left).Round(10*time.Millisecond))
	})
}

// A lease below the longest time between two heartbeats ends though all is well.
func TestShortLeaseFlaps(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := start(t, "a", newDisk(1, "abc"), func(c *raft.Config) {
			c.LeaderLeaseTimeout, c.CommitTimeout = 120*time.Millisecond, time.Minute
		})
		n.lead(t)
		term := n.CurrentTerm()
		await(t, "it leads in another term", func() bool { return n.CurrentTerm() > term })
		t.Log("has stepped down, with every message answered in 1 ms")
	})
}

// A leader with a hung disk still sends heartbeats: no other node is elected.
func TestHungDiskKeepsItsLeader(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := start(t, "a", newDisk(1, "abc"))
		n.lead(t)
		free := make(chan struct{})
		n.disk.set(func() error { <-free; return nil }, nil)
		lost := n.Apply([]byte("x"), 0)
		time.Sleep(time.Minute)
		ago := time.Since(n.wire.lastHeartbeat()).Round(time.Millisecond)
		if n.State() != raft.Leader || ago > time.Second {
			t.Fatalf("%v, last heartbeat %v ago", n.State(), ago)
		}
		t.Logf("after a minute: %v, last heartbeat %v ago", n.State(), ago)
		close(free)
		_ = lost.Error()
	})
}

// The main loop of a leader blocks when its NotifyCh has no reader.
func TestNotifyChBlocksTheMainLoop(t *testing.T) {
	bubble(t, func(t *testing.T) {
		notify := make(chan bool)
		n := start(t, "a", newDisk(1, "abc"), func(c *raft.Config) { c.NotifyCh = notify })
		n.wire.set(agree)
		await(t, "it leads", func() bool { return n.State() == raft.Leader })
		if err := n.Apply([]byte("x"), time.Minute).Error(); err != raft.ErrEnqueueTimeout {
			t.Fatal(err)
		}
		t.Logf("a write after a minute: %v", raft.ErrEnqueueTimeout)
	})
}

// An observer that waits for its reader blocks the main loop, and one that does not
// misses what comes while its channel is full.
func TestObserversBlockOrMiss(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := start(t, "a", newDisk(1, "abc"))
		missing := raft.NewObserver(make(chan raft.Observation), false, nil)
		n.RegisterObserver(missing)
		waiting := make(chan raft.Observation)
		blocking := raft.NewObserver(waiting, true, nil)
		n.RegisterObserver(blocking)
		n.wire.set(agree)
		time.Sleep(time.Minute)
		if n.State() == raft.Leader {
			t.Fatal("it leads, and nobody reads")
		}
		done := make(chan struct{})
		go func() {
			for {
				select {
				case <-waiting:
				case <-done:
					return
				}
			}
		}()
		await(t, "it leads", func() bool { return n.State() == raft.Leader })
		synctest.Wait()
		n.DeregisterObserver(blocking)
		close(done)
		if missing.GetNumDropped() == 0 {
			t.Fatal("it has missed nothing")
		}
		t.Log("a minute without a leader, until somebody reads; the other missed some")
	})
}

// The timeout of an Apply covers only its time in the queue. The wait for an entry that is
// in the log has no limit.
func TestApplyTimeoutEndsWithTheQueue(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := start(t, "a", newDisk(1, "abc"))
		n.lead(t)
		var free atomic.Bool
		n.wire.set(func(to raft.ServerAddress, cmd any, data io.Reader) (any, error) {
			if m, ok := cmd.(*raft.AppendEntriesRequest); ok && len(m.Entries) > 0 && !free.Load() {
				return nil, errCut
			}
			return agree(to, cmd, data)
		})
		begun := time.Now()
		f := n.Apply([]byte("x"), time.Second)
		time.AfterFunc(time.Minute, func() { free.Store(true) })
		if err := f.Error(); err != nil || time.Since(begun) < time.Minute {
			t.Fatalf("%v after %v", err, time.Since(begun))
		}
		t.Logf("timeout 1s, answered after more than %v", time.Minute)
	})
}

// LeaderCh keeps the last change only: leadership that was lost and won again
// reads as one election.
func TestLeaderChCoalesces(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := start(t, "a", newDisk(1, "abc"))
		n.lead(t)
		hear[raft.AppendEntriesResponse](t, n, appendOf("c", n.CurrentTerm()+1, 1, 1, 0))
		n.lead(t)
		if first := <-n.LeaderCh(); !first || len(n.LeaderCh()) > 0 {
			t.Fatalf("%v, %d more", first, len(n.LeaderCh()))
		}
		t.Logf("elected twice, last in term %d; one true", n.CurrentTerm())
	})
}

// After a dozen failed appends the library waits for up to 10 s between two:
// a peer that is back gets no entries for so long.
func TestReturningPeerWaitsForAppends(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := start(t, "a", newDisk(1, "abc"))
		n.lead(t)
		var back, caught atomic.Bool
		n.wire.set(func(to raft.ServerAddress, cmd any, data io.Reader) (any, error) {
			if to == "b" && !back.Load() {
				return nil, errCut
			}
			if to == "b" && !isHeartbeat(cmd) {
				caught.Store(true)
			}
			return agree(to, cmd, data)
		})
		time.Sleep(65 * time.Second)
		back.Store(true)
		since := time.Now()
		await(t, "an append", caught.Load)
		waited := time.Since(since).Round(100 * time.Millisecond)
		if waited < 2*time.Second {
			t.Fatalf("an append after %v", waited)
		}
		t.Logf("back for %v without an append", waited)
	})
}
