package consensus_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"northstar/cluster"
	"northstar/consensus"
	"northstar/consensus/storage"
	"northstar/state"
)

// badDisk is a real data directory whose log writes can be made to hang or fail.
type badDisk struct {
	storage.Storage
	hang      atomic.Pointer[chan struct{}]
	hangVotes atomic.Pointer[chan struct{}] // its own, while it is a candidate
	fail      atomic.Bool
	full      atomic.Bool

	failVotes, failReads bool // from the start on
}

// Stable returns a store that fails every write when failVotes is set.
func (d *badDisk) Stable() storage.VoteStore {
	if d.failVotes {
		return failingStable{d.Storage.Stable()}
	}
	return heldStable{d.Storage.Stable(), d}
}

type heldStable struct {
	storage.VoteStore
	disk *badDisk
}

func (s heldStable) RecordVote(term, voteTerm uint64, candidate []byte) error {
	if ch := s.disk.hangVotes.Load(); ch != nil {
		<-*ch
	}
	return s.VoteStore.RecordVote(term, voteTerm, candidate)
}

type failingStable struct{ storage.VoteStore }

func (failingStable) Set([]byte, []byte) error       { return errors.New("input/output error") }
func (failingStable) SetUint64([]byte, uint64) error { return errors.New("input/output error") }

func (failingStable) RecordVote(uint64, uint64, []byte) error {
	return errors.New("input/output error")
}

func (l *badLog) GetLog(index uint64, out *raft.Log) error {
	if l.disk.failReads {
		return errors.New("input/output error")
	}
	return l.LogStore.GetLog(index, out)
}

func (d *badDisk) Log() raft.LogStore { return &badLog{d.Storage.Log(), d} }

// Space has a reserve of 64 MiB. When full is set, nothing is free beside it.
func (d *badDisk) Space() storage.Space { return fakeSpace{d.Storage.Space(), d} }

type fakeSpace struct {
	storage.Space
	disk *badDisk
}

func (s fakeSpace) Reserve() (size uint64, held bool) { return 64 << 20, true }

func (s fakeSpace) Free() (uint64, error) {
	if s.disk.full.Load() {
		return 0, nil
	}
	return 1 << 30, nil
}

// hold makes the writes of entries hang until release is called, which may be done more than once.
func (d *badDisk) hold(t *testing.T) (release func()) { return hold(t, &d.hang) }

func hold(t *testing.T, what *atomic.Pointer[chan struct{}]) (release func()) {
	t.Helper()
	held := make(chan struct{})
	what.Store(&held)
	release = sync.OnceFunc(func() {
		what.Store(nil)
		close(held)
	})
	t.Cleanup(release)
	return release
}

type badLog struct {
	raft.LogStore
	disk *badDisk
}

func (l *badLog) StoreLogs(logs []*raft.Log) error {
	if ch := l.disk.hang.Load(); ch != nil {
		<-*ch
	}
	if l.disk.fail.Load() {
		return errors.New("input/output error")
	}
	return l.LogStore.StoreLogs(logs)
}

func (l *badLog) StoreLog(log *raft.Log) error { return l.StoreLogs([]*raft.Log{log}) }

// startOnBadDisks starts a cluster on such disks. Its leaders do tasks.
func startOnBadDisks(t *testing.T, size int, tasks ...func(context.Context, uint64)) (*testCluster,
	map[*testNode]*badDisk, *testNode,
) {
	t.Helper()
	c := newCluster(t, size)
	c.tune = func(cfg *consensus.Config) { // tests wait for a few timeouts; a node whose disk hangs ends after 20 s
		cfg.TimeoutMin, cfg.TimeoutMax = min(cfg.TimeoutMin, 2*time.Second), min(cfg.TimeoutMax, 4*time.Second)
	}
	disks := map[*testNode]*badDisk{}
	for _, n := range c.nodes {
		dir, err := storage.Open(storage.Options{Dir: n.dir, Logger: testLogger()})
		if err != nil {
			t.Fatal(err)
		}
		disks[n], n.tasks = &badDisk{Storage: dir}, tasks
		if err := n.startOn(disks[n]); err != nil {
			t.Fatal(err)
		}
	}
	return c, disks, c.elect()
}

// TestStalledLeader hangs the leader's disk. The others must take over, a write on its way must be unknown, and it must
// come back when the disk does.
func TestStalledLeader(t *testing.T) {
	t.Parallel()
	c, disks, _ := startOnBadDisks(t, 3)
	var release func()
	var term uint64
	old := c.onLeader("a write on its way", func(n *testNode) error {
		if err := n.put("a", "1"); err != nil {
			return err
		}
		release, term = disks[n].hold(t), n.Status().Term
		start := time.Now()
		err := n.put("a", "2")
		if took := time.Since(start); took > 4*timeoutMax {
			t.Errorf("the caller waited %v for a disk that hangs", took)
		}
		if cluster.IsCode(err, cluster.CodeNoLeader) { // it had lost its leadership before
			release()
			return err
		}
		wantCode(t, err, cluster.CodeOutcomeUnknown)
		return nil
	})
	eventually(t, "another node leads", func() bool {
		for _, n := range c.others(old) {
			if n.Status().Role == cluster.Leader {
				return n.put("b", "1") == nil
			}
		}
		return false
	})
	if old.MayStartElection() {
		t.Error("a node with a stalled disk may start an election")
	}
	if now := old.Status().Term; now != term {
		t.Errorf("it went on to term %d before its own entries were durable", now)
	}
	release()
	eventually(t, "the old leader follows", func() bool {
		if len(old.done) > 0 { // on a busy machine the others may need longer than a disk may hang
			if err := old.wait(false); err == nil || !strings.Contains(err.Error(), "the disk hangs") {
				t.Fatalf("it ended with %v", err)
			}
		}
		if old.cancel == nil && old.tryStart() != nil {
			return false
		}
		return old.has("b", "1")
	})
}

