package state

import (
	"fmt"
	"io"
	"runtime"
	"testing"
)

// putBatch returns n puts of 256 bytes to keys spread over a space.
func putBatch(n, first, space int) []Command {
	cmds := make([]Command, n)
	for i := range cmds {
		cmds[i] = Command{Kind: KindPut, Now: 1, Put: &Put{
			Key: fmt.Sprintf("service/%d/key-%06d", (first+i)%7, (first+i)*7919%space), Value: make([]byte, 256),
		}}
	}
	return cmds
}

func filled(b *testing.B, keys int) *State {
	b.Helper()
	s := New(Options{})
	for first := 0; first < keys; first += 512 {
		s.Apply(uint64(first), 1, putBatch(512, first, keys))
	}
	return s
}

func BenchmarkApply(b *testing.B) {
	for _, n := range []int{1, 64, 512} {
		b.Run(fmt.Sprintf("puts=%d", n), func(b *testing.B) {
			s := filled(b, 100_000)
			batches := make([][]Command, 64)
			for i := range batches {
				batches[i] = putBatch(n, i*n, 100_000)
			}
			b.ReportAllocs()
			b.ResetTimer()
			for i := range b.N {
				s.Apply(uint64(i), 1, batches[i%len(batches)])
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n), "ns/put")
		})
	}
}

func BenchmarkEncodeBatch(b *testing.B) {
	for _, n := range []int{1, 64, 512} {
		b.Run(fmt.Sprintf("puts=%d", n), func(b *testing.B) {
			cmds := putBatch(n, 0, 100_000)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := EncodeBatch(cmds); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n), "ns/put")
		})
	}
}

// BenchmarkEncodeNested encodes the transaction that takes longest: the leader does nothing else meanwhile.
func BenchmarkEncodeNested(b *testing.B) {
	cmds := []Command{txnCommand(nestedTxn())}
	for b.Loop() {
		if _, err := EncodeBatch(cmds); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkDecodeBatch(b *testing.B) {
	for _, n := range []int{1, 64, 512} {
		b.Run(fmt.Sprintf("puts=%d", n), func(b *testing.B) {
			raw, err := EncodeBatch(putBatch(n, 0, 100_000))
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				if _, err := DecodeBatch(raw); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n), "ns/put")
		})
	}
}

func BenchmarkViewGet(b *testing.B) {
	s := filled(b, 100_000)
	key := putBatch(1, 4711, 100_000)[0].Put.Key
	b.ReportAllocs()
	for b.Loop() {
		if _, ok := s.View().Get(key); !ok {
			b.Fatal("key is gone")
		}
	}
}

func BenchmarkSnapshotWrite(b *testing.B) {
	s := filled(b, 100_000)
	b.ReportAllocs()
	for b.Loop() {
		n, err := s.Snapshot().WriteTo(io.Discard)
		if err != nil {
			b.Fatal(err)
		}
		b.SetBytes(n)
	}
}

func BenchmarkSnapshotRead(b *testing.B) {
	raw := snapshotOf(b, filled(b, 100_000))
	b.SetBytes(int64(len(raw)))
	b.ReportAllocs()
	for b.Loop() {
		restore(b, New(Options{}), raw)
	}
}

// BenchmarkMemory measures the memory of a key of 256 bytes.
func BenchmarkMemory(b *testing.B) {
	var before, after runtime.MemStats
	for b.Loop() {
		runtime.GC()
		runtime.ReadMemStats(&before)
		s := filled(b, 100_000)
		runtime.GC()
		runtime.ReadMemStats(&after)
		b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/100_000, "B/key")
		runtime.KeepAlive(s)
	}
}
