package sim

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"northstar/consensus/storage"
)

var _ storage.Storage = (*Store)(nil)

func entries(from, to, term uint64) (es []*raft.Log) {
	for i := from; i <= to; i++ {
		es = append(es, &raft.Log{Index: i, Term: term, Data: []byte(fmt.Sprint(i))})
	}
	return es
}

func attach(t *testing.T, d *Disk) *Store {
	t.Helper()
	s, err := d.Attach()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func lastIndex(t *testing.T, s *Store) uint64 {
	t.Helper()
	last, err := s.Log().LastIndex()
	if err != nil {
		t.Fatal(err)
	}
	return last
}

func TestLogKeepsWhatWasStored(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := NewDisk("d", 1, DefaultDiskOptions(), nil)
		log := attach(t, d).Log()
		start := time.Now()
		if err := log.StoreLogs(entries(1, 10, 1)); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(start); took < 50*time.Microsecond || took > 2*time.Millisecond {
			t.Errorf("a sync took %v", took)
		}
		check := func(first, last uint64) {
			t.Helper()
			f, _ := log.FirstIndex()
			l, _ := log.LastIndex()
			if f != first || l != last {
				t.Errorf("log is %d to %d, want %d to %d", f, l, first, last)
			}
		}
		check(1, 10)
		_ = log.DeleteRange(8, 10)
		check(1, 7)
		_ = log.DeleteRange(1, 3)
		check(4, 7)
		_ = log.StoreLogs(entries(20, 21, 2)) // a gap, as after an installed snapshot
		check(4, 21)
		_ = log.DeleteRange(1, 7)
		check(20, 21)
		var out raft.Log
		if err := log.GetLog(7, &out); !errors.Is(err, raft.ErrLogNotFound) {
			t.Errorf("GetLog of a deleted entry = %v", err)
		}
		if err := log.GetLog(20, &out); err != nil || out.Term != 2 || string(out.Data) != "20" {
			t.Errorf("GetLog = %+v, %v", out, err)
		}
		_ = log.DeleteRange(20, 21)
		check(0, 0)
	})
}

func TestCrashKeepsAPrefixOfTheBatch(t *testing.T) {
	kept := map[uint64]int{}
	for seed := range uint64(200) {
		bubble(t, func(t *testing.T) {
			var reported uint64
			d := NewDisk("d", seed, DefaultDiskOptions(), func(_ uint64, es []*raft.Log) { reported = es[len(es)-1].Index })
			old := attach(t, d)
			_ = old.Log().StoreLogs(entries(1, 3, 1))
			done := make(chan error, 1)
			go func() { done <- old.Log().StoreLogs(entries(4, 7, 1)) }()
			synctest.Wait() // the batch is in flight
			d.Crash()
			next := attach(t, d)
			last := lastIndex(t, next)
			kept[last]++
			if reported != last {
				t.Errorf("hook got %d, disk holds %d", reported, last)
			}
			if err := <-done; err != nil {
				t.Errorf("the lost process's write = %v: the library would panic", err)
			}
			if got := lastIndex(t, old); got != 7 {
				t.Errorf("the lost process sees %d", got)
			}
			if got := lastIndex(t, next); got != last {
				t.Errorf("the lost process's write reached the disk: %d, was %d", got, last)
			}
			_ = old.Close()
			if _, err := d.Attach(); err == nil {
				t.Error("two processes on one disk")
			}
		})
	}
	for last := uint64(3); last <= 7; last++ {
		if kept[last] == 0 {
			t.Errorf("never kept exactly up to %d: %v", last, kept)
		}
	}
}

// A vote is one record unless the disk is notified to tear it.
func TestCrashAndVotes(t *testing.T) {
	for _, torn := range []bool{false, true} {
		seen := map[string]int{}
		for seed := range uint64(100) {
			bubble(t, func(t *testing.T) {
				opt := DefaultDiskOptions()
				opt.TornVotes = torn
				d := NewDisk("d", seed, opt, nil)
				old := attach(t, d)
				vote := func(term uint64, cand string) {
					_ = old.Stable().SetUint64([]byte(keyVoteTerm), term)
					_ = old.Stable().Set([]byte(keyVoteCand), []byte(cand))
				}
				vote(1, "a")
				done := make(chan struct{})
				go func() { defer close(done); vote(2, "b") }()
				time.Sleep(time.Duration(seed) * 40 * time.Microsecond)
				d.Crash()
				s := attach(t, d)
				term, _ := s.Stable().GetUint64([]byte(keyVoteTerm))
				cand, _ := s.Stable().Get([]byte(keyVoteCand))
				seen[fmt.Sprint(term, string(cand))]++
				<-done
			})
		}
		if seen["1a"] == 0 || seen["2b"] == 0 || len(seen) > 2 != torn {
			t.Errorf("torn=%v: votes found after the crash: %v", torn, seen)
		}
	}
}

