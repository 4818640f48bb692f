package raftnode

import (
	"math"
	"slices"
	"sort"
	"sync"
)

const (
	// DefaultLogBytes is the smallest size of the log at which it is compacted, however few its entries are. A larger
	// snapshot counts instead: the cluster then does not write snapshots without end.
	DefaultLogBytes = 64 << 20

	// minTrailingBySize is how many entries stay in the log at least, however large they are. The library's rollback by
	// an old snapshot was never seen above 40, and the transport refuses such snapshots.
	minTrailingBySize = 64

	// sizeMarkBytes is how exactly an index is known for a number of bytes.
	sizeMarkBytes = 256 << 10
)

// logSize knows how large the applied entries of the log are. Entries that precede a restored snapshot are not known.
// Safe for concurrent use.
type logSize struct {
	mu    sync.Mutex
	total uint64     // bytes of all entries since the last reset
	last  uint64     // index of the newest one
	marks []sizeMark // by index, at most one for sizeMarkBytes
}

// sizeMark is the number of bytes up to an entry, with it.
type sizeMark struct{ index, total uint64 }

// reset begins after the entry at index, the end of a restored snapshot.
func (s *logSize) reset(index uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.total, s.last, s.marks = 0, index, []sizeMark{{index, 0}}
}

// add counts an entry.
func (s *logSize) add(index uint64, size int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.marks) == 0 {
		s.marks = []sizeMark{{index - 1, 0}}
	}
	s.total, s.last = s.total+uint64(size), index
	if s.total-s.marks[len(s.marks)-1].total >= sizeMarkBytes {
		s.marks = append(s.marks, sizeMark{index, s.total})
	}
}

// since returns the bytes of the known entries after index.
func (s *logSize) since(index uint64) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	after := sort.Search(len(s.marks), func(i int) bool { return s.marks[i].index > index })
	switch {
	case index >= s.last || len(s.marks) == 0:
		return 0
	case after == 0:
		return s.total - s.marks[0].total
	}
	return s.total - s.marks[after-1].total
}

// trailing returns how many of the newest entries have at most limit bytes; math.MaxUint64 if all that are known do. It
// forgets the older ones.
func (s *logSize) trailing(limit uint64) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	fits := sort.Search(len(s.marks), func(i int) bool { return s.total-s.marks[i].total <= limit })
	switch {
	case fits == 0:
		return math.MaxUint64
	case fits == len(s.marks): // the newest entries alone are larger
		return 0
	}
	if fits > 1 {
		s.marks = slices.Clone(s.marks[fits-1:])
	}
	return s.last - s.marks[1].index
}

// trailingLogs returns how many entries stay in the log when a snapshot is written: those of the configuration, or as
// many as have limit bytes, and minTrailingBySize of them at least.
func (s *logSize) trailingLogs(configured, limit uint64) uint64 {
	return min(configured, max(s.trailing(limit), minTrailingBySize))
}
