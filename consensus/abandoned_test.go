package consensus_test

import (
	"bytes"
	"fmt"
	"sync/atomic"
	"testing"

	"northstar/cluster"
	"northstar/consensus"
	"northstar/transport"
)

// TestAbandonedRestoreOnAFollower: one follower has installed the snapshot of a restore, and the leader that made it is
// lost. The others continue without the restore. The follower's log must still reach back to the snapshot before. With
// few trailing logs the library compacts it when it installs a snapshot.
func TestAbandonedRestoreOnAFollower(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 5)
	c.tune = func(cfg *consensus.Config) { cfg.TrailingLogs = 1000 }
	for _, n := range c.nodes {
		n.start()
	}
	c.write("a", "backup")
	var backup bytes.Buffer
	c.onLeader("a backup", func(n *testNode) error {
		backup.Reset()
		return n.Backup(within(t, testTimeout), &backup)
	})
	for _, n := range c.nodes {
		c.everywhere("a", "backup")
		if err := n.TakeSnapshot(); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 1300 {
		c.write("a", fmt.Sprint(i))
	}
	c.everywhere("a", "1299")
	leader := c.leader()
	follower := c.others(leader)[0]
	leader.drop(func(m transport.Message) bool { return m.Kind != "heartbeat" && m.To != follower.id })
	done := make(chan error, 1)
	go func() { done <- leader.Restore(within(t, testTimeout), &backup) }()
	eventually(t, "the follower has the new state", func() bool { return follower.has("a", "backup") })
	follower.idle.Store(true) // it would win, and the cluster would continue with the restore
	var sent atomic.Int64     // snapshots to the follower, without those of the lost leader, which may repeat its own
	for _, n := range c.others(leader) {
		n.drop(func(m transport.Message) bool {
			if m.Kind == "snapshot" && m.To == follower.id {
				sent.Add(1)
			}
			return false
		})
	}
	leader.cut.Store(true)
	installs := follower.installs.Load()
	wantCode(t, <-done, cluster.CodeOutcomeUnknown)
	leader.stop()
	c.write("b", "1")
	c.everywhere("b", "1")
	c.everywhere("a", "1299")
	if follower.installs.Load() == installs || sent.Load() != 0 {
		t.Errorf("%d snapshots restored, %d received; want its own before the restore", follower.installs.Load()-installs,
			sent.Load())
	}
	follower.restart()
	c.write("b", "2")
	c.everywhere("b", "2")
	c.everywhere("a", "1299")
	leader.drop(nil)
	leader.cut.Store(false)
	leader.start()
	c.everywhere("a", "1299")
}

// TestTwoAbandonedRestores: a follower installs the snapshot of a restore, and then that of another leader's restore,
// before it hears that neither is committed. It undoes both. That needs the snapshot before them: its log begins later.
func TestTwoAbandonedRestores(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 5)
	c.tune = func(cfg *consensus.Config) { cfg.TrailingLogs = 1000 }
	for _, n := range c.nodes {
		n.start()
	}
	backup := map[string]*bytes.Buffer{"first": {}, "second": {}}
	for name, b := range backup {
		c.write("a", name)
		c.onLeader("a backup", func(n *testNode) error {
			b.Reset()
			return n.Backup(within(t, testTimeout), b)
		})
	}
	for i := range 1300 {
		c.write("a", fmt.Sprint(i))
	}
	c.everywhere("a", "1299")
	for _, n := range c.nodes {
		eventually(t, "a snapshot", func() bool { return n.TakeSnapshot() == nil })
	}
	var follower *testNode
	restoreOn := func(name string) (leader *testNode) {
		t.Helper()
		leader = c.leader()
		if follower == nil {
			follower = c.others(leader)[0]
			follower.idle.Store(true) // it would win, and the cluster would continue with the restore
		}
		leader.drop(func(m transport.Message) bool { return m.Kind != "heartbeat" && m.To != follower.id })
		done := make(chan error, 1)
		go func() { done <- leader.Restore(within(t, testTimeout), backup[name]) }()
		eventually(t, "the leader has the new state", func() bool { return leader.has("a", name) })
		follower.cut.Store(false)
		eventually(t, "the follower has the new state", func() bool { return follower.has("a", name) })
		follower.cut.Store(true)
		leader.cut.Store(true)
		wantCode(t, <-done, cluster.CodeOutcomeUnknown)
		leader.stop()
		leader.drop(nil)
		leader.cut.Store(false)
		return leader
	}
	first := restoreOn("first")
	c.write("b", "1")
	second := restoreOn("second")
	first.idle.Store(true)
	first.start()
	c.write("b", "2")
	follower.cut.Store(false)
	c.everywhere("b", "2")
	c.everywhere("a", "1299")
	follower.restart()
	c.write("b", "3")
	second.start()
	c.everywhere("b", "3")
	c.everywhere("a", "1299")
}