func TestStableNotFound(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := attach(t, NewDisk("d", 1, DefaultDiskOptions(), nil))
		if _, err := s.Stable().Get([]byte("x")); err == nil || err.Error() != "not found" {
			t.Errorf("Get = %v: the library compares the text", err)
		}
		if v, err := s.Stable().GetUint64([]byte("x")); v != 0 || err == nil || err.Error() != "not found" {
			t.Errorf("GetUint64 = %d, %v", v, err)
		}
		if _, err := s.Load("identity.json"); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("Load = %v", err)
		}
		_ = s.Save("identity.json", []byte("{}"))
		if b, err := s.Load("identity.json"); err != nil || string(b) != "{}" {
			t.Errorf("Load = %q, %v", b, err)
		}
	})
}

func TestSnapshotIsThereAtClose(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := NewDisk("d", 1, DefaultDiskOptions(), nil)
		s := attach(t, d)
		create := func(index uint64) raft.SnapshotSink {
			sink, err := s.Snapshots().Create(1, index, 1, raft.Configuration{}, 1, nil)
			if err != nil {
				t.Fatal(err)
			}
			_, _ = fmt.Fprintf(sink, "state at %d", index)
			return sink
		}
		count := func() int { l, _ := s.Snapshots().List(); return len(l) }
		lost := create(5)
		if count() != 0 {
			t.Error("a snapshot is listed before its Close")
		}
		d.Crash()
		s = attach(t, d)
		_ = lost.Close()
		if count() != 0 {
			t.Error("a snapshot of a lost process is listed")
		}
		_ = create(10).Close()
		_ = create(30).Close()
		_ = create(20).Close()
		_ = create(40).Cancel()
		list, _ := s.Snapshots().List()
		if len(list) != 3 || list[0].Index != 30 || list[1].Index != 20 || list[2].Index != 10 {
			t.Fatalf("snapshots: %v", list)
		}
		meta, r, err := s.Snapshots().Open(list[0].ID)
		if err != nil {
			t.Fatal(err)
		}
		data, _ := io.ReadAll(r)
		if !bytes.Equal(data, []byte("state at 30")) || meta.Size != int64(len(data)) {
			t.Errorf("opened %q, size %d", data, meta.Size)
		}
	})
}

func TestStallFullAndWipe(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := NewDisk("d", 1, DefaultDiskOptions(), nil)
		s := attach(t, d)
		d.set((*Disk).stall)
		start := time.Now()
		time.AfterFunc(time.Minute, func() { d.set((*Disk).unstall) })
		if err := s.Log().StoreLogs(entries(1, 1, 1)); err != nil || time.Since(start) < time.Minute {
			t.Errorf("stalled write = %v after %v", err, time.Since(start))
		}
		d.set(func(d *Disk) { d.free = 0 })
		if err := s.Log().StoreLogs(entries(2, 2, 1)); !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("write on a full disk = %v", err)
		}
		_ = s.ReleaseReserve()
		if err := s.Log().StoreLogs(entries(2, 2, 1)); err != nil {
			t.Errorf("write with the reserve released = %v", err)
		}
		if err := s.HoldReserve(); err == nil {
			t.Error("the reserve was taken where there is no space")
		}
		d.set(func(d *Disk) { d.free = emptyDisk })
		if err := s.HoldReserve(); err != nil {
			t.Error(err)
		}
		d.set(func(d *Disk) { d.slow = time.Second })
		start = time.Now()
		_ = s.Save("x", nil)
		if time.Since(start) < time.Second {
			t.Error("a slow disk was fast")
		}
		_ = s.Close()
		if err := s.Save("x", nil); err == nil {
			t.Error("a closed store writes")
		}
		d.Wipe()
		if last := lastIndex(t, attach(t, d)); last != 0 {
			t.Errorf("wiped disk holds %d", last)
		}
	})
}

// TestDiskKeepsSnapshotsAsStorageDoes: a node that undoes restores in a row needs the snapshot before them.
func TestDiskKeepsSnapshotsAsStorageDoes(t *testing.T) {
	var c contents
	for i := range uint64(storage.RetainSnapshots + 1) {
		c.publish(&snapshot{meta: raft.SnapshotMeta{Index: i + 1, Term: 1}})
	}
	if n := len(c.snapshots); n != storage.RetainSnapshots || c.snapshots[n-1].meta.Index != 2 {
		t.Errorf("%d snapshots are kept, want the newest %d", n, storage.RetainSnapshots)
	}
}
