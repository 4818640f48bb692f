package raftnode

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/hashicorp/raft"

	"northstar/state"
)

// logWithSnapshot returns a log with entries of the terms, from index 1, and above it a snapshot that ends at p.
func logWithSnapshot(t *testing.T, p LogPosition, terms ...uint64) (*testFSM, *snapshotLog) {
	t.Helper()
	f, log := newTestFSM(), raft.NewInmemStore()
	for i, term := range terms {
		if err := log.StoreLog(&raft.Log{Index: uint64(i) + 1, Term: term}); err != nil {
			t.Fatal(err)
		}
	}
	s, err := OpenSnapshots(raft.NewInmemSnapshotStore(), log, f.FSM, LogPosition{})
	if err != nil {
		t.Fatal(err)
	}
	takeSnapshot(t, s, p)
	f.applied.Store(p.Index)
	return f, &snapshotLog{log, s, func() bool { return false }}
}

func takeSnapshot(t *testing.T, s *Snapshots, p LogPosition) {
	t.Helper()
	sink, err := s.Create(1, p.Index, p.Term, raft.Configuration{}, 1, nil)
	if err == nil {
		err = sink.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
}

func readable(l *snapshotLog) (indexes []uint64) {
	last, _ := l.LastIndex()
	for i := range last {
		if l.GetLog(i+1, &raft.Log{}) == nil {
			indexes = append(indexes, i+1)
		}
	}
	return indexes
}

// TestNoCompactionBelowARestore: while a restore may be abandoned, the log keeps what the snapshot before it lacks.
func TestNoCompactionBelowARestore(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		snapshot LogPosition
		terms    []uint64
		keeps    bool
	}{
		"a hole in its place":               {LogPosition{4, 3}, []uint64{2, 2, 2}, true},
		"an entry of another leader":        {LogPosition{3, 3}, []uint64{2, 2, 2, 3}, true},
		"a snapshot of this log":            {LogPosition{3, 2}, []uint64{2, 2, 2, 2}, false},
		"an older snapshot of the same log": {LogPosition{2, 2}, []uint64{2, 2, 2, 2}, false},
	} {
		f, l := logWithSnapshot(t, c.snapshot, c.terms...)
		compact := func(want uint64) {
			t.Helper()
			if err := l.DeleteRange(1, 1); err != nil {
				t.Fatal(err)
			}
			if first, _ := l.FirstIndex(); first != want {
				t.Errorf("%s: the log begins at %d, want %d", name, first, want)
			}
		}
		if !c.keeps {
			compact(2)
			continue
		}
		compact(1)
		f.applied.Store(c.snapshot.Index + 1)
		compact(2)
	}
}

// TestTruncationBelowARestore: the end of the log can always be deleted.
func TestTruncationBelowARestore(t *testing.T) {
	t.Parallel()
	_, l := logWithSnapshot(t, LogPosition{4, 3}, 2, 2, 2)
	if err := l.DeleteRange(2, 3); err != nil || !slices.Equal(readable(l), []uint64{1}) {
		t.Errorf("readable: %v, %v", readable(l), err)
	}
}

// TestReplacedEntries: entries below an installed snapshot may be of a deposed leader. A node that becomes leader must
// not send them, and they must not become readable again above a newer snapshot.
func TestReplacedEntries(t *testing.T) {
	t.Parallel()
	f, l := logWithSnapshot(t, LogPosition{3, 4}, 2, 3, 3)
	if err := l.GetLog(3, &raft.Log{}); err != nil {
		t.Errorf("raft reads the last entry when it starts: %v", err)
	}
	if err := l.StoreLog(&raft.Log{Index: 4, Term: 4}); err != nil {
		t.Fatal(err)
	}
	if got := readable(l); !slices.Equal(got, []uint64{4}) {
		t.Errorf("readable: %v, want: 4", got)
	}
	if err := l.GetLog(2, &raft.Log{}); !errors.Is(err, raft.ErrLogNotFound) {
		t.Errorf("raft sends a snapshot for a missing entry only: %v", err)
	}
	f.applied.Store(4)
	takeSnapshot(t, l.snaps, LogPosition{4, 4})
	if got := readable(l); !slices.Equal(got, []uint64{4}) {
		t.Errorf("with a newer snapshot readable: %v, want: 4", got)
	}
}

