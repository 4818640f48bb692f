package consensus_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"northstar/cluster"
)

// ahead holds up the disk of a cluster's leader, and has every follower acknowledge a write of b that is not durable
// there. The leader is not silent for that. result has the write's outcome.
func ahead(t *testing.T, size int, tasks ...func(context.Context, uint64)) (c *testCluster, leader *testNode,
	disk *badDisk, release func(), result <-chan error,
) {
	t.Helper()
	c, disks, _ := startOnBadDisks(t, size, tasks...)
	var outcome chan error
	leader = c.onLeader("every follower is ahead of the leader's disk", func(n *testNode) error {
		if err := n.put("b", "0"); err != nil { // an attempt before this one may have written 1
			return err
		}
		c.everywhere("b", "0")
		eventually(t, "all is committed", func() bool { st := n.Status(); return st.CommitIndex == st.LastLogIndex })
		n.loud.Store(true)
		disk, outcome = disks[n], make(chan error, 1)
		release = disk.hold(t)
		go func() { outcome <- n.put("b", "1") }()
		eventually(t, "every follower is ahead, or leadership is lost", func() bool {
			return len(outcome) > 0 || !slices.ContainsFunc(c.others(n), func(f *testNode) bool {
				return n.tr.Acks().Peer(f.id).MatchIndex <= disk.last(t)
			})
		})
		select {
		case err := <-outcome: // too early: leadership has moved
			release()
			n.loud.Store(false)
			return fmt.Errorf("answered: %w", err)
		default:
			return nil
		}
	})
	return c, leader, disk, release, outcome
}

// last is the last entry on the disk.
func (d *badDisk) last(t *testing.T) uint64 {
	t.Helper()
	last, err := d.Storage.Log().LastIndex()
	if err != nil {
		t.Fatal(err)
	}
	return last
}

// TestCommitWaitsForTheLeadersDisk: what all followers have acknowledged is committed only when the leader has written
// it, too.
func TestCommitWaitsForTheLeadersDisk(t *testing.T) {
	t.Parallel()
	for _, size := range []int{3, 5} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			t.Parallel()
			for range 5 {
				if commitWaits(t, size) {
					return
				}
			}
			t.Error("each attempt took too long, or leadership has moved")
		})
	}
}

// commitWaits is one attempt of TestCommitWaitsForTheLeadersDisk. It reports whether the same node led all the time,
// and its disk was not held up for so long that the write's outcome is unknown.
func commitWaits(t *testing.T, size int) bool {
	t.Helper()
	c, leader, disk, release, result := ahead(t, size)
	term := leader.Status().Term
	var ids []cluster.NodeID
	for _, m := range c.first {
		ids = append(ids, m.ID)
	}
	for range 3 { // the library has long had those acknowledgements
		start := time.Now()
		eventually(t, "it is acknowledged as the leader, or has lost leadership", func() bool {
			return leader.tr.Acks().QuorumSince(term, leader.id, ids, start) || leader.Status().Role != cluster.Leader
		})
	}
	var problems []string
	for _, n := range c.nodes {
		if commit := n.Status().CommitIndex; commit > disk.last(t) || n.has("b", "1") {
			problems = append(problems, fmt.Sprintf("%s has committed %d, and the leader written %d", n.id, commit,
				disk.last(t)))
		}
	}
	answered := len(result) > 0
	release()
	err := <-result
	stalled := cluster.IsCode(err, cluster.CodeOutcomeUnknown)
	if !stalled && (answered || err != nil) {
		problems = append(problems, fmt.Sprintf("answered before the write was on the disk: %t; answer: %v", answered, err))
	}
	for _, n := range c.nodes {
		if n.Status().Term != term {
			t.Logf("leadership has moved: %q", problems)
			return false
		}
	}
	for _, problem := range problems {
		t.Error(problem)
	}
	if stalled {
		t.Logf("held up for too long: %v", err)
		return len(problems) > 0
	}
	c.everywhere("b", "1")
	return true
}

// TestWriteThatFailsWhileItIsSent: the leader's own write fails, of entries that every follower has. No caller gets
// the answer that they are committed. The node does not lead any longer, even while its leader tasks are still ending.
func TestWriteThatFailsWhileItIsSent(t *testing.T) {
	t.Parallel()
	busy := make(chan struct{})
	c, old, disk, release, result := ahead(t, 3, func(context.Context, uint64) { <-busy })
	disk.fail.Store(true)
	release()
	eventually(t, "it is silent", old.StepDownPending)
	close(busy)
	wantCode(t, <-result, cluster.CodeOutcomeUnknown)
	if err := old.wait(false); err == nil || !strings.Contains(err.Error(), "input/output error") ||
		strings.Contains(err.Error(), "raft") {
		t.Errorf("it ended with %v", err)
	}
	c.write("c", "1")
	if err := old.tryStart(); err != nil {
		t.Fatal(err)
	}
	c.everywhere("c", "1")
	if leader := c.leader(); leader.has("b", "1") != old.has("b", "1") {
		t.Error("the nodes differ")
	}
}

// TestRebuildWhileEntriesAreWritten: the next run of the library begins when the entries that the last one was writing
// are durable.
func TestRebuildWhileEntriesAreWritten(t *testing.T) {
	t.Parallel()
	c, old, _, release, result := ahead(t, 3)
	before := old.Instance()
	old.RestartRaft("a test")
	if err := <-result; err == nil {
		t.Error("the write was acknowledged")
	}
	// The next run would have begun before the others elect a leader.
	for start := time.Now(); time.Since(start) < 2*time.Second && c.others(old)[0].Status().LeaderID == old.id; {
		time.Sleep(5 * time.Millisecond)
	}
	if old.Instance() != before {
		t.Error("it has begun before")
	}
	release()
	eventually(t, "it has begun", func() bool { return old.Instance() != before && old.Instance() != nil })
	c.write("c", "1")
	c.everywhere("b", "1")
	c.everywhere("c", "1")
}

// TestOwnVoteCountsWhenItIsDurable: a candidate that has the votes of all others does not lead before its own is on its
// disk.
func TestOwnVoteCountsWhenItIsDurable(t *testing.T) {
	t.Parallel()
	for _, size := range []int{3, 5} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			t.Parallel()
			c, disks, _ := startOnBadDisks(t, size)
			c.write("a", "1")
			var next *testNode
			var release func()
			var done chan error
			eventually(t, "the others have voted", func() bool {
				leader := c.leader()
				voter := c.others(leader)[1]
				next = c.others(leader)[0]
				c.awaitHealthy(leader)
				ended := make(chan error, 1)
				release, done = hold(t, &disks[next].hangVotes), ended
				term := leader.Status().Term
				go func() { ended <- leader.TransferTo(within(t, testTimeout), to(next.id)) }()
				voted := false
				eventually(t, "they have voted, or the transfer has failed", func() bool {
					st := next.Status()
					voted = st.Role == cluster.Candidate && st.Term > term && voter.Status().Term == st.Term
					return voted || len(done) > 0
				})
				if !voted {
					release()
					c.transferTo(voter) // no second one to the same target in a term
				}
				return voted
			})
			for start := time.Now(); time.Since(start) < 50*time.Millisecond; time.Sleep(time.Millisecond) {
				if next.Status().Role == cluster.Leader {
					t.Fatal("it leads, and its own vote is not durable")
				}
			}
			release()
			<-done
			c.write("b", "1")
			c.everywhere("b", "1")
		})
	}
}
