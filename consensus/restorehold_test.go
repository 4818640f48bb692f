package consensus_test

import (
	"bytes"
	"io"
	"sync/atomic"
	"testing"

	"github.com/hashicorp/raft"

	"northstar/consensus/storage"
	"northstar/transport"
)

// heldRestore is a data directory. While held is set, the first snapshot is opened only when *held is closed.
type heldRestore struct {
	storage.Storage
	held  atomic.Pointer[chan struct{}]
	opens atomic.Int64 // while held is set
}

func (d *heldRestore) Snapshots() raft.SnapshotStore {
	return &heldRestoreStore{d.Storage.Snapshots(), d}
}

type heldRestoreStore struct {
	raft.SnapshotStore
	disk *heldRestore
}

func (s *heldRestoreStore) Open(id string) (*raft.SnapshotMeta, io.ReadCloser, error) {
	if held := s.disk.held.Load(); held != nil && s.disk.opens.Add(1) == 1 {
		<-*held
	}
	return s.SnapshotStore.Open(id)
}

// TestNoSnapshotOfARestoreInProgress: a leader that has stored the snapshot of a restore, and whose state machine has
// not taken it yet, goes on with the log. It sends the snapshot to no follower: it would send it again and again.
func TestNoSnapshotOfARestoreInProgress(t *testing.T) {
	t.Parallel()
	c, disks := newCluster(t, 3), map[*testNode]*heldRestore{}
	for _, n := range c.nodes {
		dir, err := storage.Open(storage.Options{Dir: n.dir, Logger: testLogger()})
		if err != nil {
			t.Fatal(err)
		}
		disks[n] = &heldRestore{Storage: dir}
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
	disk.held.Store(&release)
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
