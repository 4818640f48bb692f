package library

import (
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
)

// committing is a log that keeps the commit index, as RestoreCommittedLogs requires.
type committing struct {
	*disk
	commit uint64
}

func (committing) StageCommitIndex(uint64) error     { return nil }
func (c committing) GetCommitIndex() (uint64, error) { return c.commit, nil }

// With RestoreCommittedLogs a node starts without the configurations that it
// skipped: it knows no servers.
func TestRestoreCommittedLogsSkipsConfigurations(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newDisk(1, "a", configuration(2, 1, "abc"))
		for restore, want := range map[bool]int{false: 3, true: 0} {
			n := &node{wire: newWire("a"), disk: d, fsm: &words{}}
			n.startWith(t, committing{d, 2}, d.snaps, n.wire, func(c *raft.Config) { c.RestoreCommittedLogs = restore })
			known := len(n.GetConfiguration().Configuration().Servers)
			if known != want {
				t.Fatalf("with %v: %d servers", restore, known)
			}
			t.Logf("RestoreCommittedLogs %v: %d servers", restore, known)
		}
	})
}

// … and with more committed entries than the queue of its state machine holds,
// of which nothing is taken yet, the start never ends. In real time: no bubble
// ends with it.
func TestRestoreCommittedLogsHangs(t *testing.T) {
	start := func(entries uint64) chan *raft.Raft {
		d := newDisk(1, "abc")
		for i := uint64(2); i <= entries; i++ {
			_ = d.StoreLog(entry(i, 1, "x"))
		}
		conf := config("a", func(c *raft.Config) { c.RestoreCommittedLogs, c.MaxAppendEntries = true, 1 })
		started := make(chan *raft.Raft, 1)
		go func() {
			if r, err := raft.NewRaft(conf, &words{}, committing{d, entries}, d, d.snaps, newWire("a")); err == nil {
				started <- r
			}
		}()
		return started
	}
	began := time.Now()
	_ = (<-start(128)).Shutdown().Error()
	took := time.Since(began)
	select {
	case <-start(129):
		t.Error("it starts with 129 entries")
	case <-time.After(20*took + 100*time.Millisecond):
		t.Logf("128 entries: %v; 129 entries: not within %v", took.Round(time.Millisecond),
			(20*took + 100*time.Millisecond).Round(time.Millisecond))
	}
}

// RecoverCluster makes committed what may not have been, in the same term.
func TestRecoverClusterCommitsEverything(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newDisk(2, "abc", entry(2, 1, "committed"), entry(3, 2, "never committed"))
		if err := raft.RecoverCluster(config("a"), &words{}, d, d, d.snaps, newWire("a"), servers("a")); err != nil {
			t.Fatal(err)
		}
		term, _ := d.GetUint64([]byte("CurrentTerm"))
		n := start(t, "a", d)
		if n.fsm.text() != "committed never committed" || term != 2 {
			t.Fatalf("%q, term %d", n.fsm.text(), term)
		}
		t.Logf("%q, term %d as before", n.fsm.text(), term)
	})
}

// Two survivors that are recovered separately lead in the same term: term and index do
// not distinguish their logs.
func TestRecoveredApart(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var terms []uint64
		for _, id := range []string{"a", "b"} {
			d := newDisk(2, "abc", entry(2, 2, "shared"))
			if err := raft.RecoverCluster(config(id), &words{}, d, d, d.snaps, newWire(id), servers(id)); err != nil {
				t.Fatal(err)
			}
			n := start(t, id, d)
			await(t, "it leads", func() bool { return n.State() == raft.Leader })
			write := n.Apply([]byte(id), 0)
			if err := write.Error(); err != nil {
				t.Fatal(err)
			}
			terms = append(terms, n.CurrentTerm(), write.Index())
		}
		if terms[0] != terms[2] || terms[1] != terms[3] {
			t.Fatal(terms)
		}
		t.Logf("both have committed entry %d of term %d, with different content", terms[1], terms[0])
	})
}

// A stop in a restore reads as a failed restore, which panics.
func TestShutdownInARestorePanics(t *testing.T) {
	panics(t, "failed to restore snapshot", func(t *testing.T) {
		n := start(t, "a", newDisk(1, "a"), quick)
		n.lead(t)
		restoring := make(chan struct{})
		n.fsm.onRestore = func() {
			close(restoring)
			<-n.wire.closed
		}
		content := shot{"x"}
		go func() {
			_ = n.Restore(&raft.SnapshotMeta{
				Version: 1, ID: "backup", Index: 1, Term: 1,
				Size: int64(len(content.bytes())),
			}, bytesOf(content), 0)
		}()
		<-restoring
		n.Shutdown()
	})
}

// A term that cannot be written panics.
func TestFailedTermPanics(t *testing.T) {
	panics(t, "failed to save current term", func(t *testing.T) {
		n := start(t, "a", newDisk(1, "a"), quick)
		n.disk.set(nil, func(string) error { return errors.New("no space") })
	})
}