// TestReplacedEntriesBelowAHole: an installed snapshot may end far above the log, and the last entries of the log may
// still be of a deposed leader.
func TestReplacedEntriesBelowAHole(t *testing.T) {
	t.Parallel()
	_, l := logWithSnapshot(t, LogPosition{6, 4}, 2, 3, 3)
	if err := l.StoreLog(&raft.Log{Index: 7, Term: 4}); err != nil {
		t.Fatal(err)
	}
	if got := readable(l); !slices.Equal(got, []uint64{7}) {
		t.Errorf("readable: %v, want: 7", got)
	}
}

// unremovable is a snapshot store that fails to remove: the process ends there.
type unremovable struct{ raft.SnapshotStore }

func (unremovable) Remove(string) error { return errors.New("killed") }

// TestUndoStartsWithTheLog: a node that is killed while it undoes a restore must start again. A log with a hole and no
// snapshot above it would count as damaged.
func TestUndoStartsWithTheLog(t *testing.T) {
	t.Parallel()
	undone := LogPosition{6, 4}
	_, l := logWithSnapshot(t, undone, 2, 2, 2, 2, 2)
	if err := l.StoreLog(&raft.Log{Index: 7, Term: 4}); err != nil {
		t.Fatal(err)
	}
	store := unremovable{l.snaps.SnapshotStore}
	if _, err := OpenSnapshots(store, l.LogStore, newTestFSM().FSM, undone); err == nil {
		t.Fatal("the snapshot was not removed, and there was no error")
	}
	if last, _ := l.LastIndex(); last != 5 {
		t.Errorf("the log ends at %d, want 5", last)
	}
}

// TestUndoOfALedRestore: a node that holds a restore leads in a later term, and stores entries that follow it. The
// cluster continues without the restore: these entries go, too. What the cluster continues with then stays.
func TestUndoOfALedRestore(t *testing.T) {
	t.Parallel()
	undone := LogPosition{6, 4}
	for name, damaged := range map[string]bool{"": false, "its snapshot is damaged": true} {
		f, l := logWithSnapshot(t, undone, 2, 2, 2, 2, 2)
		store := &manySnapshots{all: []*raft.SnapshotMeta{
			{ID: "6", Index: undone.Index, Term: undone.Term}, {ID: "2", Index: 2, Term: 2},
		}}
		if damaged {
			store.all = store.all[1:]
		}
		put := func(index, term uint64) {
			if err := l.LogStore.StoreLog(&raft.Log{Index: index, Term: term}); err != nil {
				t.Fatal(err)
			}
		}
		put(7, 5)
		put(8, 5)
		for _, want := range []uint64{5, 7} {
			s, err := OpenSnapshots(store, l.LogStore, f.FSM, undone)
			if err != nil {
				t.Fatal(err)
			}
			if last, _ := l.LogStore.LastIndex(); last != want || s.newestIndex() != 2 {
				t.Errorf("%s: the log ends at %d, want %d; the newest snapshot at %d", name, last, want, s.newestIndex())
			}
			put(6, 6)
			put(7, 6)
		}
	}
}

