package consensus

import (
	"testing"
	"time"

	"northstar/consensus/raftnode"
)

// The state is as old as the newest message of a leader all of which is applied.
func TestFreshness(t *testing.T) {
	t.Parallel()
	var f freshness
	first, start := new(raftnode.Instance), time.Unix(100, 0)
	at := func(s int) time.Time { return start.Add(time.Duration(s) * time.Second) }
	age := func(of *raftnode.Instance, applied uint64, s int, want time.Duration) {
		t.Helper()
		if got := f.age(of, applied, at(s)); got != want {
			t.Errorf("applied %d, after %d s: %v, want %v", applied, s, got, want)
		}
	}
	age(first, 5, 0, -1)
	f.leaderHas(first, 7, 5, at(0))
	age(first, 6, 1, -1)
	age(first, 7, 1, time.Second)
	f.leaderHas(first, 9, 6, at(1)) // 7 is not applied yet
	age(first, 8, 3, 3*time.Second)
	f.leaderHas(first, 9, 8, at(3))
	age(first, 8, 4, 4*time.Second)
	age(first, 9, 4, time.Second)
	age(first, 9, 60, 57*time.Second) // no vote and no step-down makes it younger
	age(new(raftnode.Instance), 9, 4, -1)
}
