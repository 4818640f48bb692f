package consensus_test

import (
	"bytes"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/hashicorp/raft"

	"northstar/cluster"
	"northstar/consensus/storage"
	"northstar/transport"
)

// mortalDisk is a real data directory that takes no more writes after a step, as if the process were killed there.
type mortalDisk struct {
	storage.Storage
	mu     sync.Mutex
	last   string // the step after which it takes no more; it has to follow first
	first  string
	begun  bool
	ended  bool
	counts []string // the steps since first, each once

	snapshotEnd atomic.Uint64 // of the last snapshot that was begun
}

var errKilled = errors.New("killed")

// step makes one change. Steps without a name are of no interest to a test, and end with the others.
func (d *mortalDisk) step(name string, do func() error) error {
	d.mu.Lock()
	ended := d.ended
	d.mu.Unlock()
	if ended {
		return errKilled
	}
	err := do()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.begun = d.begun || name == d.first
	if d.begun && name != "" && !slices.Contains(d.counts, name) { // the identity is saved for other reasons, too
		d.counts = append(d.counts, name)
		d.ended = d.ended || name == d.last
	}
	return err
}

func (d *mortalDisk) killed() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.ended
}

func (d *mortalDisk) steps() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.counts)
}

const (
	stepRecord   = "an abandoned restore is recorded"
	stepTruncate = "the log is truncated"
	stepRemove   = "the snapshot is removed"
	stepClear    = "the record is cleared"
)

func (d *mortalDisk) Save(name string, data []byte) error {
	step := ""
	switch recorded := bytes.Contains(data, []byte(`"undone"`)); {
	case name != "identity.json":
	case recorded:
		step = stepRecord
	default:
		step = stepClear
	}
	return d.step(step, func() error { return d.Storage.Save(name, data) })
}

func (d *mortalDisk) Log() raft.LogStore            { return mortalLog{d.Storage.Log(), d} }
func (d *mortalDisk) Stable() storage.VoteStore     { return mortalVotes{d.Storage.Stable(), d} }
func (d *mortalDisk) Snapshots() raft.SnapshotStore { return mortalSnapshots{d.Storage.Snapshots(), d} }

type mortalLog struct {
	raft.LogStore
	d *mortalDisk
}

func (l mortalLog) StoreLog(e *raft.Log) error { return l.StoreLogs([]*raft.Log{e}) }

func (l mortalLog) StoreLogs(logs []*raft.Log) error {
	return l.d.step("", func() error { return l.LogStore.StoreLogs(logs) })
}

func (l mortalLog) DeleteRange(from, to uint64) error {
	return l.d.step(stepTruncate, func() error { return l.LogStore.DeleteRange(from, to) })
}

type mortalVotes struct {
	storage.VoteStore
	d *mortalDisk
}

func (s mortalVotes) Set(key, v []byte) error {
	return s.d.step("", func() error { return s.VoteStore.Set(key, v) })
}

func (s mortalVotes) SetUint64(key []byte, v uint64) error {
	return s.d.step("", func() error { return s.VoteStore.SetUint64(key, v) })
}

func (s mortalVotes) RecordVote(term, voteTerm uint64, candidate []byte) error {
	return s.d.step("", func() error { return s.VoteStore.RecordVote(term, voteTerm, candidate) })
}

type mortalSnapshots struct {
	raft.SnapshotStore
	d *mortalDisk
}

func (s mortalSnapshots) Create(v raft.SnapshotVersion, index, term uint64, c raft.Configuration, cIndex uint64,
	trans raft.Transport,
) (sink raft.SnapshotSink, err error) {
	s.d.snapshotEnd.Store(index)
	err = s.d.step("", func() error {
		sink, err = s.SnapshotStore.Create(v, index, term, c, cIndex, trans)
		return err
	})
	return sink, err
}

func (s mortalSnapshots) Remove(id string) error {
	return s.d.step(stepRemove, func() error { return s.SnapshotStore.(storage.SnapshotRemover).Remove(id) })
}

// startMortal starts the node again, on a disk that takes no more writes after last, which follows first.
func (n *testNode) startMortal(first, last string) *mortalDisk {
	n.t.Helper()
	n.stop()
	dir, err := storage.Open(storage.Options{Dir: n.dir, Logger: testLogger()})
	if err != nil {
		n.t.Fatal(err)
	}
	d := &mortalDisk{Storage: dir, first: first, last: last}
	if err := n.startOn(d); err != nil {
		n.t.Fatal(err)
	}
	return d
}

// TestUndoIsKilled: a follower with a restore that the cluster has continued without is killed after each step of its
// undo. Its next start completes that.
func TestUndoIsKilled(t *testing.T) {
	t.Parallel()
	order := []string{stepRecord, stepTruncate, stepRemove, stepClear}
	for i, last := range order {
		t.Run(last, func(t *testing.T) {
			t.Parallel()
			c, x, done := startRestore(t, 5)
			others := c.others(x)
			f, h := others[0], others[1]
			disk := f.startMortal(stepRecord, last)
			for _, n := range c.nodes {
				n.idle.Store(true)
			}
			x.drop(func(m transport.Message) bool { return m.Kind != "heartbeat" && m.To != f.id })
			eventually(t, "a follower has the restore and an entry after it", func() bool {
				return f.has("a", "backup") && f.Status().LastLogIndex > disk.snapshotEnd.Load()
			})
			h.idle.Store(false)
			x.cut.Store(true)
			wantCode(t, <-done, cluster.CodeOutcomeUnknown)
			eventually(t, "the follower is killed", disk.killed)
			if err := f.wait(true); err != nil {
				t.Logf("it ended with %v", err)
			}
			if got := disk.steps(); !slices.Equal(got, order[:i+1]) {
				t.Errorf("the steps were %q", got)
			}
			x.stop()
			f.start()
			c.write("b", "1")
			c.everywhere("b", "1")
			c.everywhere("a", "new")
			f.restart()
			c.write("b", "2")
			c.everywhere("b", "2")
			c.everywhere("a", "new")
		})
	}
}
