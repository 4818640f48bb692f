package consensus_test

import (
	"bytes"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/hashicorp/raft"

	"northstar/consensus/storage"
	"northstar/transport"
)

// heldInstalls is a node's disk that holds up the snapshots being written, once gate is set.
type heldInstalls struct {
	storage.Storage
	gate  atomic.Pointer[chan struct{}]
	began atomic.Bool
}

func (d *heldInstalls) Snapshots() raft.SnapshotStore { return &heldStore{d.Storage.Snapshots(), d} }

type heldStore struct {
	raft.SnapshotStore
	disk *heldInstalls
}

func (s *heldStore) Remove(id string) error {
	return s.SnapshotStore.(interface{ Remove(id string) error }).Remove(id)
}

func (s *heldStore) Create(version raft.SnapshotVersion, index, term uint64, servers raft.Configuration,
	serversIndex uint64, tr raft.Transport,
) (raft.SnapshotSink, error) {
	sink, err := s.SnapshotStore.Create(version, index, term, servers, serversIndex, tr)
	return &heldSink{sink, s.disk}, err
}

type heldSink struct {
	raft.SnapshotSink
	disk *heldInstalls
}

func (s *heldSink) Write(p []byte) (int, error) {
	if gate := s.disk.gate.Load(); gate != nil {
		s.disk.began.Store(true)
		<-*gate
	}
	return s.SnapshotSink.Write(p)
}

// TestAppendDuringAnAbandonedInstall: a follower is still installing the snapshot of a restore when that is abandoned.
// The first append of the next leader waits behind it, and must be checked against the snapshot, too: the follower
// would put the new entries on the restored state, and differ from the others without end.
func TestAppendDuringAnAbandonedInstall(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 5)
	disks := map[*testNode]*heldInstalls{}
	for _, n := range c.nodes {
		dir, err := storage.Open(storage.Options{Dir: n.dir, Logger: testLogger()})
		if err != nil {
			t.Fatal(err)
		}
		disks[n] = &heldInstalls{Storage: dir}
		if err := n.startOn(disks[n]); err != nil {
			t.Fatal(err)
		}
	}
	c.elect()
	c.write("a", "backup")
	var backup bytes.Buffer
	if err := c.leader().Backup(within(t, testTimeout), &backup); err != nil {
		t.Fatal(err)
	}
	c.write("a", "new")
	c.everywhere("a", "new")
	leader := c.leader()
	follower := c.others(leader)[0]
	gate := make(chan struct{})
	disks[follower].gate.Store(&gate)
	leader.drop(func(m transport.Message) bool { return m.Kind != "heartbeat" && m.To != follower.id })
	done := make(chan error, 1)
	go func() { done <- leader.Restore(within(t, testTimeout), &backup) }()
	eventually(t, "the follower installs the restore's snapshot", func() bool { return disks[follower].began.Load() })
	follower.idle.Store(true) // it would win, and the cluster would continue with the restore
	leader.cut.Store(true)
	<-done
	leader.stop()
	for i := range 5 {
		c.write("b", fmt.Sprint(i))
	}
	close(gate)
	c.write("c", "1")
	eventually(t, "the follower has what the others have", func() bool {
		return follower.has("c", "1") && follower.has("a", "new") && follower.has("b", "4")
	})
}