// What waits for the main loop when it ends is never answered. In real time: no
// bubble ends with it.
func TestShutdownLosesFutures(t *testing.T) {
	n := start(t, "a", newDisk(1, "a"), quick, func(c *raft.Config) { c.BatchApplyCh = true })
	n.lead(t)
	free, busy := make(chan struct{}), make(chan struct{}, 1)
	n.disk.set(func() error {
		select {
		case busy <- struct{}{}:
		default:
		}
		<-free
		return nil
	}, nil)
	n.Apply([]byte("x"), 0)
	<-busy // the main loop writes
	lost := map[string]raft.Future{"Apply": n.Apply([]byte("y"), 0), "VerifyLeader": n.VerifyLeader()}
	down := n.Shutdown()
	close(free)
	if err := down.Error(); err != nil {
		t.Fatal(err)
	}
	for name, f := range lost { // all goroutines of the library have ended
		answered := make(chan error, 1)
		go func() { answered <- f.Error() }()
		select {
		case err := <-answered:
			t.Errorf("%s: %v", name, err)
		case <-time.After(100 * time.Millisecond):
			t.Logf("%s: no answer, after the end", name)
		}
	}
}

// A shutdown waits for messages in flight, and closes the transport only then.
func TestShutdownWaitsForMessages(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := start(t, "a", newDisk(1, "abc"))
		n.lead(t)
		n.wire.set(func(raft.ServerAddress, any, io.Reader) (any, error) {
			time.Sleep(time.Hour)
			return nil, errNoReply
		})
		time.Sleep(time.Second)
		began := time.Now()
		_ = n.Shutdown().Error()
		took := time.Since(began)
		if took < 50*time.Minute {
			t.Fatalf("it ends after %v", took)
		}
		t.Logf("it ends after %v", took.Round(time.Minute))
	})
}

// A restore that is done reads as one that never began: its timeout for the queue
// goes on while it restores.
func TestRestoreThatIsDoneReadsAsNotBegun(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := start(t, "a", newDisk(1, "abc"))
		n.lead(t)
		n.fsm.onRestore = func() { time.Sleep(time.Minute) }
		content := shot{"restored"}
		meta := &raft.SnapshotMeta{Version: 1, ID: "backup", Index: 1, Term: 1, Size: int64(len(content.bytes()))}
		for range 100 { // it draws lots between its timeout and the queue
			err := n.Restore(meta, bytesOf(content), time.Second)
			if errors.Is(err, raft.ErrEnqueueTimeout) && n.fsm.text() == "restored" {
				t.Logf("%v; the state: %q", err, n.fsm.text())
				return
			}
		}
		t.Fatal("never")
	})
}

// ReloadConfig treats missing values as zero.
func TestReloadConfigCopiesZero(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := start(t, "a", newDisk(1, "abc"))
		before := n.ReloadableConfig()
		err := n.ReloadConfig(raft.ReloadableConfig{
			HeartbeatTimeout: time.Second, ElectionTimeout: time.Second,
			SnapshotInterval: time.Minute,
		})
		after := n.ReloadableConfig()
		if err != nil || before.TrailingLogs == 0 || after.TrailingLogs != 0 {
			t.Fatalf("%v, %d, then %d", err, before.TrailingLogs, after.TrailingLogs)
		}
		t.Logf("trailing logs: %d, then %d", before.TrailingLogs, after.TrailingLogs)
	})
}

// A candidate takes up a shorter timeout only with a shorter one of followers.
func TestReloadConfigLeavesACandidateWaiting(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := start(t, "a", newDisk(1, "abc"), func(c *raft.Config) {
			c.HeartbeatTimeout, c.ElectionTimeout = time.Second, 365*24*time.Hour
		})
		await(t, "it is a candidate", func() bool { return n.State() == raft.Candidate })
		time.Sleep(time.Second) // its requests have failed
		n.wire.set(agree)
		timeouts := n.ReloadableConfig()
		timeouts.ElectionTimeout = time.Second
		if err := n.ReloadConfig(timeouts); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		waiting := n.State()
		timeouts.HeartbeatTimeout -= time.Millisecond
		if err := n.ReloadConfig(timeouts); err != nil {
			t.Fatal(err)
		}
		reloaded := time.Now()
		await(t, "it leads", func() bool { return n.State() == raft.Leader })
		if took := time.Since(reloaded); waiting != raft.Candidate || took > 3*time.Second {
			t.Fatalf("%v, then leader after %v", waiting, took)
		}
		t.Logf("an hour after it: %v; elected once the other timeout is shorter, too", waiting)
	})
}

// A write that fails with ErrLeadershipLost can be committed by the next leader.
func TestLeadershipLostHidesAWrite(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := start(t, "a", newDisk(1, "abc"))
		b := start(t, "b", newDisk(1, "abc"), patient)
		connect(n, b)
		await(t, "a leads", func() bool { return n.State() == raft.Leader && b.CommitIndex() == n.LastIndex() })
		n.wire.set(func(to raft.ServerAddress, cmd any, data io.Reader) (any, error) {
			if to == "b" {
				_, _ = b.say(cmd, data)
			}
			return nil, errNoReply
		})
		err := n.Apply([]byte("x"), 0).Error()
		last := b.LastIndex()
		hear[raft.AppendEntriesResponse](t, b, appendOf("c", n.CurrentTerm()+1, last, n.CurrentTerm(), last))
		synctest.Wait()
		if !errors.Is(err, raft.ErrLeadershipLost) || b.fsm.text() != "x" {
			t.Fatalf("%v, %q", err, b.fsm.text())
		}
		t.Logf("%v; the next leader commits it", err)
	})
}
