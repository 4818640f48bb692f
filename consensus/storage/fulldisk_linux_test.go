package storage

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"
)

// smallDisk mounts a file system of size bytes.
func smallDisk(t *testing.T, size string) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size="+size); err != nil {
		t.Skipf("cannot mount a small file system: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// fill writes a file until the disk is full.
func fill(t *testing.T, path string) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	for _, n := range []int{1 << 20, 1 << 12, 1} {
		for b := bytes.Repeat([]byte{1}, n); ; {
			if _, err := f.Write(b); errors.Is(err, unix.ENOSPC) {
				break
			} else if err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestFullFileSystem lets another program fill the disk that a node uses.
func TestFullFileSystem(t *testing.T) {
	disk := smallDisk(t, "32m")
	open := func() (*Dir, *Guarded, *fatals) {
		t.Helper()
		d, err := Open(Options{Dir: filepath.Join(disk, "data"), Reserve: 8 << 20, Logger: hclog.NewNullLogger()})
		if err != nil {
			t.Fatal(err)
		}
		g, f := guardOver(d)
		g.checkSpace()
		return d, g, f
	}
	expect := func(d *Dir, g *Guarded, readOnly, held bool) {
		t.Helper()
		g.checkSpace()
		if _, h := d.Space().Reserve(); g.ReadOnly() != readOnly || h != held {
			free, _ := d.Space().Free()
			t.Fatalf("read-only %v, reserve held %v, %d free", g.ReadOnly(), h, free)
		}
	}
	d, g, f := open()
	expect(d, g, false, true)
	mustStore(t, g.Log(), entries(1, 10, 1, 1000))
	term := func(term uint64) {
		t.Helper()
		if err := g.Stable().SetUint64([]byte(keyCurrentTerm), term); err != nil {
			t.Fatal(err)
		}
	}
	term(2)

	other := filepath.Join(disk, "other")
	fill(t, other)
	expect(d, g, true, true)
	term(3) // in place: needs no space
	expect(d, g, true, true)
	mustStore(t, g.Log(), entries(11, 500, 2, 1000)) // accepted before: needs the reserve
	if err := g.Save("identity.json", make([]byte, 1000)); err != nil {
		t.Fatal(err)
	}
	expect(d, g, true, false)
	if err := g.Close(); err != nil {
		t.Fatal(err)
	}

	d, g, f2 := open() // on the full disk
	expect(d, g, true, false)
	checkLogHolds(t, g.Log(), terms(1, 10, 1, 11, 510, 2))
	if err := os.Remove(other); err != nil {
		t.Fatal(err)
	}
	expect(d, g, false, true)
	mustStore(t, g.Log(), entries(511, 10, 3, 1000))
	toBolt(t, g) // so that neither stop nor start needs space

	fill(t, other)
	if err := g.Close(); err != nil {
		t.Fatal(err)
	}
	d, g, f3 := open() // full except for the reserve
	expect(d, g, true, true)
	var err error
	for index := uint64(521); err == nil && index < 100_000; index += 100 {
		err = g.Log().StoreLogs(entries(index, 100, 3, 1000))
	}
	if !errors.Is(err, unix.ENOSPC) && !isNoSpace(err) || len(f3.all()) != 1 {
		t.Errorf("more than the reserve: %v, fatal %v", err, f3.all())
	}
	if errs := append(f.all(), f2.all()...); len(errs) > 0 {
		t.Errorf("fatal: %v", errs)
	}
	if err := g.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(other); err != nil {
		t.Fatal(err)
	}
	d, g, _ = open() // the last write may have failed, but its remains are sound
	expect(d, g, false, true)
	if err := g.Close(); err != nil {
		t.Error(err)
	}
}

// TestReserveSavesOpening: a start on a disk that is full except for the reserve uses the reserve.
func TestReserveSavesOpening(t *testing.T) {
	disk := smallDisk(t, "8m")
	dir := filepath.Join(disk, "data")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := openReserve(filepath.Join(dir, reserveName), 2<<20); err != nil {
		t.Fatal(err)
	}
	fill(t, filepath.Join(disk, "other"))
	d, err := Open(Options{Dir: dir, Reserve: 2 << 20, Logger: hclog.NewNullLogger()})
	if err != nil {
		t.Fatal(err)
	}
	g, f := guardOver(d)
	g.checkSpace()
	if _, held := d.Space().Reserve(); held || !g.ReadOnly() {
		t.Errorf("reserve held %v, read-only %v", held, g.ReadOnly())
	}
	mustStore(t, g.Log(), entries(1, 10, 1, 1000))
	if err := g.Close(); err != nil || len(f.all()) > 0 {
		t.Errorf("%v, fatal %v", err, f.all())
	}
}

// TestNoSpaceAtAll: the error for a disk without room for a new data directory is clear.
func TestNoSpaceAtAll(t *testing.T) {
	disk := smallDisk(t, "1m")
	fill(t, filepath.Join(disk, "other"))
	_, err := Open(Options{Dir: filepath.Join(disk, "data"), Reserve: 8 << 20, Logger: hclog.NewNullLogger()})
	if !isNoSpace(err) {
		t.Errorf("got %v", err)
	}
}
