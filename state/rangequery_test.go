package state

import (
	"context"
	"testing"
)

func TestRange(t *testing.T) {
	t.Parallel()
	s := New(Options{})
	mustApply(t, s, grant(3, 10), put("c", "1"), put("a", "3"), put("b", "2"), put("a", "2"), leasePut("d", 3))
	keys := func(items []*Item) (text string) {
		for _, it := range items {
			text += it.Key
		}
		return text
	}
	for _, c := range []struct {
		q     RangeQuery
		want  string
		count int64
		more  bool
	}{
		{RangeQuery{Key: "a"}, "a", 1, false},
		{RangeQuery{Key: "x"}, "", 0, false},
		{RangeQuery{Key: "a", End: "c"}, "ab", 2, false},
		{RangeQuery{Key: "b", End: "\x00"}, "bcd", 3, false},
		{RangeQuery{Key: "\x00", End: "\x00"}, "abcd", 4, false},
		{RangeQuery{Key: "a", End: "\xff"}, "abcd", 4, false},
		{RangeQuery{Key: "c", End: "a"}, "", 0, false},
		{RangeQuery{Key: "a", End: "z", Limit: 2}, "ab", 4, true},
		{RangeQuery{Key: "a", End: "z", Limit: 4}, "abcd", 4, false},
		{RangeQuery{Key: "a", End: "z", Limit: -1}, "abcd", 4, false},
		{RangeQuery{Key: "a", End: "z", CountOnly: true, Limit: 2}, "", 4, false},
		{RangeQuery{Key: "a", End: "z", Order: SortDescend}, "dcba", 4, false},
		{RangeQuery{Key: "a", End: "z", Order: SortDescend, Limit: 1}, "d", 4, true},
		{RangeQuery{Key: "a", End: "z", Order: SortAscend, Limit: 1}, "a", 4, true},
		{RangeQuery{Key: "a", End: "z", Target: SortByCreateRevision}, "cabd", 4, false},
		{RangeQuery{Key: "a", End: "z", Target: SortByCreateRevision, Order: SortAscend, Limit: 1}, "c", 4, true},
		{RangeQuery{Key: "a", End: "z", Target: SortByCreateRevision, Order: SortDescend, Limit: 1}, "d", 4, true},
		// As in etcd, without an order limit+1 keys are sorted: a, b and c here.
		{RangeQuery{Key: "a", End: "z", Target: SortByCreateRevision, Limit: 2}, "ca", 4, true},
		{RangeQuery{Key: "a", End: "z", Target: SortByRevision}, "cbad", 4, false},
		{RangeQuery{Key: "a", End: "z", Target: SortByVersion, Order: SortDescend}, "abcd", 4, false},
		{RangeQuery{Key: "a", End: "z", Target: SortByValue}, "dcab", 4, false},
		{RangeQuery{Key: "a", End: "z", MinRevision: 3}, "abd", 4, false},
		{RangeQuery{Key: "a", End: "z", MaxRevision: 3}, "bc", 4, false},
		{RangeQuery{Key: "a", End: "z", MinCreateRevision: 2, MaxCreateRevision: 3}, "ab", 4, false},
		{RangeQuery{Key: "a", End: "z", MinRevision: 3, Limit: 1}, "a", 4, true},
		{RangeQuery{Key: "a", End: "z", MaxRevision: -1}, "", 4, false},
		{RangeQuery{Key: "a", End: "z", Revision: 1}, "c", 1, false},
		{RangeQuery{Key: "a", End: "z", Revision: -5}, "abcd", 4, false},
	} {
		r, err := s.View().Range(context.Background(), &c.q, nil)
		if err != nil || keys(r.Items) != c.want || r.Count != c.count || r.More != c.more || r.Revision != 5 {
			t.Errorf("%+v: %q, %+v, %v", c.q, keys(r.Items), r, err)
		}
	}
	r, err := s.View().Range(context.Background(), &RangeQuery{Key: "a", KeysOnly: true}, nil)
	if it, _ := s.View().Get("a"); err != nil || r.Items[0].Value != nil || string(it.Value) != "2" {
		t.Errorf("keys only: %+v, %v, and the key has %q", r.Items[0], err, it.Value)
	}
	for want, q := range map[Refusal]RangeQuery{
		FutureRevision: {Key: "a", Revision: 6}, EmptyKey: {}, InvalidSortOption: {Key: "a", Target: 9},
	} {
		_, err := s.View().Range(context.Background(), &q, nil)
		wantRefusal(t, err, want)
	}
}
