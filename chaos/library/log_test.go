package library

import (
	"errors"
	"testing"
	"testing/synctest"

	"github.com/hashicorp/raft"
)

// A leader of term 3 sends entry 2 again, from a log that ends at 3. The follower
// has an entry 3 of term 2, which no other node has, and commits it.
func TestCommitsBeyondTheMatch(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := start(t, "a", newDisk(2, "abc", entry(2, 2, "shared"), entry(3, 2, "own")))
		got := hear[raft.AppendEntriesResponse](t, n, appendOf("c", 3, 1, 1, 3, entry(2, 2, "shared")))
		synctest.Wait()
		if !got.Success || n.fsm.text() != "shared own" {
			t.Fatalf("success %v, applied %q", got.Success, n.fsm.text())
		}
		t.Logf("applied: %q", n.fsm.text())
		hear[raft.AppendEntriesResponse](t, n, appendOf("c", 3, 2, 2, 3, entry(3, 3, "committed")))
		synctest.Wait()
		if n.fsm.text() != "shared own" {
			t.Errorf("applied %q: the committed entry has come after all", n.fsm.text())
		}
	})
}

// A conflicting suffix is deleted, and the entries in its place cannot be
// written. The node goes on as if the deleted one were there: it takes an entry
// that follows it.
func TestLastLogAfterAFailedAppend(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newDisk(2, "abc", entry(2, 2, "old"), entry(3, 2, "old"))
		n := start(t, "a", d)
		d.set(func() error { return errors.New("no space") }, nil)
		hear[raft.AppendEntriesResponse](t, n, appendOf("c", 3, 1, 1, 0, entry(2, 3, "new")))
		d.set(nil, nil)
		last, _ := d.LastIndex()
		if n.LastIndex() != 3 || last != 1 {
			t.Fatalf("says that its log ends at %d; on disk at %d", n.LastIndex(), last)
		}
		got := hear[raft.AppendEntriesResponse](t, n, appendOf("b", 4, 3, 2, 0, entry(4, 4, "next")))
		var hole raft.Log
		err := d.GetLog(3, &hole)
		if !got.Success || !errors.Is(err, raft.ErrLogNotFound) {
			t.Fatalf("success %v, entry 3: %v", got.Success, err)
		}
		t.Logf("acknowledges entry 4; entry 3: %v", err)
	})
}

// What a follower has in place of a snapshot's last entry stays when the
// snapshot is installed. It refuses what follows the snapshot, whose sender has
// no older entries: it sends it again, for ever.
func TestSnapshotKeepsAConflictingEntry(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := start(t, "a", newDisk(2, "abc", entry(2, 2, "own"), entry(3, 2, "own"), entry(4, 2, "own")))
		for range 3 {
			if got, err := n.say(snapshotOf("c", 3, 3, 3, "abc", shot{"committed"})); err != nil ||
				!got.(*raft.InstallSnapshotResponse).Success {
				t.Fatal(got, err)
			}
			if got := hear[raft.AppendEntriesResponse](t, n,
				appendOf("c", 3, 3, 3, 4, entry(4, 3, "next"))); got.Success {
				t.Fatal("it takes what follows the snapshot")
			}
		}
		t.Log("three times installed, three times refused what follows it")
	})
}

// A leader writes no log entry at the index of a restore. As a follower it cannot
// read that entry, and rejects every entry of another leader at that index.
func TestRestore_LeavesLogGapThatRejectsAppends(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := start(t, "a", newDisk(1, "abc"))
		n.lead(t)
		n.wire.set(silent)
		_, end, prev := restoreAlone(t, n)
		for range 3 {
			got := hear[raft.AppendEntriesResponse](t, n, appendOf("c", 9, prev, 2, 0, entry(end, 9, "committed")))
			if got.Success {
				t.Fatal("it takes the entry")
			}
		}
		t.Logf("refuses entry %d of the next leader, three times", end)
	})
}