// TestUndoKeepsWhatFollowsAnInstalledSnapshot: after a restore was undone, or before its undoing has begun, the leader
// sends a snapshot that ends at or above it. The log has a hole then, and behind it entries that this node has
// acknowledged. Each later start still knows that the restore was abandoned, and deletes none of them.
func TestUndoKeepsWhatFollowsAnInstalledSnapshot(t *testing.T) {
	t.Parallel()
	undone := LogPosition{6, 4}
	for name, c := range map[string]struct {
		installed LogPosition
		removed   bool // the snapshot of the restore
	}{
		"a snapshot that ends above the restore":     {LogPosition{8, 5}, true},
		"a snapshot that ends at its index":          {LogPosition{6, 5}, true},
		"a snapshot that came before the undoing":    {LogPosition{8, 5}, false},
		"... with entries that followed the restore": {LogPosition{7, 5}, false},
	} {
		f, l := logWithSnapshot(t, LogPosition{2, 2}, 2, 2, 2, 2, 2)
		store := &manySnapshots{all: []*raft.SnapshotMeta{
			{ID: "installed", Index: c.installed.Index, Term: c.installed.Term},
			{ID: "restore", Index: undone.Index, Term: undone.Term},
			{ID: "2", Index: 2, Term: 2},
		}}
		if c.removed {
			store.all = slices.Delete(store.all, 1, 2)
		}
		for _, e := range []raft.Log{
			{Index: 7, Term: 4}, {Index: c.installed.Index + 1, Term: 5}, {Index: c.installed.Index + 2, Term: 5},
		} {
			if c.removed && e.Term < 5 {
				continue // deleted with the restore
			}
			if err := l.LogStore.StoreLog(&e); err != nil {
				t.Fatal(err)
			}
		}
		for range 2 {
			s, err := OpenSnapshots(store, l.LogStore, f.FSM, undone)
			if err != nil {
				t.Fatal(err)
			}
			if last, _ := l.LogStore.LastIndex(); last != c.installed.Index+2 || !s.endsAt(c.installed) {
				t.Errorf("%s: the log ends at %d, want %d; the newest snapshot at %v", name, last, c.installed.Index+2,
					s.newest.Load())
			}
		}
		if len(store.all) != 2 {
			t.Errorf("%s: %d snapshots are left", name, len(store.all))
		}
	}
}

// TestContinuedLogIsReadable: a snapshot of this node's own log hides nothing, also after compaction beyond it.
func TestContinuedLogIsReadable(t *testing.T) {
	t.Parallel()
	_, l := logWithSnapshot(t, LogPosition{2, 2}, 2, 2, 2, 2)
	if got := readable(l); !slices.Equal(got, []uint64{1, 2, 3, 4}) {
		t.Errorf("readable: %v", got)
	}
	if err := l.DeleteRange(1, 2); err != nil {
		t.Fatal(err)
	}
	takeSnapshot(t, l.snaps, LogPosition{4, 2})
	if got := readable(l); !slices.Equal(got, []uint64{3, 4}) {
		t.Errorf("after compaction readable: %v", got)
	}
}

// TestNoSecondSnapshotOfARestore: the storage keeps two snapshots. A second one of the restore would remove the one to
// which the next start goes back when the restore is abandoned.
func TestNoSecondSnapshotOfARestore(t *testing.T) {
	t.Parallel()
	f, l := logWithSnapshot(t, LogPosition{3, 4}, 2, 2)
	f.delivered.Store(3)
	if _, err := f.Snapshot(); !errors.Is(err, raft.ErrNothingNewToSnapshot) {
		t.Errorf("with nothing after the restore: %v", err)
	}
	f.applied.Store(4)
	f.delivered.Store(4)
	if _, err := f.Snapshot(); err != nil {
		t.Errorf("with an entry after it: %v", err)
	}
	if _, err := OpenSnapshots(raft.NewInmemSnapshotStore(), l.LogStore, f.FSM, LogPosition{}); err != nil {
		t.Fatal(err)
	}
	f.delivered.Store(1)
	f.applied.Store(1)
	if _, err := f.Snapshot(); err != nil {
		t.Errorf("once the restore is removed: %v", err)
	}
}

