package transport

import (
	"testing"

	"github.com/hashicorp/raft"
)

// What a new leader has not committed yet may be acknowledged: only with an entry of its own term its log says enough.
func TestLastOfTerm(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		prevTerm uint64
		entries  []uint64
		want     uint64
	}{
		{3, nil, 9}, {2, nil, 0}, {2, []uint64{2, 3}, 11}, {2, []uint64{2}, 0},
	} {
		a := &raft.AppendEntriesRequest{Term: 3, PrevLogEntry: 9, PrevLogTerm: c.prevTerm}
		for _, term := range c.entries {
			a.Entries = append(a.Entries, &raft.Log{Term: term})
		}
		if got := lastOfTerm(a); got != c.want {
			t.Errorf("%+v: %d, want %d", c, got, c.want)
		}
	}
}
