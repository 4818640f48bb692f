package state

import (
	"errors"
	"fmt"
	"slices"
	"testing"
)

// TestChanges: the changes of a revision stay together, and the reader continues after them.
func TestChanges(t *testing.T) {
	t.Parallel()
	s := New(Options{HistoryRevisions: 6})
	both := Command{Kind: KindTxn, Txn: &Txn{Success: []Op{{Put: &TxnPut{Key: "a"}}, {Put: &TxnPut{Key: "b"}}}}}
	mustApply(t, s, put("old", ""), both, both, put("c", ""), del("a"))
	read := func(key, end string, from uint64, limit int) string {
		changes, next, err := s.View().Changes(key, end, from, limit)
		if err != nil {
			return err.Error()
		}
		var out []string
		for _, c := range changes {
			out = append(out, fmt.Sprintf("%s@%d", c.Key, c.Revision))
		}
		return fmt.Sprint(out, " ", next)
	}
	for _, c := range []struct {
		key, end string
		from     uint64
		limit    int
		want     string
	}{
		{"\x00", "\x00", 2, 1, "[a@2 b@2] 3"},
		{"\x00", "\x00", 2, 3, "[a@2 b@2 a@3 b@3] 4"},
		{"\x00", "\x00", 2, 100, "[a@2 b@2 a@3 b@3 c@4 a@5] 6"},
		{"b", "", 3, 100, "[b@3] 6"},
		{"b", "", 3, 1, "[b@3] 4"},
		{"b", "d", 4, 100, "[c@4] 6"},
		{"z", "", 4, 100, "[] 6"},
		{"z", "", 9, 100, "[] 9"},
	} {
		if got := read(c.key, c.end, c.from, c.limit); got != c.want {
			t.Errorf("%q to %q from %d, %d: %s, want %s", c.key, c.end, c.from, c.limit, got, c.want)
		}
	}
	if _, _, err := s.View().Changes("a", "", 1, 1); !errors.Is(err, Compacted) || s.View().FirstChange() != 2 {
		t.Errorf("a revision that is no longer kept: %v, and the first is %d", err, s.View().FirstChange())
	}
	// What an explicit compaction makes unavailable is kept for the watches that are on their way through it.
	mustApply(t, s, Command{Kind: KindCompact, Compact: &Compact{Revision: 5}})
	if got := read("a", "", 2, 100); got != "[a@2 a@3 a@5] 6" {
		t.Errorf("after a compaction: %s", got)
	}
	changes, _, err := s.View().Changes("a", "", 3, 1)
	if err != nil || !slices.Equal([]bool{changes[0].In("a", "b"), changes[0].In("b", "")}, []bool{true, false}) {
		t.Errorf("In: %v, %v", changes, err)
	}
}
