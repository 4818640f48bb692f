package consensus_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"slices"
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
	"northstar/transport"
)

// startRestore makes a leader restore a backup that reaches no follower. It returns when the leader's own state is
// replaced.
func startRestore(t *testing.T, size int) (c *testCluster, leader *testNode, done chan error) {
	t.Helper()
	c = newCluster(t, size)
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
			c, old, done := startRestore(t, 3)
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

// TestLeaseAfterAnAbandonedRestore: a leader is deposed during a restore, and leads again later. It reads by its lease
// then, without a round.
func TestLeaseAfterAnAbandonedRestore(t *testing.T) {
	t.Parallel()
	c, old, done := startRestore(t, 3)
	old.cut.Store(true)
	wantCode(t, <-done, cluster.CodeOutcomeUnknown)
	c.write("b", "1")
	old.drop(nil)
	old.cut.Store(false)
	c.everywhere("b", "1")
	eventually(t, "it reads without a round", func() bool {
		c.transferTo(old)
		eventually(t, "a lease, or leadership is lost", func() bool {
			return old.Status().LeaseRemaining > timeoutMin/2 || old.Status().Role != cluster.Leader
		})
		old.drop(func(transport.Message) bool { return true })
		defer old.drop(nil)
		return old.LeaseReadBarrier(within(t, timeoutMin/4)) == nil
	})
}

// TestRecoverAfterAnAbandonedRestore: the quorum is lost permanently while a leader restores a backup, and this node is
// recovered. Its Raft stops immediately, although what has become of the restore is unknown.
func TestRecoverAfterAnAbandonedRestore(t *testing.T) {
	t.Parallel()
	c, old, done := startRestore(t, 3)
	lose(c.others(old)...)
	wantCode(t, <-done, cluster.CodeOutcomeUnknown)
	old.drop(nil)
	acked := old.View().Revision()
	if _, err := old.Recover(within(t, testTimeout), c.recoveryRequest(old)); err != nil {
		t.Fatal(err)
	}
	checkRecovered(t, old, acked)
}

// slowSnapshots is a real data directory. Once release is set, the first snapshot is opened when *release is closed.
type slowSnapshots struct {
	storage.Storage
	opening chan struct{}
	release atomic.Pointer[chan struct{}]
	opens   atomic.Int64 // since release is set
}

func (d *slowSnapshots) Snapshots() raft.SnapshotStore { return &slowStore{d.Storage.Snapshots(), d} }

type slowStore struct {
	raft.SnapshotStore
	disk *slowSnapshots
}

func (s *slowStore) Open(id string) (*raft.SnapshotMeta, io.ReadCloser, error) {
	if ch := s.disk.release.Load(); ch != nil && s.disk.opens.Add(1) == 1 {
		close(s.disk.opening)
		<-*ch
	}
	return s.SnapshotStore.Open(id)
}

// TestStopInARestore stops a node while its state machine takes a backup. The library panics when it is shut down
// there.
func TestStopInARestore(t *testing.T) {
	t.Parallel()
	n, release, done := startHeldRestore(t, within(t, testTimeout))
	time.AfterFunc(timeoutMax, func() { close(release) })
	n.stop()
	t.Log(<-done)
}

// TestStopBeforeARestore: a merge ends while its node stops and still waits for another answer of the library. The
// library would begin with the restore, and be shut down.
func TestStopBeforeARestore(t *testing.T) {
	t.Parallel()
	c, n := startCalmCluster(t, 1)
	c.write("a", "1")
	var backup bytes.Buffer
	if err := n.Backup(within(t, testTimeout), &backup); err != nil {
		t.Fatal(err)
	}
	install, err := n.BeginRestore(within(t, testTimeout), &backup)
	if err != nil {
		t.Fatal(err)
	}
	busy, end := make(chan struct{}, 1), make(chan struct{})
	release := sync.OnceFunc(func() { close(end) })
	defer release()
	wait := func() {
		select {
		case busy <- struct{}{}:
		default:
		}
		<-end
	}
	n.applied.Store(&wait)
	n.ProbeFlag()
	<-busy
	n.cancel()
	eventually(t, "the stop keeps restores out", n.Installing)
	done := make(chan error, 1)
	go func() { done <- install() }()
	release()
	n.stop()
	wantCode(t, <-done, cluster.CodeNoLeader)
}

// startHeldRestore makes the only node of a cluster restore a backup, in which failover is not paused. The library has
// begun, and goes on when release is closed.
func startHeldRestore(t *testing.T, ctx context.Context) (n *testNode, release chan struct{}, done chan error) {
	t.Helper()
	c := newCluster(t, 1)
	n = c.nodes["n1"]
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
	release, done = make(chan struct{}), make(chan error, 1)
	disk.release.Store(&release)
	go func() { done <- n.Restore(ctx, &backup) }()
	<-disk.opening
	return n, release, done
}

// TestReadsAfterARestore: the caller of a restore stops waiting while the library works on it. No write follows. Reads
// do not wait for one.
func TestReadsAfterARestore(t *testing.T) {
	t.Parallel()
	ctx, giveUp := context.WithCancel(within(t, testTimeout))
	n, release, done := startHeldRestore(t, ctx)
	before := n.Status().CommitIndex
	giveUp()
	wantCode(t, <-done, cluster.CodeOutcomeUnknown)
	close(release)
	eventually(t, "the restore is committed", func() bool { return n.Status().CommitIndex > before })
	if err := n.ReadBarrier(within(t, testTimeout)); err != nil {
		t.Error(err)
	}
}

// TestSettingsDuringARestore: an operator pauses failover while a backup is restored. The change waits for the end of
// the restore, takes effect, and stays. Which of the two gets to the log first is chance.
func TestSettingsDuringARestore(t *testing.T) {
	t.Parallel()
	for range 30 {
		n, release, done := startHeldRestore(t, within(t, testTimeout))
		paused := make(chan error, 1)
		go func() { paused <- n.pauseFailover(within(t, testTimeout)) }()
		eventually(t, "the change is queued", n.HasWrites)
		restored := make(chan struct{})
		n.holdWrites(restored) // until the restore has done all that it does
		close(release)
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		close(restored)
		if err := <-paused; err != nil {
			t.Fatal(err)
		}
		if s := n.View().Settings(); s.AutoFailover || s.Reason != "maintenance" {
			t.Fatalf("an acknowledged pause of failover is gone: %+v", s)
		}
		n.stop()
	}
}

func (n *testNode) pauseFailover(ctx context.Context) error {
	r, err := n.Propose(ctx, state.Command{
		Kind: state.KindSettings, Settings: &state.SettingsChange{Reason: "maintenance"},
	})
	if err == nil && r.Err != nil {
		return r.Err
	}
	return err
}

// holdWrites keeps users' writes from Raft until the node has proposed a command of its own, or done is closed.
func (n *testNode) holdWrites(done <-chan struct{}) {
	hold := func() error {
		for deadline := time.Now().Add(testTimeout); !n.HasOwn() && time.Now().Before(deadline); {
			select {
			case <-done:
				return nil
			case <-time.After(time.Millisecond):
			}
		}
		return nil
	}
	n.mayWrite.Store(&hold)
}

// TestRestoreOfAnEarlierTerm: leadership moves to another node and back while a backup is merged. The other leader's
// writes are not in what would be installed: the restore must fail, and change nothing.
func TestRestoreOfAnEarlierTerm(t *testing.T) {
	t.Parallel()
	c, leader := startCalmCluster(t, 3)
	c.write("a", "backup")
	var backup bytes.Buffer
	if err := leader.Backup(within(t, testTimeout), &backup); err != nil {
		t.Fatal(err)
	}
	install, err := leader.BeginRestore(within(t, testTimeout), &backup)
	if err != nil {
		t.Fatal(err)
	}
	other := c.others(leader)[0]
	c.transferTo(other)
	c.write("b", "of the other leader")
	c.transferTo(leader)
	wantCode(t, install(), cluster.CodeNoLeader)
	c.write("c", "1")
	c.everywhere("b", "of the other leader")
}

// TestLeadershipReturnsDuringAMerge: leadership moves away and back while a large backup is merged. The node serves
// then, and does not wait for the end of the merge.
func TestLeadershipReturnsDuringAMerge(t *testing.T) {
	t.Parallel()
	c, leader := startCalmCluster(t, 3)
	c.write("a", "backup")
	var backup bytes.Buffer
	if err := leader.Backup(within(t, testTimeout), &backup); err != nil {
		t.Fatal(err)
	}
	merging, merge := make(chan struct{}), make(chan struct{})
	done, release := make(chan error, 1), sync.OnceFunc(func() { close(merge) })
	defer release()
	go func() {
		done <- leader.RestoreWith(within(t, testTimeout), &backup, func() { close(merging); <-merge })
	}()
	<-merging
	c.electOver(c.others(leader)[0])
	c.write("b", "of the other leader")
	c.electOver(leader)
	c.write("c", "1")
	c.transferTo(c.others(leader)[0])
	release()
	wantCode(t, <-done, cluster.CodeNoLeader)
	c.everywhere("b", "of the other leader")
}

// TestRestoreByACandidate: a node that may lead in a term, and does not yet, merges nothing. Its proposals would go on.
func TestRestoreByACandidate(t *testing.T) {
	t.Parallel()
	_, leader := startCalmCluster(t, 1)
	merged, err := leader.RestoreOfNextTerm(within(t, testTimeout))
	if wantCode(t, err, cluster.CodeNoLeader); merged {
		t.Error("it merged")
	}
}

// electOver has a node elected over the leader, once the node has every entry: no other node would start an election
// after a lost one. A candidacy of it is left alone: on a busy machine it takes longer than the time between two looks
// at it.
func (c *testCluster) electOver(n *testNode) {
	c.t.Helper()
	eventually(c.t, string(n.id)+" leads", func() bool {
		last := n.Status().LastLogIndex
		behind := slices.ContainsFunc(c.others(n), func(o *testNode) bool { return o.Status().LastLogIndex > last })
		if behind {
			return n.Status().Role == cluster.Leader
		}
		return n.elected()
	})
}

// elected reports whether a node leads. A follower starts an election.
func (n *testNode) elected() bool {
	st := n.Status()
	if st.Role == cluster.Follower {
		_, _ = n.tr.Raft().StartElection(within(n.t, timeoutMin), st.Term, cluster.CauseOperator)
	}
	return st.Role == cluster.Leader
}

// TestGuardedReader: the library reads what is restored before it replaces anything.
func TestGuardedReader(t *testing.T) {
	t.Parallel()
	leads := true
	r, refused := consensus.GuardedRead(strings.NewReader("content"), func() bool { return leads })
	if _, err := r.Read(make([]byte, 3)); err != nil || refused() {
		t.Fatalf("while it leads: %v, refused %v", err, refused())
	}
	leads = false
	if rest, err := io.ReadAll(r); string(rest) != "tent" || err != nil || refused() {
		t.Errorf("once it is begun: %q, %v", rest, err)
	}
	r, refused = consensus.GuardedRead(strings.NewReader("content"), func() bool { return leads })
	if n, err := r.Read(make([]byte, 3)); n != 0 || err == nil || !refused() {
		t.Errorf("without leadership: %d bytes, %v, refused %v", n, err, refused())
	}
}

// TestMainLoopInARestore: the main loop of a leader that restores a backup answers nothing. It does not count as hung.
func TestMainLoopInARestore(t *testing.T) {
	t.Parallel()
	n, release, done := startHeldRestore(t, within(t, testTimeout))
	if err := n.tr.Raft().CheckMainLoop(within(t, timeoutMin)); err != nil {
		t.Error(err)
	}
	close(release)
	if err := <-done; err != nil {
		t.Error(err)
	}
	if n.Restoring() != 0 {
		t.Error("it restores after the restore")
	}
}