// A follower has the snapshot of a restore and one entry of the leader that is
// deposed. The next leader's entry follows the same snapshot. The follower looks
// for the snapshot's last entry in its log, and refuses. The next leader does not
// have that entry either, and sends the same snapshot again. Without the previous
// entry in the request, the follower takes the entry.
func TestSnapshotBeforeAConflictRefusesAppends(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := start(t, "a", newDisk(3, "abc", entry(2, 3, "two")), patient)
		restored := func(leader string, term uint64) {
			if got, err := n.say(snapshotOf(leader, term, 4, 4, "abc", shot{"restored"})); err != nil ||
				!got.(*raft.InstallSnapshotResponse).Success {
				t.Fatal(got, err)
			}
		}
		restored("c", 4)
		if got := hear[raft.AppendEntriesResponse](t, n,
			appendOf("c", 4, 4, 4, 4, entry(5, 4, "never committed"))); !got.Success {
			t.Fatal("it refuses the first leader's entry")
		}
		for range 3 {
			got := hear[raft.AppendEntriesResponse](t, n, appendOf("b", 5, 4, 4, 4, entry(5, 5, "committed")))
			if got.Success {
				t.Fatal("it takes the next leader's entry")
			}
			restored("b", 5)
		}
		t.Log("refuses entry 5 of the next leader, and installs its snapshot, three times")
		got := hear[raft.AppendEntriesResponse](t, n, appendOf("b", 5, 0, 0, 5, entry(5, 5, "committed")))
		synctest.Wait()
		if !got.Success || n.fsm.text() != "restored committed" {
			t.Errorf("without the previous entry: success %v, applied %q", got.Success, n.fsm.text())
		}
	})
}

// The snapshot of a restore that was never committed stays. The entries that were
// committed in its place are skipped: the state machines differ permanently.
func TestUncommittedRestoreStays(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newDisk(1, "abc")
		n := start(t, "a", d)
		n.lead(t)
		if err := n.Apply([]byte("committed"), 0).Error(); err != nil {
			t.Fatal(err)
		}
		d.set(func() error { return errors.New("no space") }, nil) // as a crash after the restore
		n.wire.set(silent)
		term, end, prev := restoreAlone(t, n)
		n.stop()

		d.set(nil, nil)
		n = start(t, "a", d)
		got := hear[raft.AppendEntriesResponse](t, n, appendOf("c", 9, prev, term, end+1, entry(end, 9, "second"),
			entry(end+1, 9, "third")))
		synctest.Wait()
		if !got.Success || n.fsm.text() != "restored third" {
			t.Fatalf("success %v, applied %q", got.Success, n.fsm.text())
		}
		t.Logf("committed: %q; applied: %q", "committed second third", n.fsm.text())
	})
}

// restoreAlone restores a backup on a leader that has lost its followers. It
// returns the term, the index of the restore, and the index before it.
func restoreAlone(t *testing.T, n *node) (term, end, prev uint64) {
	t.Helper()
	term, prev = n.CurrentTerm(), n.LastIndex()
	content := shot{"restored"}
	meta := &raft.SnapshotMeta{Version: 1, ID: "backup", Index: 1, Term: 1, Size: int64(len(content.bytes()))}
	if err := n.Restore(meta, bytesOf(content), 0); err == nil {
		t.Fatal("the restore is committed")
	}
	await(t, "it follows", func() bool { return n.State() != raft.Leader })
	if n.fsm.text() != "restored" {
		t.Fatalf("state %q", n.fsm.text())
	}
	return term, prev + 1, prev
}

// An older snapshot replaces a newer state. With the entries between them gone
// the next commit panics.
func TestOlderSnapshotIsInstalled(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newDisk(2, "abc", entry(2, 2, "two"), entry(3, 2, "three"), entry(4, 2, "four"))
		n := start(t, "a", d, func(c *raft.Config) { c.TrailingLogs = 1 })
		hear[raft.AppendEntriesResponse](t, n, appendOf("b", 2, 4, 2, 4))
		synctest.Wait()
		if err := n.Snapshot().Error(); err != nil {
			t.Fatal(err)
		}
		if _, err := n.say(snapshotOf("b", 2, 2, 2, "abc", shot{"two"})); err != nil {
			t.Fatal(err)
		}
		first, _ := d.FirstIndex()
		if n.fsm.text() != "two" || n.AppliedIndex() != 2 || first != 4 {
			t.Fatalf("state %q at %d, log from %d", n.fsm.text(), n.AppliedIndex(), first)
		}
		t.Logf("entries 2 to 4 were applied; now: %q, and the log begins with 4", n.fsm.text())
	})
}

func TestCommitAfterAnOlderSnapshotPanics(t *testing.T) {
	panics(t, "log not found", func(t *testing.T) {
		n := start(t, "a", newDisk(2, "abc", entry(2, 2, "two"), entry(3, 2, "three"), entry(4, 2, "four")),
			func(c *raft.Config) { c.TrailingLogs = 1 })
		hear[raft.AppendEntriesResponse](t, n, appendOf("b", 2, 4, 2, 4))
		await(t, "applied", func() bool { return n.fsm.text() == "two three four" })
		if err := n.Snapshot().Error(); err != nil {
			t.Fatal(err)
		}
		_, _ = n.say(snapshotOf("b", 2, 2, 2, "abc", shot{"two"}))
		_, _ = n.say(appendOf("b", 2, 4, 2, 5, entry(5, 2, "five")), nil)
	})
}

