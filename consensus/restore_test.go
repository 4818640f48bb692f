package consensus_test

import (
	"bytes"
	"fmt"
	"io"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"northstar/cluster"
	"northstar/consensus"
	"northstar/consensus/storage"
	"northstar/transport"
)

// startRestore makes a leader restore a backup that reaches no follower. It returns when the leader's own state is
// replaced.
func startRestore(t *testing.T) (c *testCluster, leader *testNode, done chan error) {
	t.Helper()
	c = newCluster(t, 3)
	c.tune = func(cfg *consensus.Config) { cfg.Lease, cfg.LeaseDrift = true, 0.1 }
	for _, n := range c.nodes {
		n.start()
	}
	c.elect()
	c.write("a", "backup")
	var backup bytes.Buffer
	c.onLeader("a backup", func(n *testNode) error {
		backup.Reset()
		return n.Backup(within(t, testTimeout), &backup)
	})
	c.write("a", "new")
	c.everywhere("a", "new")
	leader = c.onLeader("a restore", func(n *testNode) error {
		n.drop(func(m transport.Message) bool { return m.Kind != "heartbeat" })
		done = make(chan error, 1)
		go func() { done <- n.Restore(within(t, testTimeout), bytes.NewReader(backup.Bytes())) }()
		eventually(t, "the state is replaced, or the restore is refused",
			func() bool { return len(done) > 0 || n.has("a", "backup") })
		if n.has("a", "backup") {
			return nil
		}
		n.drop(nil)
		err := <-done
		wantCode(t, err, cluster.CodeNoLeader) // leadership has moved
		return err
	})
	return c, leader, done
}

// TestUncommittedRestore: a leader has begun a restore, and a crash or a new leader ends its leadership. The cluster
// continues without the restore. No reader may see uncommitted state meanwhile, and all nodes must have the same state
// at the end.
func TestUncommittedRestore(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"crash", "deposed"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			c, old, done := startRestore(t)
			wantCode(t, old.ReadBarrier(within(t, testTimeout)), cluster.CodeNoLeader)
			wantCode(t, old.LeaseReadBarrier(within(t, testTimeout)), cluster.CodeNoLeader)
			old.cut.Store(true)
			wantCode(t, <-done, cluster.CodeOutcomeUnknown)
			c.write("b", "1")
			if how == "crash" {
				old.restart()
			}
			old.drop(nil)
			old.cut.Store(false)
			for i := range 3 { // it undoes the restore while it runs; its starts find nothing left to undo
				c.everywhere("b", "1")
				c.write("a", fmt.Sprint("newer", i))
				c.everywhere("a", fmt.Sprint("newer", i))
				old.restart()
			}
			eventually(t, "equal states", func() bool {
				prints := map[[32]byte]bool{}
				for _, n := range c.nodes {
					prints[n.View().Fingerprint()] = true
				}
				return len(prints) == 1
			})
		})
	}
}

// slowSnapshots is a real data directory whose snapshots are opened only when release is closed.
type slowSnapshots struct {
	storage.Storage
	opening chan struct{}
	release atomic.Pointer[chan struct{}]
}

func (d *slowSnapshots) Snapshots() raft.SnapshotStore { return &slowStore{d.Storage.Snapshots(), d} }

type slowStore struct {
	raft.SnapshotStore
	disk *slowSnapshots
}

func (s *slowStore) Open(id string) (*raft.SnapshotMeta, io.ReadCloser, error) {
	if ch := s.disk.release.Load(); ch != nil {
		close(s.disk.opening)
		<-*ch
	}
	return s.SnapshotStore.Open(id)
}

// TestStopInARestore stops a node while its state machine takes a backup. The library panics when it is shut down
// there.
func TestStopInARestore(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1)
	n := c.nodes["n1"]
	dir, err := storage.Open(storage.Options{Dir: n.dir, Logger: testLogger()})
	if err != nil {
		t.Fatal(err)
	}
	disk := &slowSnapshots{Storage: dir, opening: make(chan struct{})}
	if err := n.startOn(disk); err != nil {
		t.Fatal(err)
	}
	c.write("a", "1")
	var backup bytes.Buffer
	if err := n.Backup(within(t, testTimeout), &backup); err != nil {
		t.Fatal(err)
	}
	release := make(chan struct{})
	disk.release.Store(&release)
	done := make(chan error, 1)
	go func() { done <- n.Restore(within(t, testTimeout), &backup) }()
	<-disk.opening
	time.AfterFunc(timeoutMax, func() { close(release) })
	n.stop()
	t.Log(<-done)
}
