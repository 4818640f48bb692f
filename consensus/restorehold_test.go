package consensus_test

import (
	"bytes"
	"sync/atomic"
	"testing"

	"northstar/consensus/storage"
	"northstar/transport"
)

// TestNoSnapshotOfARestoreInProgress: a leader that has stored the snapshot of a restore, and whose state machine has
// not taken it yet, goes on with the log. It sends the snapshot to no follower: it would send it again and again.
func TestNoSnapshotOfARestoreInProgress(t *testing.T) {
	t.Parallel()
	c, disks := newCluster(t, 3), map[*testNode]*slowSnapshots{}
	for _, n := range c.nodes {
		dir, err := storage.Open(storage.Options{Dir: n.dir, Logger: testLogger()})
		if err != nil {
			t.Fatal(err)
		}
		disks[n] = &slowSnapshots{Storage: dir, opening: make(chan struct{})}
		if err := n.startOn(disks[n]); err != nil {
			t.Fatal(err)
		}
	}
	c.write("a", "backup")
	var backup bytes.Buffer
	leader := c.onLeader("a backup", func(n *testNode) error {
		backup.Reset()
		return n.Backup(within(t, testTimeout), &backup)
	})
	var appends atomic.Int64
	leader.drop(func(m transport.Message) bool {
		if m.Kind == "append" {
			appends.Add(1)
		}
		return false
	})
	disk, release, done := disks[leader], make(chan struct{}), make(chan error, 1)
	disk.release.Store(&release)
	go func() { done <- leader.Restore(within(t, testTimeout), &backup) }()
	eventually(t, "the state machine takes the restore, or it is refused", func() bool {
		return disk.opens.Load() > 0 || len(done) > 0
	})
	appends.Store(0)
	eventually(t, "the leader goes on, or leads no more", func() bool {
		return appends.Load() >= 10 || disk.opens.Load() > 1 || len(done) > 0
	})
	if n := disk.opens.Load(); n > 1 {
		t.Errorf("the snapshot is opened %d times", n)
	}
	close(release)
	t.Log(<-done)
}
