package etcd

import (
	"fmt"
	"math/bits"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"northstar/state"
)

// check checks the order, the weights and the reach of a tree, and returns its spans.
func (s *span) check(t *rapid.T) (all []*span) {
	if s == nil {
		return nil
	}
	left, right := s.left.check(t), s.right.check(t)
	all = slices.Concat(left, []*span{s}, right)
	for i, one := range all {
		if i > 0 && (one.key < all[i-1].key || one.key == all[i-1].key && one.end <= all[i-1].end) {
			t.Errorf("[%q, %q) is not after [%q, %q)", one.key, one.end, all[i-1].key, all[i-1].end)
		}
	}
	for _, below := range slices.Concat(left, right) {
		if below.weight > s.weight {
			t.Errorf("[%q, %q) is below a lighter one", below.key, below.end)
		}
	}
	reach := s.reach
	s.update()
	if s.reach != reach {
		t.Errorf("[%q, %q) reaches %q, want %q", s.key, s.end, reach, s.reach)
	}
	return all
}

// TestRanges: a key finds the ranges that have it and a clean watch, however ranges and watches come and go.
func TestRanges(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		texts := rapid.SampledFrom([]string{"\x00", "\x00a", "a", "ab", "b", "b\x00", "c", "\xff"})
		var tree ranges
		all := map[[2]string]*span{}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			key, end := texts.Draw(t, "key"), texts.Draw(t, "end")
			s := all[[2]string{key, end}]
			if got := tree.get(key, end); got != s {
				t.Fatalf("get of [%q, %q): %v, want %v", key, end, got, s)
			}
			switch {
			case s == nil:
				all[[2]string{key, end}] = tree.add(key, end)
			case rapid.Bool().Draw(t, "remove"):
				tree.remove(s)
				delete(all, [2]string{key, end})
			default:
				s.clean = make([]*watch, 1-len(s.clean))
				tree.changed(s)
			}
			if spans := tree.root.check(t); len(spans) != len(all) {
				t.Fatalf("%d spans, want %d", len(spans), len(all))
			}
			change := state.Change{Key: texts.Draw(t, "changed")}
			var found []*span
			tree.root.visit(change.Key, func(s *span) { found = append(found, s) })
			for _, s := range all {
				if want := len(s.clean) > 0 && change.In(s.key, s.end); want != slices.Contains(found, s) {
					t.Fatalf("[%q, %q) with %d watches is found for %q: %v", s.key, s.end, len(s.clean), change.Key, !want)
				}
			}
		}
	})
}

// TestRanges_Depth: the tree stays flat, also if ranges come in the order of their keys.
func TestRanges_Depth(t *testing.T) {
	t.Parallel()
	var tree ranges
	const count = 10_000
	for i := range count {
		tree.add(fmt.Sprintf("%06d", i), noEnd)
	}
	if depth := tree.root.depth(); depth > 5*bits.Len(count) {
		t.Errorf("%d spans have a depth of %d", count, depth)
	}
}

// depth returns the length of the longest way to a span.
func (s *span) depth() int {
	if s == nil {
		return 0
	}
	return 1 + max(s.left.depth(), s.right.depth())
}