// TestProposalsAwaitTheDisk: a client's proposal waits for a stalled disk, and is not refused as long as a replacement
// of the leader may take. Those of the node itself, such as the end of a session, are refused immediately.
func TestProposalsAwaitTheDisk(t *testing.T) {
	t.Parallel()
	_, disks, n := startOnBadDisks(t, 1)
	if err := n.put("a", "1"); err != nil {
		t.Fatal(err)
	}
	release := disks[n].hold(t)
	first, second := make(chan error, 1), make(chan error, 1)
	go func() { first <- n.put("a", "2") }()
	eventually(t, "the disk is stalled", func() bool { return n.Status().Disk.Stalled })
	cmd := put("b", "1")
	var stalled *cluster.Error
	if _, err := n.Propose(t.Context(), cmd); !errors.As(err, &stalled) || !stalled.DiskStalls() {
		t.Errorf("without an idempotency key: %v", err)
	}
	cmd.Idempotency = &state.Idempotency{Key: "k"}
	go func() {
		_, err := n.Propose(context.Background(), cmd)
		second <- err
	}()
	select {
	case err := <-second:
		t.Fatalf("a write was answered while the disk is stalled: %v", err)
	case <-time.After(timeoutMin / 10): // far less than it waits
	}
	release()
	<-first
	if err := <-second; err != nil {
		t.Errorf("when the disk works again: %v", err)
	}
}

// TestFullDiskIsNoStall: callers can tell a full disk from one that stalls.
func TestFullDiskIsNoStall(t *testing.T) {
	t.Parallel()
	_, disks, n := startOnBadDisks(t, 1)
	disks[n].full.Store(true)
	eventually(t, "the disk is full", n.ReadOnly)
	_, err := n.Propose(t.Context(), put("a", "1"))
	var full *cluster.Error
	if !errors.As(err, &full) || full.Code != cluster.CodeReadOnly || full.DiskStalls() {
		t.Errorf("got %v", err)
	}
}

// TestFailedWrite has a disk that answers with an error: that node must end, with one clear error and no panic, and the
// rest go on.
func TestFailedWrite(t *testing.T) {
	t.Parallel()
	for _, tt := range []string{"leader", "follower"} {
		t.Run(tt, func(t *testing.T) {
			t.Parallel()
			c, disks, leader := startOnBadDisks(t, 3)
			c.write("a", "1")
			victim := leader
			if tt == "follower" {
				victim = c.others(leader)[0]
			}
			disks[victim].fail.Store(true)
			_ = c.leader().put("a", "2")
			err := victim.wait(false)
			if err == nil || !strings.Contains(err.Error(), "input/output error") {
				t.Errorf("it ended with %v", err)
			}
			c.write("b", "1")
			if err := victim.tryStart(); err != nil {
				t.Fatal(err)
			}
			eventually(t, "it is back", func() bool { return victim.has("b", "1") })
		})
	}
}

// TestFailingDiskAtStart: a node whose disk fails during the start ends immediately and logs one line. This holds for
// its first start and for later ones.
func TestFailingDiskAtStart(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		breaks func(d *badDisk)
		used   bool // the directory has a log
	}{
		"first start, vote": {func(d *badDisk) { d.failVotes = true }, false},
		"first start, log":  {func(d *badDisk) { d.fail.Store(true) }, false},
		"later, vote":       {func(d *badDisk) { d.failVotes = true }, true},
		"later, log":        {func(d *badDisk) { d.failReads = true }, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, 1)
			n := c.nodes["n1"]
			if tt.used {
				n.start()
				c.write("a", "1")
				n.stop()
			}
			dir, err := storage.Open(storage.Options{Dir: n.dir, Logger: testLogger()})
			if err != nil {
				t.Fatal(err)
			}
			disk := &badDisk{Storage: dir}
			tt.breaks(disk)
			if err := n.startOn(disk); err != nil {
				t.Fatal(err)
			}
			err = n.wait(false)
			if err == nil || strings.Count(err.Error(), "\n") > 0 ||
				!strings.Contains(err.Error(), "input/output error") {
				t.Errorf("it ended with %v", err)
			}
		})
	}
}

func TestLeaseBarrier(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	c.tune = func(cfg *consensus.Config) { cfg.Lease, cfg.LeaseDrift = true, 0.1 }
	for _, n := range c.nodes {
		n.start()
	}
	c.elect()
	c.write("a", "1")
	leader := c.whileLeading("a leader with a lease", func(l *testNode) error {
		var left time.Duration
		eventually(t, "a lease", func() bool {
			left = l.Status().LeaseRemaining
			return left > 0 || l.Status().Role != cluster.Leader
		})
		if left > timeoutMin {
			return fmt.Errorf("lease of %v", left)
		}
		for _, n := range c.others(l) {
			if n.Status().LeaseRemaining != 0 {
				return errors.New("a follower has a lease")
			}
			if err := n.LeaseReadBarrier(within(t, testTimeout)); !cluster.IsCode(err, cluster.CodeNoLeader) {
				return fmt.Errorf("a follower's read: %w", err)
			}
		}
		return l.LeaseReadBarrier(context.Background())
	})
	leader.cut.Store(true)
	eventually(t, "the lease runs out", func() bool { return leader.Status().LeaseRemaining == 0 })
	leader.cut.Store(false)
	eventually(t, "a lease again, and a transfer", func() bool {
		leader = c.leader()
		return leader.Status().LeaseRemaining > 0 && c.transferOnce(leader)
	})
	if leader.Status().LeaseRemaining != 0 {
		t.Error("a lease after the transfer")
	}
}