// TestOlderSnapshotFails: raft.Raft writes a snapshot of its own while its main loop restores another one, or
// installs it. The older one must fail, also if it ends last: raft.Raft would take it for the newest.
func TestOlderSnapshotFails(t *testing.T) {
	t.Parallel()
	_, l := logWithSnapshot(t, LogPosition{1, 2}, 2, 2, 2)
	own, err := l.snaps.Create(1, 3, 2, raft.Configuration{}, 1, nil)
	if err != nil {
		t.Fatal(err)
	}
	restored := LogPosition{4, 2}
	takeSnapshot(t, l.snaps, restored)
	if err := own.Close(); !errors.Is(err, errNewerSnapshot) {
		t.Errorf("the older snapshot ends with %v", err)
	}
	if !l.snaps.endsAt(restored) {
		t.Errorf("the newest snapshot ends at %v, want %v", l.snaps.newest.Load(), restored)
	}
}

// TestRestoreWaitsForOwnSnapshot: raft.Raft has written a snapshot of its own, and takes note of it after that. A
// restore that ends in between must wait: raft.Raft would take the older snapshot for the newest.
func TestRestoreWaitsForOwnSnapshot(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, l := logWithSnapshot(t, LogPosition{1, 2}, 2, 2, 2)
		end, restored := LogPosition{3, 2}, LogPosition{4, 2}
		sink, err := l.snaps.Create(1, end.Index, end.Term, raft.Configuration{}, 1, nil)
		if err != nil {
			t.Fatal(err)
		}
		own := &snapshot{captured: state.New(state.Options{}).Snapshot()}
		if err := errors.Join(own.Persist(sink), sink.Close()); err != nil { // raft.Raft closes it, too
			t.Fatal(err)
		}
		other, err := l.snaps.Create(1, restored.Index, restored.Term, raft.Configuration{}, 1, nil)
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- other.Close() }()
		synctest.Wait()
		if !l.snaps.endsAt(end) {
			t.Errorf("the newest snapshot ends at %v, and raft.Raft does not know of that at %v", l.snaps.newest.Load(), end)
		}
		own.Release()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if !l.snaps.endsAt(restored) {
			t.Errorf("the newest snapshot ends at %v, want %v", l.snaps.newest.Load(), restored)
		}
		takeSnapshot(t, l.snaps, LogPosition{5, 2})
	})
}

// manySnapshots keeps every snapshot until it is removed.
type manySnapshots struct {
	raft.SnapshotStore
	all []*raft.SnapshotMeta // newest first
}

type metaSink struct {
	raft.SnapshotSink
	publish func()
}

func (s metaSink) Close() error { s.publish(); return nil }

func (m *manySnapshots) Create(_ raft.SnapshotVersion, index, term uint64, _ raft.Configuration, _ uint64,
	_ raft.Transport,
) (raft.SnapshotSink, error) {
	meta := &raft.SnapshotMeta{ID: fmt.Sprint(index), Index: index, Term: term}
	for slices.ContainsFunc(m.all, func(s *raft.SnapshotMeta) bool { return s.ID == meta.ID }) {
		meta.ID += "+"
	}
	return metaSink{publish: func() { m.all = slices.Insert(m.all, 0, meta) }}, nil
}

func (m *manySnapshots) List() ([]*raft.SnapshotMeta, error) { return slices.Clone(m.all), nil }

func (m *manySnapshots) Remove(id string) error {
	m.all = slices.DeleteFunc(m.all, func(s *raft.SnapshotMeta) bool { return s.ID == id })
	return nil
}

