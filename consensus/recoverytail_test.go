package consensus_test

import (
	"crypto/rand"
	"io"
	"os"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"northstar/consensus"
	"northstar/consensus/storage"
	"northstar/state"
)

// A node stopped after it had installed a restore, and before the leader's next append. A recovery must not apply the
// entries of a deposed leader behind the restore, nor a configuration among them, also if the disk fails at any write.
func TestRecoverBehindARestore(t *testing.T) {
	t.Parallel()
	c, leader := startCluster(t, 3)
	c.write("a", "1")
	c.everywhere("a", "1")
	id := leader.Identity().ClusterID
	left := c.others(leader)[0]
	if err := left.TakeSnapshot(); err != nil {
		t.Fatal(err)
	}
	lose(append(c.others(left), left)...)
	end := addDeposedTail(t, left)

	dir, err := consensus.OpenOffline(left.dir)
	if err != nil {
		t.Fatal(err)
	}
	if i := dir.Inspection(); i.LastIndex != end.Index || i.LastTerm != end.Term || len(dir.Servers()) != 3 {
		t.Errorf("last entry %d of term %d, %d servers; want %d, %d, 3", i.LastIndex, i.LastTerm, len(dir.Servers()),
			end.Index, end.Term)
	}
	if _, err := dir.Recover(id, "test", rand.Reader); err != nil {
		t.Fatal(err)
	}
	if err := dir.Close(); err != nil {
		t.Fatal(err)
	}
	recovered := left.dir
	for fail := int64(1); fail <= 5; fail++ {
		left.wipe()
		if err := os.CopyFS(left.dir, os.DirFS(recovered)); err != nil {
			t.Fatal(err)
		}
		left.startFailing(fail)
		left.start()
		left = c.leader()
		checkRecovered(t, left, 0)
		if !left.has("a", "1") || left.has("deposed", "1") {
			t.Errorf("write %d failed: has the restore: %v, has the deposed leader's entry: %v", fail, left.has("a", "1"),
				left.has("deposed", "1"))
		}
		left.stop()
	}
}

// addDeposedTail returns the end of a restore that it adds to a stopped node, as by the leader of the next term. Behind
// it come entries of the last term: a write, and a configuration without the node.
func addDeposedTail(t *testing.T, n *testNode) (end raft.Log) {
	t.Helper()
	dir, err := storage.Open(storage.Options{Dir: n.dir, Logger: testLogger()})
	if err != nil {
		t.Fatal(err)
	}
	store := storage.Guard(dir, storage.GuardConfig{
		StallMin: time.Second, StallMax: 2 * time.Second, OnFatal: func(err error) { t.Error(err) },
		Logger: testLogger(),
	})
	defer func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	}()
	list, err := store.Snapshots().List()
	if err != nil || len(list) == 0 {
		t.Fatal(list, err)
	}
	meta, r, err := store.Snapshots().Open(list[0].ID)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close() }()
	last, err := store.Log().LastIndex()
	if err != nil {
		t.Fatal(err)
	}
	if err := store.Stable().SetUint64([]byte("CurrentTerm"), meta.Term+1); err != nil {
		t.Fatal(err)
	}
	batch, err := state.EncodeBatch([]state.Command{put("deposed", "1")})
	if err != nil {
		t.Fatal(err)
	}
	others := raft.EncodeConfiguration(raft.Configuration{Servers: []raft.Server{{ID: "other", Address: "other:1"}}})
	err = store.Log().StoreLogs([]*raft.Log{
		{Index: last + 1, Term: meta.Term, Type: raft.LogCommand, Data: batch, AppendedAt: time.Now()},
		{Index: last + 2, Term: meta.Term, Type: raft.LogConfiguration, Data: others, AppendedAt: time.Now()},
	})
	if err != nil {
		t.Fatal(err)
	}
	_, trans := raft.NewInmemTransport(raft.ServerAddress(n.addr))
	sink, err := store.Snapshots().Create(1, last, meta.Term+1, meta.Configuration, meta.ConfigurationIndex, trans)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(sink, r); err != nil {
		t.Fatal(err)
	}
	if err := sink.Close(); err != nil {
		t.Fatal(err)
	}
	return raft.Log{Index: last, Term: meta.Term + 1}
}

// startFailing runs a node on a disk that fails at one of its writes, until it has ended.
func (n *testNode) startFailing(fail int64) {
	n.t.Helper()
	dir, err := storage.Open(storage.Options{Dir: n.dir, Logger: testLogger()})
	if err != nil {
		n.t.Fatal(err)
	}
	disk := &brokenDisk{Storage: dir}
	disk.fail.Store(fail)
	if err := n.startOn(disk); err != nil {
		return // its disk failed before it ran
	}
	eventually(n.t, "a failed write", func() bool { return disk.writes.Load() >= fail })
	_ = n.wait(true) // how it ends is the disk's matter
}
