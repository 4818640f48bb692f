package storage

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"

	"github.com/hashicorp/raft"
)

// openers are the storages whose guarded logs must behave alike. Each call opens the same storage again.
func openers(t *testing.T) map[string]func() *Guarded {
	path := t.TempDir()
	mem := newMemStorage()
	return map[string]func() *Guarded{
		"dir":    func() *Guarded { return guardDir(t, path) },
		"memory": func() *Guarded { g, _ := guardOver(mem); return g },
	}
}

func TestLogBehaviour(t *testing.T) {
	for _, test := range []struct {
		name string
		run  func(t *testing.T, l raft.LogStore)
		// want is the log's content afterwards: index → term.
		want map[uint64]uint64
	}{
		{"empty", func(*testing.T, raft.LogStore) {}, nil},
		{"one", func(t *testing.T, l raft.LogStore) {
			if err := l.StoreLog(entries(1, 1, 1, 10)[0]); err != nil {
				t.Fatal(err)
			}
		}, terms(1, 1, 1)},
		{"nothing to store", func(t *testing.T, l raft.LogStore) { mustStore(t, l, nil) }, nil},
		{"several calls", func(t *testing.T, l raft.LogStore) {
			mustStore(t, l, entries(1, 5, 1, 10))
			mustStore(t, l, entries(6, 5, 2, 10))
		}, terms(1, 5, 1, 6, 10, 2)},
		{
			"starts later", func(t *testing.T, l raft.LogStore) { mustStore(t, l, entries(100, 3, 1, 10)) },
			terms(100, 102, 1),
		},
		{"overwritten", func(t *testing.T, l raft.LogStore) {
			mustStore(t, l, entries(1, 10, 1, 10))
			mustStore(t, l, entries(4, 2, 2, 30))
		}, terms(1, 10, 1, 4, 5, 2)},
		{"prefix deleted", func(t *testing.T, l raft.LogStore) {
			mustStore(t, l, entries(1, 10, 1, 10))
			mustDelete(t, l, 1, 4)
		}, terms(5, 10, 1)},
		{"suffix deleted and rewritten", func(t *testing.T, l raft.LogStore) {
			mustStore(t, l, entries(1, 10, 1, 10))
			mustDelete(t, l, 7, 10)
			mustStore(t, l, entries(7, 2, 2, 10))
		}, terms(1, 6, 1, 7, 8, 2)},
		{"all deleted", func(t *testing.T, l raft.LogStore) {
			mustStore(t, l, entries(5, 10, 1, 10))
			mustDelete(t, l, 5, 14)
		}, nil},
		{"all deleted, begun again", func(t *testing.T, l raft.LogStore) {
			mustStore(t, l, entries(5, 10, 1, 10))
			mustDelete(t, l, 5, 14)
			mustStore(t, l, entries(50, 2, 3, 10))
		}, terms(50, 51, 3)},
		{"gap after a snapshot", func(t *testing.T, l raft.LogStore) {
			mustStore(t, l, entries(1, 3, 1, 10))
			mustStore(t, l, entries(100, 3, 2, 10))
		}, terms(1, 3, 1, 100, 102, 2)},
		{"deleted across a gap", func(t *testing.T, l raft.LogStore) {
			mustStore(t, l, entries(1, 3, 1, 10))
			mustStore(t, l, entries(1_000_000_000_000, 3, 2, 10))
			mustDelete(t, l, 2, 1_000_000_000_000)
		}, terms(1, 1, 1, 1_000_000_000_001, 1_000_000_000_002, 2)},
		{"many deleted at the same time", func(t *testing.T, l raft.LogStore) {
			mustStore(t, l, entries(1, 3000, 1, 100))
			mustDelete(t, l, 1, 2777)
		}, terms(2778, 3000, 1)},
		{"batch of several calls' size", func(t *testing.T, l raft.LogStore) {
			mustStore(t, l, entries(1, 7, 1, 700_000))
		}, terms(1, 7, 1)},
	} {
		for name, open := range openers(t) {
			if name == "memory" && test.name == "deleted across a gap" {
				continue // raft.InmemStore walks the gap
			}
			t.Run(test.name+"/"+name, func(t *testing.T) {
				g := open()
				test.run(t, g.Log())
				checkLogHolds(t, g.Log(), test.want)
				g.cache.clear()
				checkLogHolds(t, g.Log(), test.want)
				if name == "memory" {
					return
				}
				if err := g.Close(); err != nil {
					t.Fatal(err)
				}
				file := logFileOf(g)
				c, err := checkLog(file, noEntries, nil)
				if err != nil {
					t.Fatalf("file check: %v", err)
				}
				l, err := openLog(file, c)
				if err != nil {
					t.Fatal(err)
				}
				checkLogHolds(t, &guardedLog{guard: g, store: l}, test.want)
				if err := l.close(); err != nil {
					t.Fatal(err)
				}
			})
		}
	}
}

func logFileOf(g *Guarded) string { return g.storage.(*Dir).file(logName) }

