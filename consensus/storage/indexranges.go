package storage

import (
	"cmp"
	"slices"
)

// indexRange is the indexes first to last, both included.
type indexRange struct{ first, last uint64 }

// indexRanges is the indexes of a log, as few ascending spans. There are two spans if an installed snapshot
// lies between them, and otherwise one.
type indexRanges []indexRange

func (s indexRanges) first() uint64 {
	if len(s) == 0 {
		return 0
	}
	return s[0].first
}

func (s indexRanges) last() uint64 {
	if len(s) == 0 {
		return 0
	}
	return s[len(s)-1].last
}

func (s indexRanges) has(index uint64) bool {
	for i := len(s) - 1; i >= 0; i-- {
		if index >= s[i].first {
			return index <= s[i].last
		}
	}
	return false
}

// covers reports whether r has all indexes from first to last. It is true for an empty span.
func (s indexRanges) covers(first, last uint64) bool {
	for _, sp := range s {
		if sp.first <= first && last <= sp.last {
			return true
		}
	}
	return first > last
}

func (s *indexRanges) add(index uint64) {
	n := len(*s)
	if n > 0 && index == (*s)[n-1].last+1 {
		(*s)[n-1].last = index
		return
	}
	if s.has(index) {
		return
	}
	all := append(*s, indexRange{index, index})
	slices.SortFunc(all, func(a, b indexRange) int { return cmp.Compare(a.first, b.first) })
	*s = all[:1]
	for _, next := range all[1:] {
		if last := &(*s)[len(*s)-1]; last.last+1 == next.first {
			last.last = next.last
		} else {
			*s = append(*s, next)
		}
	}
}

func (s indexRanges) without(min, max uint64) indexRanges {
	var out indexRanges
	for _, sp := range s {
		if sp.last < min || sp.first > max {
			out = append(out, sp)
			continue
		}
		if sp.first < min {
			out = append(out, indexRange{sp.first, min - 1})
		}
		if sp.last > max {
			out = append(out, indexRange{max + 1, sp.last})
		}
	}
	return out
}
