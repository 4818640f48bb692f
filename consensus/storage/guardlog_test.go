package storage

import (
	"fmt"
	"io"
	"math/rand/v2"
	"reflect"
	"testing"
	"testing/synctest"

	"github.com/hashicorp/raft"
)

// TestWrongEntry stores invalid entries behind the guard's back. The guard must not accept them.
func TestWrongEntry(t *testing.T) {
	good := addChecksums(entries(1, 1, 1, 10))[0]
	for name, change := range map[string]func(e *raft.Log){
		"no checksum":       func(e *raft.Log) { e.Extensions = nil },
		"cut checksum":      func(e *raft.Log) { e.Extensions = e.Extensions[:4] },
		"other data":        func(e *raft.Log) { e.Data = []byte("other") },
		"other term":        func(e *raft.Log) { e.Term++ },
		"other type":        func(e *raft.Log) { e.Type = raft.LogNoop },
		"other extensions":  func(e *raft.Log) { e.Extensions = append([]byte{1}, e.Extensions...) },
		"other time":        func(e *raft.Log) { e.AppendedAt = e.AppendedAt.Add(1) },
		"extensions or not": func(e *raft.Log) { e.Extensions = append([]byte{extensionsSet}, e.Extensions[1:]...) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newMemStorage()
				g, f := guardOver(m)
				e := *good
				change(&e)
				if err := m.log.InmemStore.StoreLog(&e); err != nil {
					t.Fatal(err)
				}
				if err := g.Log().GetLog(1, new(raft.Log)); err == nil || len(f.all()) != 1 {
					t.Errorf("got %v, fatal %v", err, f.all())
				}
			})
		})
	}
	e := *good
	if err := verifyChecksum(2, &e); err == nil {
		t.Error("the entry of another index passes")
	}
}

// TestFailedStoreCachesNothing: the cache returns no entries that the store refused.
func TestFailedStoreCachesNothing(t *testing.T) {
	m := newMemStorage()
	g, _ := guardOver(m)
	calls := 0
	m.setHook(func(op string) error {
		if calls++; calls == 2 {
			return io.ErrUnexpectedEOF
		}
		return nil
	})
	if err := g.Log().StoreLogs(entries(1, 4, 1, 500_000)); err == nil {
		t.Fatal("the second call did not fail")
	}
	for index := uint64(1); index <= 4; index++ {
		err := g.Log().GetLog(index, new(raft.Log))
		if stored := index <= 2; stored != (err == nil) {
			t.Errorf("entry %d: %v", index, err)
		}
	}
}

// TestFailedOverwriteCachesNothing: after a failed overwrite the cache returns none of the old entries,
// because the store may have replaced them.
func TestFailedOverwriteCachesNothing(t *testing.T) {
	m := newMemStorage()
	g, _ := guardOver(m)
	mustStore(t, g.Log(), entries(1, 4, 1, 10))
	m.setHook(func(string) error {
		_ = m.log.InmemStore.StoreLogs(addChecksums(entries(3, 2, 2, 10)))
		m.setHook(nil)
		return io.ErrUnexpectedEOF
	})
	if err := g.Log().StoreLogs(entries(3, 2, 2, 10)); err == nil {
		t.Fatal("the store did not fail")
	}
	var e raft.Log
	if err := g.Log().GetLog(3, &e); err != nil || e.Term != 2 {
		t.Errorf("term %d, %v", e.Term, err)
	}
}

// TestCallsAreBounded: one call of the store has at most 1 MiB, or one entry.
func TestCallsAreBounded(t *testing.T) {
	m := newMemStorage()
	g, _ := guardOver(m)
	calls := 0
	m.setHook(func(string) error { calls++; return nil })
	batch := append(entries(1, 3, 1, 400_000), entries(4, 1, 1, 3<<20)...)
	batch = append(batch, entries(5, 1000, 1, 100)...)
	mustStore(t, g.Log(), batch)
	if calls != 4 { // 1–2, 3, 4, 5–1004
		t.Errorf("%d calls", calls)
	}
}

// TestCacheModel compares the cache with a map: every entry that the cache returns was stored last, and the
// cache stays within its bounds.
func TestCacheModel(t *testing.T) {
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 2))
		c := newCache(4000+entryOverhead*20, 25)
		model := map[uint64]*raft.Log{}
		last := uint64(0)
		for range 400 {
			switch rng.IntN(4) {
			case 0, 1:
				first := last + 1
				switch rng.IntN(8) {
				case 0:
					first = 1 + rng.Uint64N(last+1) // overwrites
				case 1:
					first = last + 2 + rng.Uint64N(50) // leaves a gap
				}
				batch := entries(first, 1+rng.IntN(10), rng.Uint64N(100), rng.IntN(500))
				for _, e := range batch {
					model[e.Index] = e
					last = max(last, e.Index)
				}
				c.add(batch)
			default:
				from := rng.Uint64N(last + 2)
				to := from + rng.Uint64N(30)
				for i := from; i <= to; i++ {
					delete(model, i)
				}
				for last > 0 && model[last] == nil {
					last--
				}
				c.deleteRange(from, to)
			}
			checkCache(t, c, model, last)
		}
	}
}

func checkCache(t *testing.T, c *cache, model map[uint64]*raft.Log, last uint64) {
	t.Helper()
	size := 0
	for i := range c.entries[c.head:] {
		size += entrySize(&c.entries[c.head+i])
	}
	if size != c.bytes || size > c.maxBytes || len(c.entries)-c.head > c.maxEntries {
		t.Fatalf("%d entries of %d bytes, %d counted", len(c.entries)-c.head, size, c.bytes)
	}
	for i := uint64(0); i <= last+60; i++ {
		var e raft.Log
		if c.get(i, &e) && (model[i] == nil || !reflect.DeepEqual(e, *model[i])) {
			t.Fatalf("entry %d: cached %+v, stored %+v", i, e, model[i])
		}
	}
}

// TestCacheServesNewest: reads of the entries that the leader replicates do not reach the store.
func TestCacheServesNewest(t *testing.T) {
	m := newMemStorage()
	g, _ := guardOver(m)
	mustStore(t, g.Log(), entries(1, 9000, 1, 100))
	m.setHook(func(op string) error { return fmt.Errorf("%s of the store", op) })
	for index := uint64(9000 - cacheEntries + 1); index <= 9000; index++ {
		if err := g.Log().GetLog(index, new(raft.Log)); err != nil {
			t.Fatal(err)
		}
	}
}
