package storage

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
)

// crashAt opens a copy of a directory whose journal has other content, and checks its entries.
func crashAt(t *testing.T, dir string, journal []byte, last uint64) {
	t.Helper()
	copied := copyDir(t, dir)
	if err := os.WriteFile(filepath.Join(copied, journalName), journal, 0o600); err != nil {
		t.Fatal(err)
	}
	g := guardDir(t, copied)
	checkLogHolds(t, g.Log(), terms(1, last, 1))
	mustStore(t, g.Log(), entries(last+1, 1, 1, 10))
	if err := g.Close(); err != nil {
		t.Fatal(err)
	}
}

// The power fails while an append is written: any of its sectors are on the disk. What was acknowledged is there, the
// entries of the append are all there or not at all, and the log can be written.
func TestJournal_PowerFailsInAnAppend(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	g := guardDir(t, dir)
	if err := g.Stable().SetUint64([]byte(keyCurrentTerm), 1); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, journalName)
	read := func() []byte {
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return content
	}
	mustStore(t, g.Log(), entries(1, 30, 1, 300)) // what an earlier epoch has left behind
	toBolt(t, g)
	for last := uint64(30); last < 33; last++ {
		before := read()
		from := g.storage.(*Dir).log.journal.off
		mustStore(t, g.Log(), entries(last+1, 1, 1, 1200))
		after := read()
		sectors := int(g.storage.(*Dir).log.journal.off-from) / sectorSize
		for written := range 1 << sectors {
			torn := bytes.Clone(before)
			for i := range sectors {
				if at := int(from) + i*sectorSize; written>>i&1 == 1 {
					copy(torn[at:at+sectorSize], after[at:])
				}
			}
			have := last
			if written == 1<<sectors-1 {
				have++
			}
			crashAt(t, dir, torn, have)
		}
	}
}

// Small appends, large ones, truncations and crashes in any order: what was acknowledged is there.
func TestJournal_Random(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(3, 7))
	dir := t.TempDir()
	g := guardDir(t, dir)
	if err := g.Stable().SetUint64([]byte(keyCurrentTerm), 1000); err != nil {
		t.Fatal(err)
	}
	var want []*raft.Log
	for step, term := 0, uint64(1); step < 400; step++ {
		last := uint64(len(want))
		switch n := r.IntN(20); {
		case n < 14:
			size := 1 + r.IntN(2000)
			if n == 0 {
				size = maxJournaled / 4
			}
			more := entries(last+1, 1+r.IntN(8), term, size)
			more[0].Extensions, more[0].Data = []byte{}, nil
			mustStore(t, g.Log(), more)
			want = append(want, more...)
		case n < 16 && len(want) > 0:
			cut := r.IntN(len(want))
			if err := g.Log().DeleteRange(uint64(cut)+1, last); err != nil {
				t.Fatal(err)
			}
			want = want[:cut]
			term++
		case n < 18: // the process is killed
			dir = copyDir(t, dir)
			g = guardDir(t, dir)
		}
		for i, w := range want {
			var got raft.Log
			g.cache.clear()
			if err := g.Log().GetLog(uint64(i)+1, &got); err != nil {
				t.Fatalf("step %d: entry %d: %v", step, i+1, err)
			}
			if w := *w; got.Term != w.Term || !bytes.Equal(got.Data, w.Data) ||
				!reflect.DeepEqual(got.Extensions, w.Extensions) {
				t.Fatalf("step %d: entry %d is %+v, want %+v", step, i+1, got, w)
			}
		}
	}
}

