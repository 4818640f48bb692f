package storage

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"golang.org/x/sys/unix"
)

// A killed process may hold the lock of the log when that of the directory is free again. The opening waits for it.
func TestAwaitFileLock(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "log.db")
	holder, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer holder.Close()
	if err := unix.Flock(int(holder.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	if err := awaitFileLock(path, 0); err == nil || !strings.Contains(err.Error(), "another process") {
		t.Errorf("got %v", err)
	}
	done := make(chan error, 1)
	go func() { done <- awaitFileLock(path, time.Minute) }()
	if err := unix.Flock(int(holder.Fd()), unix.LOCK_UN); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	if err := unix.Flock(int(holder.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		t.Errorf("the lock is still held: %v", err)
	}
}

// What the opening has read of the log is in the cache, without the rest of an unfinished deletion.
func TestOpeningFillsTheCache(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	g := guardDir(t, dir)
	mustStore(t, g.Log(), entries(1, 100, 1, 256))
	if err := g.Stable().SetUint64([]byte(keyCurrentTerm), 1); err != nil {
		t.Fatal(err)
	}
	if err := g.Close(); err != nil {
		t.Fatal(err)
	}
	d := openDir(t, dir)
	mark := tail{last: 90, untaggedTx: 1, from: 91, to: 100, journal: true}
	if err := d.log.storeInBolt(nil, mark); err != nil { // and the process dies
		t.Fatal(err)
	}
	again := guardDir(t, copyDir(t, dir))
	for _, want := range entries(1, 100, 1, 256) {
		var got raft.Log
		cached := again.cache.get(want.Index, &got)
		same := string(got.Data) == string(want.Data) && len(got.Extensions) == 0
		if cached != (want.Index <= 90) || cached && !same {
			t.Errorf("entry %d: cached %v, %d bytes and %d", want.Index, cached, len(got.Data), len(got.Extensions))
		}
	}
}