// terms lists entries as ranges: first, last, term, and so on.
func terms(ranges ...uint64) map[uint64]uint64 {
	m := map[uint64]uint64{}
	for i := 0; i < len(ranges); i += 3 {
		for index := ranges[i]; index <= ranges[i+1]; index++ {
			m[index] = ranges[i+2]
		}
	}
	return m
}

func mustDelete(t testing.TB, l raft.LogStore, from, to uint64) {
	t.Helper()
	if err := l.DeleteRange(from, to); err != nil {
		t.Fatalf("DeleteRange: %v", err)
	}
}

func checkLogHolds(t testing.TB, l raft.LogStore, want map[uint64]uint64) {
	t.Helper()
	first, err1 := l.FirstIndex()
	last, err2 := l.LastIndex()
	wantFirst, wantLast := uint64(0), uint64(0)
	for index := range want {
		wantLast = max(wantLast, index)
		if wantFirst == 0 || index < wantFirst {
			wantFirst = index
		}
	}
	if err := errors.Join(err1, err2); err != nil || first != wantFirst || last != wantLast {
		t.Fatalf("log holds %d to %d, %v; want %d to %d", first, last, err, wantFirst, wantLast)
	}
	for index := range want {
		for _, near := range []uint64{index - 1, index, index + 1} {
			var e raft.Log
			err := l.GetLog(near, &e)
			term, ok := want[near]
			if !ok {
				if err != raft.ErrLogNotFound { //nolint:errorlint // the library compares so
					t.Fatalf("GetLog(%d) of no entry: %v", near, err)
				}
				continue
			}
			if err != nil || e.Index != near || e.Term != term || e.Extensions != nil ||
				!e.AppendedAt.Equal(time.Unix(1_700_000_000, int64(near))) {
				t.Fatalf("GetLog(%d): %+v, %v; want term %d", near, e, err, term)
			}
			if data := entries(near, 1, term, len(e.Data))[0].Data; !bytes.Equal(e.Data, data) {
				t.Fatalf("GetLog(%d): wrong data", near)
			}
		}
	}
}

// TestLogKeepsBytes: reads return exactly the stored bytes, nil and empty included.
func TestLogKeepsBytes(t *testing.T) {
	for name, open := range openers(t) {
		t.Run(name, func(t *testing.T) {
			g := open()
			var given []*raft.Log
			for _, data := range [][]byte{nil, {}, {0}, []byte("data")} {
				for _, ext := range [][]byte{nil, {}, {extensionsNil, 0, 0, 0, 0}, []byte("extensions")} {
					for _, kind := range []raft.LogType{raft.LogCommand, raft.LogNoop, raft.LogConfiguration} {
						given = append(given, &raft.Log{
							Index: uint64(len(given)) + 1, Term: 2, Type: kind, Data: data,
							Extensions: ext,
						})
					}
				}
			}
			want := make([]raft.Log, len(given))
			for i, e := range given {
				want[i] = *e
			}
			mustStore(t, g.Log(), given)
			for i, e := range given {
				if !reflect.DeepEqual(*e, want[i]) {
					t.Fatalf("entry %d was changed to %+v", e.Index, *e)
				}
			}
			for _, from := range []string{"cache", "store"} {
				for _, e := range want {
					got := raft.Log{Term: 99, Data: []byte("old"), Extensions: []byte("old")}
					if err := g.Log().GetLog(e.Index, &got); err != nil || !reflect.DeepEqual(got, e) {
						t.Fatalf("from %s: %#v, %v; want %#v", from, got, err, e)
					}
				}
				g.cache.clear()
			}
		})
	}
}

// TestLogModel does random operations and compares the log with a map. It reopens the log after crashes,
// where nothing is closed first, and after clean ends.
func TestLogModel(t *testing.T) {
	for seed := range uint64(4) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { runLogModel(t, rand.New(rand.NewPCG(seed, 1))) })
	}
}

func runLogModel(t *testing.T, rng *rand.Rand) {
	path := t.TempDir()
	g := guardDir(t, path)
	model := map[uint64]uint64{}
	first, last, term := uint64(1), uint64(0), uint64(1)
	if err := g.Stable().SetUint64([]byte(keyCurrentTerm), 1000); err != nil {
		t.Fatal(err)
	}
	for range 120 {
		switch op := rng.IntN(10); {
		case op < 5:
			n := 1 + rng.IntN(40)
			mustStore(t, g.Log(), entries(last+1, n, term, rng.IntN(600)))
			for range n {
				last++
				model[last] = term
			}
		case op < 7 && last > first:
			from := first + rng.Uint64N(last-first) + 1
			mustDelete(t, g.Log(), from, last)
			for ; last >= from; last-- {
				delete(model, last)
			}
			term++
		case op < 8 && last > first:
			to := first + rng.Uint64N(last-first)
			makeSnapshot(t, g, to, model[to])
			mustDelete(t, g.Log(), first, to)
			for ; first <= to; first++ {
				delete(model, first)
			}
		case op == 8:
			crashed := copyDir(t, path) // the files as a kill would leave them
			checkLogHolds(t, guardDir(t, crashed).Log(), model)
		default:
			if err := g.Close(); err != nil {
				t.Fatal(err)
			}
			g = guardDir(t, path)
		}
		checkLogHolds(t, g.Log(), model)
	}
}