// A build without a journal opens what a stopped node leaves, and refuses what a killed one leaves.
func TestJournal_OlderBuild(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	magic := func() uint32 {
		file, err := os.ReadFile(filepath.Join(dir, logName))
		if err != nil {
			t.Fatal(err)
		}
		content, err := checkBolt(bytes.NewReader(file), int64(len(file)), func(uint64, func() ([]byte, error)) error {
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		e, err := decodeEntry(content.tail)
		if err != nil {
			t.Fatal(err)
		}
		return uint32(e.Data[0])<<24 | uint32(e.Data[1])<<16 | uint32(e.Data[2])<<8 | uint32(e.Data[3])
	}
	g := guardDir(t, dir)
	if got := magic(); got != journalMagic {
		t.Errorf("of a node that runs: %x", got)
	}
	mustStore(t, g.Log(), entries(1, 5, 0, 100))
	if err := g.Close(); err != nil {
		t.Fatal(err)
	}
	if got := magic(); got != tailMagic {
		t.Errorf("of a node that has stopped: %x", got)
	}
	if err := os.Remove(filepath.Join(dir, journalName)); err != nil {
		t.Fatal(err)
	}
	g = guardDir(t, dir)
	checkLogHolds(t, g.Log(), terms(1, 5, 0))
}

// What a whole journal cannot look like is damage: a record that is missing before another, records of a transaction
// that the log does not have, no file, or one of another size.
func TestJournal_Damage(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	g := guardDir(t, dir)
	mustStore(t, g.Log(), entries(1, 1, 0, 100))
	toBolt(t, g)
	older := g.storage.(*Dir).log.journal.epoch
	for index := uint64(2); index < 5; index++ {
		mustStore(t, g.Log(), entries(index, 1, 0, 100)) // a sector each
	}
	content, err := os.ReadFile(filepath.Join(dir, journalName))
	if err != nil {
		t.Fatal(err)
	}
	tag := func(sector int, epoch, seq uint64) []byte {
		c := bytes.Clone(content)
		for _, at := range []int{sector * sectorSize, (sector+1)*sectorSize - tagSize} {
			binary.BigEndian.PutUint64(c[at:], sectorTag(epoch, seq))
		}
		return c
	}
	for name, damaged := range map[string][]byte{
		"a record in the middle was lost":       tag(1, older-1, 2),
		"records of a newer transaction":        tag(9, older+2, 1),
		"no file":                               nil,
		"a file of another size":                content[:journalSize/2],
		"the ends of a sector differ":           append(bytes.Clone(content[:tagSize]), tag(0, older+9, 9)[tagSize:]...),
		"a longer file than it has been before": append(bytes.Clone(content), 0),
	} {
		copied := copyDir(t, dir)
		path := filepath.Join(copied, journalName)
		err := os.Remove(path)
		if damaged != nil {
			err = os.WriteFile(path, damaged, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		var found *DamagedError
		_, err = Open(Options{Dir: copied, Logger: hclog.NewNullLogger()})
		if !errors.As(err, &found) || found.Path != path {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// After a transaction that may be in the file or not, nothing is written: neither entries nor the tail of a clean stop.
func TestJournal_NothingAfterAFailedTransaction(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l := openDir(t, dir).log
	mustStore(t, l, addChecksums(entries(1, 3, 0, 100)))
	if err := l.update(func() error { return errors.New("the sync of the meta page failed") }); err == nil {
		t.Fatal("no error")
	}
	read := func(name string) []byte {
		content, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return content
	}
	log, journal := read(logName), read(journalName)
	if err := l.StoreLogs(addChecksums(entries(4, 1, 0, 100))); err == nil {
		t.Error("an entry is stored")
	}
	if err := l.DeleteRange(2, 3); err == nil {
		t.Error("entries are deleted")
	}
	if err := l.close(); err != nil {
		t.Error(err)
	}
	if !bytes.Equal(log, read(logName)) || !bytes.Equal(journal, read(journalName)) {
		t.Error("something was written")
	}
}

// A new log beside the journal of an earlier one takes no record from it.
func TestJournal_OfAnEarlierLog(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	g := guardDir(t, dir)
	for index := uint64(1); index < 4; index++ {
		mustStore(t, g.Log(), entries(index, 1, 0, 2000))
	}
	life := copyDir(t, dir)
	for _, name := range []string{logName, voteName} {
		if err := os.Remove(filepath.Join(life, name)); err != nil {
			t.Fatal(err)
		}
	}
	g = guardDir(t, life)
	mustStore(t, g.Log(), entries(1, 1, 0, 2000))
	checkLogHolds(t, guardDir(t, copyDir(t, life)).Log(), terms(1, 1, 0))
}

// FuzzDecodeJournal checks that a journal of any content neither panics nor is read without end.
func FuzzDecodeJournal(f *testing.F) {
	dir := f.TempDir()
	g := guardDir(f, dir)
	mustStore(f, g.Log(), entries(1, 3, 1, 300))
	mustStore(f, g.Log(), entries(4, 1, 1, 20))
	content, err := os.ReadFile(filepath.Join(dir, journalName))
	if err != nil {
		f.Fatal(err)
	}
	j := g.storage.(*Dir).log.journal
	f.Add(content[:j.off], uint32(0), []byte{})
	f.Fuzz(func(t *testing.T, b []byte, at uint32, patch []byte) {
		whole := make([]byte, journalSize)
		copy(whole, b)
		copy(whole[int(at)%len(whole):], patch)
		_, _ = decodeJournal(whole, j.epoch)
	})
}
