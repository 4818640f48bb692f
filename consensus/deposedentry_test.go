package consensus_test

import (
	"bytes"
	"testing"
	"time"

	"northstar/cluster"
	"northstar/transport"
)

// TestEntryOfADeposedLeaderAfterARestore: one follower has a restore and the first entry after it, the others have the
// restore only. They elect a leader, which writes another entry there. The first follower's log does not hold the last
// entry of the snapshot, so raft cannot check what follows it.
func TestEntryOfADeposedLeaderAfterARestore(t *testing.T) {
	t.Parallel()
	c, _ := startCluster(t, 5)
	c.write("a", "backup")
	var backup bytes.Buffer
	leader := c.onLeader("a backup", func(n *testNode) error {
		backup.Reset()
		return n.Backup(within(t, testTimeout), &backup)
	})
	c.write("a", "new")
	c.everywhere("a", "new")
	before, follower := leader.Status().LastLogIndex, c.others(leader)[0]
	leader.drop(func(m transport.Message) bool { return m.Kind == "append" && m.To != follower.id })
	done := make(chan error, 1)
	go func() { done <- leader.Restore(within(t, testTimeout), &backup) }()
	c.everywhere("a", "backup")
	eventually(t, "one has an entry after the restore", func() bool { return follower.Status().LastLogIndex > before+1 })
	follower.cut.Store(true)
	leader.cut.Store(true)
	wantCode(t, <-done, cluster.CodeOutcomeUnknown)
	leader.stop()
	c.write("b", "1")
	follower.restart()
	start := time.Now()
	follower.cut.Store(false)
	c.everywhere("b", "1")
	t.Logf("it has caught up after %v", time.Since(start).Round(time.Millisecond))
	follower.restart()
	c.write("b", "2")
	c.everywhere("b", "2")
	c.everywhere("a", "backup")
}
