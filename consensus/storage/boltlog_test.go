package storage

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/go-msgpack/v2/codec"
	"github.com/hashicorp/raft"
)

// TestUnfinishedDeletion crashes between the two transactions of DeleteRange
// and at the steps of opening.
func TestUnfinishedDeletion(t *testing.T) {
	path := t.TempDir()
	g := guardDir(t, path)
	mustStore(t, g.Log(), entries(1, 20, 1, 100))
	if err := g.Stable().SetUint64([]byte(keyCurrentTerm), 1); err != nil {
		t.Fatal(err)
	}
	l := g.storage.(*Dir).log
	mark := tail{last: 12, untaggedTx: 1, from: 13, to: 20, journal: true}
	if err := l.storeInBolt(nil, mark); err != nil {
		t.Fatal(err)
	}
	crashed := copyDir(t, path)
	if err := l.store.DeleteRange(13, 20); err != nil {
		t.Fatal(err)
	}
	deleted := copyDir(t, path)
	for _, path := range []string{crashed, deleted} {
		for range 3 { // each opening ends without a write
			checkLogHolds(t, guardDir(t, copyDir(t, path)).Log(), terms(1, 12, 1))
			t12 := tail{last: 12, from: 13, to: 20}
			if _, err := writeOpeningTail(filepath.Join(path, logName), t12, nil); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestOlderPages replaces the newest version of the log's pages by an older one that is sound in itself. Only
// the tail record detects that.
func TestOlderPages(t *testing.T) {
	path := t.TempDir()
	g := guardDir(t, path)
	file := filepath.Join(path, logName)
	mustStore(t, g.Log(), entries(1, 60, 1, 100))
	toBolt(t, g)
	older, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	mustStore(t, g.Log(), entries(61, 1, 1, 100))
	toBolt(t, g)
	newer, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	olderMeta, err := newestMeta(bytes.NewReader(older))
	if err != nil {
		t.Fatal(err)
	}
	newerMeta, err := newestMeta(bytes.NewReader(newer))
	if err != nil {
		t.Fatal(err)
	}
	// The older root page, under the number of the newer one, leads to the
	// older pages, which are free but not yet overwritten.
	page := bytes.Clone(newer[olderMeta.root*4096:][:4096])
	page[0] = byte(newerMeta.root)
	copy(newer[newerMeta.root*4096:], page)
	journal, err := os.ReadFile(filepath.Join(path, journalName))
	if err != nil {
		t.Fatal(err)
	}
	if all, err := decodeFile(bytes.NewReader(newer), journal); err == nil {
		t.Fatalf("a log without its last entry passes: %d entries", len(all))
	}
}

// TestFullPages writes entries of many sizes, so that some pages of the log have no byte left.
func TestFullPages(t *testing.T) {
	t.Parallel()
	path := t.TempDir()
	g := guardDir(t, path)
	full := 0
	for size := 3700; size < 3950; size++ {
		first, _ := g.Log().LastIndex()
		mustStore(t, g.Log(), entries(first+1, 1, 1, size))
		toBolt(t, g)
		file, err := os.ReadFile(filepath.Join(path, logName))
		if err != nil {
			t.Fatal(err)
		}
		c := &boltChecker{r: bytes.NewReader(file)}
		if c.meta, err = newestMeta(c.r); err != nil {
			t.Fatal(err)
		}
		if _, err := checkBolt(c.r.(*bytes.Reader), int64(len(file)), func(uint64, func() ([]byte, error)) error {
			return nil
		}); err != nil {
			t.Fatalf("entries of %d bytes: %v", size, err)
		}
		for id := uint64(2); id < c.meta.pages; id++ {
			if p, err := c.page(id); err == nil && p.used == c.meta.pageSize {
				full++
			}
		}
		if err := g.Log().DeleteRange(1, first+1); err != nil {
			t.Fatal(err)
		}
	}
	if full == 0 {
		t.Error("no page was full")
	}
}

// TestTruncatedWhileOpen truncates the file under bbolt's memory map.
func TestTruncatedWhileOpen(t *testing.T) {
	g, f := guardOver(openDir(t, t.TempDir()))
	mustStore(t, g.Log(), entries(1, 200, 1, 1000))
	g.cache.clear()
	if err := os.Truncate(logFileOf(g), 8192); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		var e raft.Log
		done <- g.Log().GetLog(100, &e)
	}()
	waitFor(t, func() bool { return len(f.all()) == 1 })
	var damaged *DamagedError
	if err := f.all()[0]; !errors.As(err, &damaged) {
		t.Errorf("fatal: %v", err)
	}
	if err := g.Log().StoreLogs(entries(201, 1, 1, 10)); !errors.As(err, &damaged) {
		t.Errorf("a later write: %v", err)
	}
	if err := g.Close(); err != nil {
		t.Error(err)
	}
	<-ended // by Goexit: the library would have panicked on an error
	select {
	case err := <-done:
		t.Errorf("GetLog returned %v", err)
	default:
	}
}

// waitFor waits for a condition that another goroutine makes true.
func waitFor(t testing.TB, done func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !done(); {
		if time.Now().After(end) {
			t.Fatal("waited without success")
		}
		time.Sleep(time.Millisecond)
	}
}

// TestTailNamesLast: Open rejects a log whose last entry is not the last one written.
func TestTailNamesLast(t *testing.T) {
	content := func(last uint64) boltSummary {
		var value []byte
		if err := codec.NewEncoderBytes(&value, &msgpack).Encode(tail{txid: 7, last: 10}.entry()); err != nil {
			t.Fatal(err)
		}
		return boltSummary{txid: 7, spans: indexRanges{{1, last}}, tail: value}
	}
	if _, _, err := checkTail(content(10)); err != nil {
		t.Error(err)
	}
	if _, _, err := checkTail(content(9)); err == nil {
		t.Error("a missing entry passes")
	}
}

// TestWrongOverflow: bbolt panics at its opening when pages seem to overlap.
func TestWrongOverflow(t *testing.T) {
	dir := t.TempDir()
	g := guardDir(t, dir)
	mustStore(t, g.Log(), entries(1, 100, 1, 200))
	if err := errors.Join(g.Stable().SetUint64([]byte(keyCurrentTerm), 1), g.Close()); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, logName)
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	m, err := newestMeta(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	for page := m.root; page > 2 && page > m.root-2; page-- {
		b[page*4096+12] ^= 1
		if err := os.WriteFile(file, b, 0o600); err != nil {
			t.Fatal(err)
		}
		var damaged *DamagedError
		if _, err := Open(Options{Dir: dir, Logger: hclog.NewNullLogger()}); !errors.As(err, &damaged) {
			t.Errorf("page %d: %v", page, err)
		}
		b[page*4096+12] ^= 1
	}
}

// TestReadWhileDeleting: a read during a deletion returns the entry or raft.ErrLogNotFound.
func TestReadWhileDeleting(t *testing.T) {
	l := openDir(t, t.TempDir()).log
	mustStore(t, l, entries(1, 4000, 1, 50))
	done := make(chan struct{})
	go func() {
		defer close(done)
		for index := uint64(1); index <= 4000; index++ {
			if err := l.DeleteRange(index, index+19); err != nil {
				t.Error(err)
			}
			index += 19
		}
	}()
	for {
		select {
		case <-done:
			return
		default:
		}
		first, err := l.FirstIndex()
		if err != nil {
			t.Fatal(err)
		}
		for index := first; index < first+25; index++ {
			if err := l.GetLog(index, new(raft.Log)); err != nil && !errors.Is(err, raft.ErrLogNotFound) {
				t.Fatalf("entry %d: %v", index, err)
			}
		}
	}
}
