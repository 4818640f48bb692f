package storage

import (
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
)

func openDir(t testing.TB, path string) *Dir {
	t.Helper()
	d, err := Open(Options{Dir: path, Logger: hclog.NewNullLogger()})
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	t.Cleanup(func() { _ = d.Close() })
	return d
}

// fatals records the errors passed to OnFatal.
type fatals struct {
	mu   sync.Mutex
	errs []error
}

func (f *fatals) add(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.errs = append(f.errs, err)
}

func (f *fatals) all() []error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]error(nil), f.errs...)
}

func guardOver(s Storage) (*Guarded, *fatals) {
	f := &fatals{}
	return Guard(s, GuardConfig{
		StallMin: 150 * time.Millisecond, StallMax: 300 * time.Millisecond, OnFatal: f.add,
		Logger: hclog.NewNullLogger(),
	}), f
}

// guardDir opens a directory under a guard. A fatal error fails the test.
func guardDir(t testing.TB, path string) *Guarded {
	t.Helper()
	g, f := guardOver(openDir(t, path))
	t.Cleanup(func() {
		for _, err := range f.all() {
			t.Errorf("fatal: %v", err)
		}
	})
	return g
}

func entries(first uint64, n int, term uint64, size int) []*raft.Log {
	out := make([]*raft.Log, n)
	for i := range out {
		index := first + uint64(i)
		data := make([]byte, size)
		for j := range data {
			data[j] = byte(index + term + uint64(j))
		}
		out[i] = &raft.Log{
			Index: index, Term: term, Type: raft.LogCommand, Data: data,
			AppendedAt: time.Unix(1_700_000_000,
				int64(index)).UTC(),
		}
	}
	return out
}

func mustStore(t testing.TB, l raft.LogStore, e []*raft.Log) {
	t.Helper()
	if err := l.StoreLogs(e); err != nil {
		t.Fatalf("StoreLogs: %v", err)
	}
}

// toBolt moves what the journal has to bbolt.
func toBolt(t testing.TB, g *Guarded) {
	t.Helper()
	l := g.storage.(*Dir).log
	last, _ := l.LastIndex()
	if err := l.storeInBolt(nil, tail{last: last, journal: true}); err != nil {
		t.Fatal(err)
	}
}
