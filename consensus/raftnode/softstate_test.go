package raftnode

import (
	"testing"

	"github.com/hashicorp/raft"
)

// TestFollows: the library names the leader of the term before to a candidate of the next one.
func TestFollows(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		leader        raft.ServerID
		learned, term uint64
		want          bool
	}{
		{"n1", 5, 5, true}, {"n1", 5, 6, false}, {"", 5, 5, false}, {"n1", 0, 5, false},
	} {
		if got := follows(c.leader, c.learned, c.term); got != c.want {
			t.Errorf("leader %q of term %d, in term %d: %v", c.leader, c.learned, c.term, got)
		}
	}
}
