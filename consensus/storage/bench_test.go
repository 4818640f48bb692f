package storage

import (
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	"go.etcd.io/bbolt"
)

// benchAppend stores n entries of 256 bytes a call and reports the median.
func benchAppend(b *testing.B, l raft.LogStore, n int) {
	b.Helper()
	benchAppendFrom(b, l, 1, n)
}

func benchAppendFrom(b *testing.B, l raft.LogStore, next uint64, n int) {
	b.Helper()
	var took []time.Duration
	for b.Loop() {
		batch := entries(next, n, 1, 256)
		next += uint64(n)
		start := time.Now()
		mustStore(b, l, batch)
		took = append(took, time.Since(start))
	}
	report(b, took)
}

// BenchmarkAppend compares raft-boltdb by itself, with its default options
// and with ours, with this package's log and with that under the guard.
func BenchmarkAppend(b *testing.B) {
	bolt := func(o *bbolt.Options) func(*testing.B) raft.LogStore {
		return func(b *testing.B) raft.LogStore {
			s, err := raftboltdb.New(raftboltdb.Options{Path: filepath.Join(b.TempDir(), "log.db"), BoltOptions: o})
			if err != nil {
				b.Fatal(err)
			}
			b.Cleanup(func() { _ = s.Close() })
			return s
		}
	}
	for _, store := range []struct {
		name string
		open func(*testing.B) raft.LogStore
	}{
		{"default", bolt(nil)},
		{"options", bolt(boltOptions())},
		{"dir", func(b *testing.B) raft.LogStore { return openDir(b, b.TempDir()).Log() }},
		{"guarded", func(b *testing.B) raft.LogStore { return guardDir(b, b.TempDir()).Log() }},
	} {
		for _, n := range []int{1, 64} {
			b.Run(store.name+map[int]string{1: "/1", 64: "/64"}[n],
				func(b *testing.B) { benchAppend(b, store.open(b), n) })
		}
	}
}

// BenchmarkAppendAfterBurst appends once a burst of entries has been compacted
// away, which leaves many free pages.
func BenchmarkAppendAfterBurst(b *testing.B) {
	for name, o := range map[string]*bbolt.Options{"default": nil, "options": boltOptions()} {
		b.Run(name, func(b *testing.B) {
			s, err := raftboltdb.New(raftboltdb.Options{Path: filepath.Join(b.TempDir(), "log.db"), BoltOptions: o})
			if err != nil {
				b.Fatal(err)
			}
			defer func() { _ = s.Close() }()
			for i := range uint64(200) {
				mustStore(b, s, entries(1_000_000+i*1000, 1000, 1, 256))
			}
			if err := s.DeleteRange(1_000_000, 1_189_999); err != nil {
				b.Fatal(err)
			}
			benchAppendFrom(b, s, 1_200_000, 1)
		})
	}
}

// BenchmarkCompact deletes 8192 entries of 256 bytes, as one snapshot does.
func BenchmarkCompact(b *testing.B) {
	g := guardDir(b, b.TempDir())
	next := uint64(1)
	for ; next <= 16384; next += 512 {
		mustStore(b, g.Log(), entries(next, 512, 1, 256))
	}
	var took time.Duration
	for first := uint64(1); b.Loop(); first += 8192 {
		start := time.Now()
		if err := g.Log().DeleteRange(first, first+8191); err != nil {
			b.Fatal(err)
		}
		took += time.Since(start)
		for end := next + 8192; next < end; next += 512 {
			mustStore(b, g.Log(), entries(next, 512, 1, 256))
		}
	}
	b.ReportMetric(float64(took.Microseconds())/float64(b.N), "µs/compaction")
	b.ReportMetric(0, "ns/op")
}

// BenchmarkOpenFull opens a directory with 18,000 entries of 256 bytes, none
// of them in a snapshot.
func BenchmarkOpenFull(b *testing.B) {
	dir := b.TempDir()
	g := guardDir(b, dir)
	for next := uint64(1); next <= 18000; next += 500 {
		mustStore(b, g.Log(), entries(next, 500, 1, 256))
	}
	if err := g.Stable().SetUint64([]byte(keyCurrentTerm), 1); err != nil {
		b.Fatal(err)
	}
	if err := g.Close(); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if err := openDir(b, dir).Close(); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkVote records a vote in raft-boltdb, as two writes, and in the vote
// file.
func BenchmarkVote(b *testing.B) {
	b.Run("bolt", func(b *testing.B) {
		s, err := raftboltdb.New(raftboltdb.Options{
			Path:        filepath.Join(b.TempDir(), "stable.db"),
			BoltOptions: boltOptions(),
		})
		if err != nil {
			b.Fatal(err)
		}
		defer func() { _ = s.Close() }()
		benchVote(b, s)
	})
	b.Run("file", func(b *testing.B) { benchVote(b, guardDir(b, b.TempDir()).Stable()) })
}

func benchVote(b *testing.B, stable raft.StableStore) {
	b.Helper()
	term := uint64(0)
	var took []time.Duration
	for b.Loop() {
		term++
		start := time.Now()
		if err := stable.SetUint64([]byte(keyLastVoteTerm), term); err != nil {
			b.Fatal(err)
		}
		if err := stable.Set([]byte(keyLastVoteCand), []byte("127.0.0.1:7700")); err != nil {
			b.Fatal(err)
		}
		took = append(took, time.Since(start))
	}
	report(b, took)
}

// report reports the median and the 99th percentile.
func report(b *testing.B, took []time.Duration) {
	b.Helper()
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
	b.ReportMetric(0, "ns/op")
}

func BenchmarkOpenEmpty(b *testing.B) {
	for b.Loop() {
		if err := openDir(b, b.TempDir()).Close(); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkCachedRead(b *testing.B) {
	g := guardDir(b, b.TempDir())
	mustStore(b, g.Log(), entries(1, 64, 1, 256))
	var e raft.Log
	for b.Loop() {
		if err := g.Log().GetLog(32, &e); err != nil {
			b.Fatal(err)
		}
	}
}