// TestRestoresAbandonedInARow: two restores are installed before this node learns that neither is committed. The
// snapshot before both is kept, and a node starts with it when both are undone. Old snapshots are removed once the log
// continues a newer one.
func TestRestoresAbandonedInARow(t *testing.T) {
	t.Parallel()
	f, log, store := newTestFSM(), raft.NewInmemStore(), &manySnapshots{}
	put := func(index, term uint64) {
		if err := log.StoreLog(&raft.Log{Index: index, Term: term}); err != nil {
			t.Fatal(err)
		}
	}
	open := func(undone LogPosition) *Snapshots {
		t.Helper()
		s, err := OpenSnapshots(store, log, f.FSM, undone)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	want := func(ids ...string) {
		t.Helper()
		var got []string
		for _, m := range store.all {
			got = append(got, m.ID)
		}
		if !slices.Equal(got, ids) {
			t.Errorf("snapshots %v, want %v", got, ids)
		}
	}
	for i := range uint64(5) {
		put(i+1, 2)
	}
	s := open(LogPosition{})
	f.applied.Store(5)
	takeSnapshot(t, s, LogPosition{2, 2})
	takeSnapshot(t, s, LogPosition{3, 2})
	takeSnapshot(t, s, LogPosition{4, 2})
	want("4", "3")
	first, second := LogPosition{6, 2}, LogPosition{8, 3}
	takeSnapshot(t, s, first) // the log has no entry 6
	takeSnapshot(t, s, second)
	want("8", "6", "4")
	open(second)
	want("6", "4")
	s = open(first)
	want("4")
	if *s.newest.Load() != (LogPosition{4, 2}) {
		t.Errorf("it starts with the snapshot of %v", *s.newest.Load())
	}

	for range 9 { // the leader sends one again and again, since this node cannot read it
		takeSnapshot(t, s, LogPosition{6, 4})
		if n := len(store.all); n > 3 || store.all[n-1].ID != "4" {
			t.Fatalf("%d snapshots, the oldest is %s", n, store.all[n-1].ID)
		}
	}
	takeSnapshot(t, s, LogPosition{7, 4})
	put(8, 4)
	f.applied.Store(8) // the last one is committed
	takeSnapshot(t, s, LogPosition{8, 4})
	want("8", "7")
}

// TestUndoWithoutASnapshotBefore: the snapshot before an abandoned restore is lost, and the log begins after it. The
// start fails with what is to be done, and removes nothing.
func TestUndoWithoutASnapshotBefore(t *testing.T) {
	t.Parallel()
	undone := LogPosition{6, 4}
	for name, c := range map[string]struct {
		before *raft.SnapshotMeta
		fails  bool
	}{
		"none":                        {nil, true},
		"too old":                     {&raft.SnapshotMeta{ID: "2", Index: 2, Term: 2}, true},
		"one that the log continues":  {&raft.SnapshotMeta{ID: "3", Index: 3, Term: 2}, false},
		"one that the log goes below": {&raft.SnapshotMeta{ID: "4", Index: 4, Term: 2}, false},
	} {
		log, store := raft.NewInmemStore(), &manySnapshots{}
		for _, e := range []*raft.Log{{Index: 4, Term: 2}, {Index: 5, Term: 2}, {Index: 7, Term: 4}} {
			if err := log.StoreLog(e); err != nil {
				t.Fatal(err)
			}
		}
		store.all = append(store.all, &raft.SnapshotMeta{ID: "6", Index: undone.Index, Term: undone.Term})
		if c.before != nil {
			store.all = append(store.all, c.before)
		}
		_, err := OpenSnapshots(store, log, newTestFSM().FSM, undone)
		if fails := err != nil && strings.Contains(err.Error(), "have the node re-admitted"); fails != c.fails {
			t.Errorf("%s: the start ends with %v", name, err)
		}
		last, _ := log.LastIndex()
		if kept := store.all[0].ID == "6" && last == 7; kept != c.fails {
			t.Errorf("%s: newest snapshot %s, last entry %d", name, store.all[0].ID, last)
		}
	}
}

// TestReplacedEntriesOfALeader: the log ends before the newest snapshot, and a leader's first entry is not stored yet.
func TestReplacedEntriesOfALeader(t *testing.T) {
	t.Parallel()
	_, l := logWithSnapshot(t, LogPosition{6, 4}, 2, 2, 3, 3)
	if err := l.GetLog(4, &raft.Log{}); err != nil {
		t.Errorf("raft.Raft could not start: %v", err)
	}
	l.leadsWithSnapshot = func() bool { return true }
	if err := l.GetLog(4, &raft.Log{}); !errors.Is(err, raft.ErrLogNotFound) {
		t.Errorf("read by a leader: %v", err)
	}
}