// slowSnapshots is a store whose snapshots of one index end only when release is closed.
type slowSnapshots struct {
	raft.SnapshotStore
	index   uint64
	release chan struct{}
}

func (s slowSnapshots) Create(v raft.SnapshotVersion, index, term uint64, c raft.Configuration, cIndex uint64,
	trans raft.Transport,
) (raft.SnapshotSink, error) {
	sink, err := s.SnapshotStore.Create(v, index, term, c, cIndex, trans)
	if index != s.index {
		return sink, err
	}
	return slowSink{sink, s.release}, err
}

type slowSink struct {
	raft.SnapshotSink
	release chan struct{}
}

func (s slowSink) Close() error {
	<-s.release
	return s.SnapshotSink.Close()
}

// A node writes a snapshot of its own beside its main loop. A newer one is installed
// meanwhile. The older one ends last, and then counts as the newest: the node refuses
// the entry that follows the installed one.
func TestOlderSnapshotCountsAsTheNewest(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newDisk(2, "abc", entry(2, 2, "two"), entry(3, 2, "three"))
		n := &node{wire: newWire("a"), disk: d, fsm: &words{}}
		release := make(chan struct{})
		n.startWith(t, d, slowSnapshots{d.snaps, 3, release}, n.wire)
		hear[raft.AppendEntriesResponse](t, n, appendOf("b", 2, 3, 2, 3))
		synctest.Wait() // entry 3 is applied: before that there is nothing to snapshot
		own := make(chan error, 1)
		go func() { own <- n.Snapshot().Error() }()
		synctest.Wait()
		if _, err := n.say(snapshotOf("b", 2, 5, 2, "abc", shot{"five"})); err != nil {
			t.Fatal(err)
		}
		before := n.Stats()["last_snapshot_index"]
		close(release)
		if err := <-own; err != nil {
			t.Fatal(err)
		}
		after := n.Stats()["last_snapshot_index"]
		got := hear[raft.AppendEntriesResponse](t, n, appendOf("b", 2, 5, 2, 5, entry(6, 2, "six")))
		if before != "5" || after != "3" || got.Success || n.fsm.text() != "five" {
			t.Fatalf("last snapshot %s, then %s; state %q; takes entry 6: %v", before, after, n.fsm.text(), got.Success)
		}
		t.Logf("the last snapshot ends at %s, then at %s; refuses entry 6", before, after)
	})
}

// A snapshot that is damaged on disk is passed over for an older one, which the
// log does not continue: the start panics.
func TestFallbackToAnOlderSnapshotPanics(t *testing.T) {
	panics(t, "log not found", func(t *testing.T) {
		d := &disk{InmemStore: raft.NewInmemStore()}
		_ = d.InmemStore.StoreLogs([]*raft.Log{entry(5, 2, "five")})
		_ = d.InmemStore.SetUint64([]byte("CurrentTerm"), 2)
		snaps, err := raft.NewFileSnapshotStoreWithLogger(t.TempDir(), 2, config("a").Logger)
		if err != nil {
			t.Fatal(err)
		}
		n := &node{wire: newWire("a"), disk: d, fsm: &words{}}
		store(t, snaps, 2, `["two"]`)
		store(t, snaps, 4, `damaged`)
		n.startWith(t, d, snaps, n.wire)
	})
}

func store(t *testing.T, snaps raft.SnapshotStore, index uint64, content string) {
	t.Helper()
	sink, err := snaps.Create(1, index, 2, servers("abc"), 1, newWire("a"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := sink.Write([]byte(content)); err != nil {
		t.Fatal(err)
	}
	if err := sink.Close(); err != nil {
		t.Fatal(err)
	}
}

// A snapshot that is not finished is never removed.
func TestUnfinishedSnapshotsStay(t *testing.T) {
	dir := t.TempDir()
	snaps, err := raft.NewFileSnapshotStoreWithLogger(dir, 1, config("a").Logger)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := snaps.Create(1, 1, 2, servers("abc"), 1, newWire("a")); err != nil { // the process dies
		t.Fatal(err)
	}
	for index := range uint64(3) {
		store(t, snaps, index+2, "[]")
	}
	left := glob(t, dir+"/snapshots/*.tmp")
	if len(left) != 1 {
		t.Fatalf("left: %v", left)
	}
	t.Logf("still there after three others: %v", left[0])
}
