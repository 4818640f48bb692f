package consensus_test

import (
	"fmt"
	"testing"

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
		if err := leader.put("a", fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
	}
	committed, applied := leader.Status().CommitIndex, make(chan uint64, 1)
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
	f.restart()
	times := <-done
	if d := times.Applied.Sub(times.Raft); d > timeoutMin {
		t.Errorf("it took %v", d)
	}
	if times.Leader.IsZero() || times.Commit.IsZero() || times.Entries == 0 {
		t.Errorf("got %+v", times)
	}
}

func write(c *testCluster, key, value string) (string, string) {
	c.t.Helper()
	c.write(key, value)
	return key, value
}
