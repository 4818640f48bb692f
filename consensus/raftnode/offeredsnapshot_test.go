package raftnode

import (
	"testing"

	"github.com/hashicorp/raft"
)

// TestDeleteConflicting: only what the leader's log does not have is deleted, and nothing once a later one is followed.
func TestDeleteConflicting(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		terms           []uint64
		current, newest uint64
		want            uint64
	}{
		"of another leader":                  {[]uint64{3, 3, 6, 6, 6}, 7, 2, 2},
		"only the one at the end":            {[]uint64{3, 3, 4}, 7, 0, 2},
		"the same entry":                     {[]uint64{3, 3, 5, 6, 6}, 7, 2, 5},
		"the log ends before":                {[]uint64{3, 3}, 7, 2, 2},
		"a later leader has been heard from": {[]uint64{3, 3, 6, 6, 6}, 8, 2, 5},
		"a later snapshot is installed":      {[]uint64{3, 3, 6, 6, 7}, 7, 4, 5},
	} {
		log := raft.NewInmemStore()
		for i, term := range c.terms {
			if err := log.StoreLog(&raft.Log{Index: uint64(i + 1), Term: term}); err != nil {
				t.Fatal(err)
			}
		}
		if err := (OfferedSnapshot{7, LogPosition{3, 5}}).DeleteConflicting(log, c.current, c.newest); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if last, _ := log.LastIndex(); last != c.want {
			t.Errorf("%s: the log ends at %d, want %d", name, last, c.want)
		}
	}
}
