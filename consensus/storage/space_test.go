package storage

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
	"golang.org/x/sys/unix"
)

func TestReserveFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), reserveName)
	occupied := func() int64 {
		var st unix.Stat_t
		if err := unix.Stat(path, &st); err != nil {
			t.Fatal(err)
		}
		return st.Blocks * 512
	}
	r, err := openReserve(path, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	if _, held := r.Reserve(); !held || occupied() < 1<<20 {
		t.Errorf("held %v, %d bytes", held, occupied())
	}
	if err := r.ReleaseReserve(); err != nil || occupied() != 0 {
		t.Errorf("released: %d bytes, %v", occupied(), err)
	}
	if err := r.HoldReserve(); err != nil || occupied() < 1<<20 {
		t.Errorf("held again: %d bytes, %v", occupied(), err)
	}
	if _, err = openReserve(path, 2<<20); err != nil || occupied() < 2<<20 {
		t.Errorf("larger: %d bytes, %v", occupied(), err)
	}
	if _, err = openReserve(path, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("none: %v", err)
	}
}

func TestWriteZeros(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "zeros"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	if err := writeZeros(f, 3<<20+5); err != nil {
		t.Fatal(err)
	}
	if st, err := f.Stat(); err != nil || st.Size() != 3<<20+5 {
		t.Errorf("%d bytes, %v", st.Size(), err)
	}
}

func TestDecideSpace(t *testing.T) {
	const r = 64 << 20
	for _, test := range []struct {
		name string
		in   diskSpace
		want spaceDecision
	}{
		{"no reserve", diskSpace{free: 0}, spaceDecision{}},
		{"plenty", diskSpace{free: 10 * r, reserve: r, held: true}, spaceDecision{}},
		{"at the mark", diskSpace{free: r / 4, reserve: r, held: true}, spaceDecision{}},
		{"below the mark", diskSpace{free: r/4 - 1, reserve: r, held: true}, spaceDecision{readOnly: true}},
		{"nothing left", diskSpace{free: 0, reserve: r, held: true}, spaceDecision{readOnly: true}},
		{
			"back, not enough",
			diskSpace{free: r/2 - 1, reserve: r, held: true, readOnly: true},
			spaceDecision{readOnly: true},
		},
		{"back", diskSpace{free: r / 2, reserve: r, held: true, readOnly: true}, spaceDecision{}},
		{"released", diskSpace{free: r, reserve: r, readOnly: true}, spaceDecision{readOnly: true}},
		{
			"released, not enough",
			diskSpace{free: r + r/2 - 1, reserve: r, readOnly: true},
			spaceDecision{readOnly: true},
		},
		{
			"released, enough",
			diskSpace{free: r + r/2, reserve: r, readOnly: true},
			spaceDecision{readOnly: true, ensureReserve: true},
		},
		{"not held at start", diskSpace{free: 10 * r, reserve: r}, spaceDecision{readOnly: true, ensureReserve: true}},
	} {
		if got := decideSpace(test.in); got != test.want {
			t.Errorf("%s: %+v, want %+v", test.name, got, test.want)
		}
	}
}

// Two operations find the disk full at the same time. One releases the reserve, and both use its space.
func TestReserveIsForAllWhoFoundTheDiskFull(t *testing.T) {
	m := newMemStorage()
	m.size, m.held = 100, true
	g, _ := guardOver(m)
	full := func(tries *int, meanwhile func()) func() error {
		return func() error {
			if *tries++; *tries > 1 {
				return nil
			}
			meanwhile()
			return syscall.ENOSPC
		}
	}
	var saves, appends int
	err := g.write(OpAppend, full(&appends, func() {
		if err := g.write(OpSave, full(&saves, func() {})); err != nil {
			t.Errorf("the one that gave it up: %v", err)
		}
	}))
	if err != nil || appends != 2 || saves != 2 {
		t.Errorf("the other: %v after %d tries", err, appends)
	}
	late := 0
	if err := g.write(OpAppend, full(&late, func() {})); !errors.Is(err, syscall.ENOSPC) || late != 1 {
		t.Errorf("once the reserve is gone: %v after %d tries", err, late)
	}
}

// TestFullDisk walks through a disk that fills up and empties again.
func TestFullDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemStorage()
		m.size, m.held, m.free = 100, true, 1000
		g, f := guardOver(m)
		ctx, cancel := context.WithCancel(t.Context())
		ran := make(chan error, 1)
		go func() { ran <- g.Run(ctx) }()
		expect := func(what string, readOnly, held bool) {
			t.Helper()
			time.Sleep(spaceEvery)
			synctest.Wait()
			if _, h := m.Reserve(); g.ReadOnly() != readOnly || h != held {
				t.Errorf("%s: read-only %v, reserve held %v", what, g.ReadOnly(), h)
			}
		}
		expect("plenty", false, true)
		m.setFree(0)
		expect("filled by others", true, true)
		if _, err := g.Snapshots().Create(1, 1, 1, raft.Configuration{}, 1, nil); !errors.Is(err, ErrReadOnly) {
			t.Errorf("snapshot: %v", err)
		}
		m.setHook(func(op string) error {
			if free, _ := m.Free(); free < 10 {
				return fmt.Errorf("write: %w", syscall.ENOSPC)
			}
			return nil
		})
		mustStore(t, g.Log(), entries(1, 1, 1, 10))
		expect("released by a write", true, false)
		m.setFree(149)
		expect("not enough", true, false)
		m.setFree(150)
		expect("enough", false, true)
		m.setHook(func(string) error { return syscall.ENOSPC })
		if err := m.ReleaseReserve(); err != nil {
			t.Fatal(err)
		}
		expect("cannot be taken again", true, false)
		m.setHook(nil)
		expect("can be taken again", false, true)
		m.setFree(0)
		expect("full again", true, true)
		m.setHook(func(string) error { return syscall.ENOSPC })
		if err := g.Log().StoreLogs(entries(2, 1, 1, 10)); !errors.Is(err, syscall.ENOSPC) || len(f.all()) != 1 {
			t.Errorf("a write that the reserve does not save: %v, fatal %v", err, f.all())
		}
		cancel()
		<-ran
	})
}

func TestRunEndsWhileSpaceCheckHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemStorage()
		m.size, m.free = 64, 1000
		release := make(chan struct{})
		m.setHook(func(string) error { <-release; return nil })
		g, _ := guardOver(m)
		ctx, cancel := context.WithCancel(t.Context())
		ran := make(chan error, 1)
		go func() { ran <- g.Run(ctx) }()
		synctest.Wait()
		cancel()
		if err := <-ran; err != nil {
			t.Error(err)
		}
		close(release)
	})
}
