package consensus_test

import (
	"fmt"
	"testing"
	"time"

	"northstar/consensus"
)

// A restarted follower has caught up when it has applied all that was committed when it started, and not with the first
// message of the leader, which has few entries.
func TestCaughtUpWithEverythingCommitted(t *testing.T) {
	t.Parallel()
	c, leader := startCalmCluster(t, 3)
	f := c.others(leader)[0]
	c.everywhere(write(c, "a", "b"))
	f.stop()
	for i := range 200 {
		c.write("a", fmt.Sprint(i)) // on a busy machine leadership may move
	}
	committed, applied := c.leader().Status().CommitIndex, make(chan uint64, 1)
	caughtUp := func(consensus.StartTimes) { applied <- f.Applied() }
	f.caughtUp.Store(&caughtUp)
	f.start()
	if at := <-applied; at < committed {
		t.Errorf("it has applied %d, and %d was committed when it started", at, committed)
	}
	if !f.Status().CaughtUp {
		t.Error("its status does not say so")
	}
}

// A node that restarts while nothing is written is ready soon after Raft runs: no timer of the leader or of its own
// decides when.
func TestCaughtUpSoon(t *testing.T) {
	t.Parallel()
	c, leader := startCalmCluster(t, 3)
	f := c.others(leader)[0]
	c.everywhere(write(c, "a", "b"))
	done := make(chan consensus.StartTimes, 1)
	caughtUp := func(times consensus.StartTimes) { done <- times }
	f.caughtUp.Store(&caughtUp)
	var took []time.Duration
	for range 10 { // a busy machine stands still for as long as a timer
		f.restart()
		times := <-done
		if times.Leader.IsZero() || times.Commit.IsZero() || times.Entries == 0 {
			t.Fatalf("got %+v", times)
		}
		if took = append(took, times.Applied.Sub(times.Raft)); took[len(took)-1] <= timeoutMin {
			return
		}
	}
	t.Errorf("it took %v", took)
}

func write(c *testCluster, key, value string) (string, string) {
	c.t.Helper()
	c.write(key, value)
	return key, value
}
