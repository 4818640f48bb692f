package consensus_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"northstar/cluster"
	"northstar/consensus"
	"northstar/state"
)

func TestProposeAndRead(t *testing.T) {
	t.Parallel()
	c, _ := startCluster(t, 3)
	leader := c.whileLeading("writes and reads", func(leader *testNode) error {
		if err := errors.Join(leader.put("a", "1"), leader.ReadBarrier(within(t, testTimeout))); err != nil {
			return err
		}
		if !leader.has("a", "1") {
			return errors.New("a linearizable read misses an acknowledged write")
		}
		c.everywhere("a", "1")
		for _, n := range c.others(leader) {
			for _, err := range []error{n.put("b", "1"), n.ReadBarrier(within(t, testTimeout))} {
				if !cluster.IsCode(err, cluster.CodeNoLeader) {
					return fmt.Errorf("%s answered with %w", n.id, err)
				}
			}
			if st := n.Status(); st.LeaderID != leader.id || st.LeaderRaftAddress != leader.addr {
				return fmt.Errorf("%s sees leader %s at %s", n.id, st.LeaderID, st.LeaderRaftAddress)
			}
		}
		return nil
	})
	id := leader.Identity().ClusterID
	for _, n := range c.nodes {
		eventually(t, "the cluster ID is durable on "+string(n.id),
			func() bool { return id != "" && n.Identity().ClusterID == id })
		eventually(t, string(n.id)+" has caught up", func() bool { return n.Status().CaughtUp })
		eventually(t, string(n.id)+" is active", func() bool { return n.Status().Lifecycle == cluster.Active })
	}
	_, err := leader.Propose(within(t, testTimeout), state.Command{Kind: state.KindPut})
	wantCode(t, err, cluster.CodeBadRequest)
}

// TestReadsSeeAcknowledgedWrites has readers beside a writer: a barrier that begins after a write was acknowledged must
// show it, also when a busy machine makes leadership move.
func TestReadsSeeAcknowledgedWrites(t *testing.T) {
	t.Parallel()
	c, _ := startCluster(t, 3)
	var acked atomic.Int64
	var reads atomic.Int64
	ctx, cancel := context.WithCancel(context.Background())
	var readers sync.WaitGroup
	for _, n := range c.nodes {
		readers.Go(func() {
			for ctx.Err() == nil {
				before := acked.Load()
				if n.ReadBarrier(ctx) != nil {
					select {
					case <-n.LeaderChanged():
					case <-ctx.Done():
					}
					continue
				}
				reads.Add(1)
				item, _ := n.View().Get("counter")
				var got int64
				_, _ = fmt.Sscan(string(item.Value), &got)
				if got < before {
					t.Errorf("%s read %d after %d was acknowledged", n.id, got, before)
				}
			}
		})
	}
	for i := range 200 {
		c.write("counter", fmt.Sprint(i))
		acked.Store(int64(i))
	}
	cancel()
	readers.Wait()
	if reads.Load() == 0 {
		t.Error("nothing was read")
	}
}

func TestRestartOfAll(t *testing.T) {
	t.Parallel()
	c, leader := startCluster(t, 3)
	leader = c.onLeader("a write", func(n *testNode) error { return n.put("a", "1") })
	eventually(t, "the cluster ID is durable", func() bool { return leader.Identity().ClusterID != "" })
	revision, id := leader.View().Revision(), leader.Identity()
	for _, n := range c.nodes {
		n.stop()
	}
	for _, n := range c.nodes {
		n.start()
	}
	c.elect()
	c.everywhere("a", "1")
	leader = c.onLeader("a write", func(n *testNode) error { return n.put("b", "2") })
	if got := leader.View().Revision(); got <= revision {
		t.Errorf("revision %d after %d", got, revision)
	}
	for _, n := range c.nodes {
		if n.Identity().ClusterID != id.ClusterID {
			t.Errorf("%s has cluster ID %q", n.id, n.Identity().ClusterID)
		}
	}
}

func TestLateThirdNode(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	c.nodes["n1"].start()
	c.nodes["n2"].start()
	c.elect()
	c.write("a", "1")
	late := c.nodes["n3"]
	late.start()
	eventually(t, "n3 is admitted", func() bool { return late.has("a", "1") })
	if late.Status().Suffrage() != cluster.Voter {
		t.Error("n3 is not the voter that it was bootstrapped as")
	}
	eventually(t, "the data directory of n3 is recorded", func() bool {
		m, _ := c.leader().View().Member("n3")
		return m.Incarnation == late.Identity().Incarnation && m.Reads == state.CommandVersion
	})
	// It counts: with it, one of the others may go.
	for _, n := range c.others(c.leader()) {
		if n != late {
			n.stop()
			break
		}
	}
	c.write("b", "1")
}

// TestBootstrap_NotWithAnotherInitialCluster starts a node with another initial-cluster than the rest.
func TestBootstrap_NotWithAnotherInitialCluster(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	rival := c.nodes["n3"]
	rival.first = append([]consensus.FirstMember{{ID: "n4", RaftAddress: "127.0.0.1:1"}}, c.first...)
	rival.start()
	c.nodes["n1"].start()
	c.nodes["n2"].start()
	c.write("a", "1")
	if rival.Status().Role != cluster.Follower || rival.Status().LastLogIndex > 0 && rival.Status().ClusterID == "" {
		t.Errorf("the rival bootstrapped: %+v", rival.Status())
	}
}

func TestStartErrors(t *testing.T) {
	t.Parallel()
	c, leader := startCluster(t, 1)
	c.write("a", "1")
	dir := leader.dir
	leader.stop()

	other := c.addNode("n9")
	other.dir = dir
	if err := other.tryStart(); err == nil || !strings.Contains(err.Error(), "belongs to node n1") {
		t.Errorf("another node's data directory: %v", err)
	}
	empty := c.addNode("n8")
	if err := empty.tryStart(); err == nil || !strings.Contains(err.Error(), "set initial-cluster") {
		t.Errorf("nothing configured: %v", err)
	}
	empty.first = c.first
	if err := empty.tryStart(); err == nil || !strings.Contains(err.Error(), "n8, is not in the list") {
		t.Errorf("not in the list: %v", err)
	}
}

// TestStaleLeader cuts a leader off. It must neither acknowledge a write nor answer a read, and stop leading.
func TestStaleLeader(t *testing.T) {
	t.Parallel()
	c, old := startCluster(t, 3)
	c.write("a", "1")
	old.cut.Store(true)
	cutAt := time.Now()
	// The others go on; while the old one still believes, its reads must fail.
	results := make(chan error, 2)
	go func() { results <- old.put("a", "stale") }()
	go func() { results <- old.ReadBarrier(context.Background()) }()
	eventually(t, "the old leader steps down", func() bool { return old.Status().Role != cluster.Leader })
	if took := time.Since(cutAt); took > 2*timeoutMax {
		t.Errorf("it took %v to stop leading", took)
	}
	unknown := 0
	for range 2 {
		err := <-results
		switch {
		case cluster.IsCode(err, cluster.CodeOutcomeUnknown):
			unknown++
		case !cluster.IsCode(err, cluster.CodeNoLeader):
			t.Errorf("a cut-off leader answered %v", err)
		}
	}
	if unknown != 1 {
		t.Errorf("%d answers are unknown, want that of the write", unknown)
	}
	c.write("a", "2")
	wantCode(t, old.ReadBarrier(within(t, testTimeout)), cluster.CodeNoLeader)
	old.cut.Store(false)
	eventually(t, "the old leader follows", func() bool { return old.has("a", "2") })
	c.everywhere("a", "2")
}

// TestDeadlineAfterHandOver has a write whose deadline passes on its way.
func TestDeadlineAfterHandOver(t *testing.T) {
	t.Parallel()
	c, _ := startCluster(t, 3)
	c.whileLeading("the outcome is unknown", func(leader *testNode) error {
		leader.cut.Store(true)
		defer leader.cut.Store(false)
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
		defer cancel()
		_, err := leader.Propose(ctx, put("a", "1"))
		var e *cluster.Error
		if !errors.As(err, &e) || e.Code != cluster.CodeOutcomeUnknown || e.Retryable() {
			return fmt.Errorf("answered with %w, retryable: %v", err, e != nil && e.Retryable())
		}
		return nil
	})
}

// TestLeaderTasks follows leader tasks over a change of leader. Their context ends with the cause, and no two
// leaderships of a node overlap.
func TestLeaderTasks(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	var mu sync.Mutex
	running := map[cluster.NodeID]int{}
	var causes []error
	for _, n := range c.nodes {
		n.tasks = append(n.tasks, func(ctx context.Context, _ uint64) {
			mu.Lock()
			running[n.id]++
			if running[n.id] > 1 {
				t.Errorf("two leaderships of %s overlap", n.id)
			}
			mu.Unlock()
			<-ctx.Done()
			mu.Lock()
			running[n.id]--
			causes = append(causes, context.Cause(ctx))
			mu.Unlock()
		})
		n.start()
	}
	c.elect()
	for range 3 {
		old := c.leader()
		eventually(t, "the task runs, or has ended", func() bool {
			mu.Lock()
			defer mu.Unlock()
			return running[old.id] == 1 || old.Status().Role != cluster.Leader
		})
		c.transferTo(c.others(old)[0])
		eventually(t, "the task has ended", func() bool { mu.Lock(); defer mu.Unlock(); return running[old.id] == 0 })
	}
	mu.Lock()
	defer mu.Unlock()
	for _, cause := range causes {
		if !errors.Is(cause, consensus.ErrLeadershipLost) {
			t.Errorf("cause %v", cause)
		}
	}
}

func TestTransferTo(t *testing.T) {
	t.Parallel()
	c, _ := startCluster(t, 3)
	c.write("a", "1")
	ctx := within(t, 3*testTimeout)
	var target *testNode
	c.whileLeading("transfers are refused", func(leader *testNode) error {
		others := c.others(leader)
		target = others[0]
		for _, tt := range []struct {
			by, to *testNode
			code   cluster.Code
		}{
			{leader, &testNode{id: "n9"}, cluster.CodeBadRequest},
			{leader, leader, cluster.CodeBadRequest},
			{others[1], target, cluster.CodeNoLeader},
		} {
			if err := tt.by.TransferTo(ctx, to(tt.to.id)); !cluster.IsCode(err, tt.code) {
				return fmt.Errorf("from %s to %s: got %w, want %s", tt.by.id, tt.to.id, err, tt.code.Name())
			}
		}
		target.cut.Store(true)
		defer target.cut.Store(false)
		eventually(t, "the target is out of contact", func() bool { return !inContact(leader, target.id) })
		return refusedTransfer(t, leader, target.id, "not in contact")
	})
	eventually(t, "a transfer to the node that is back", func() bool {
		leader := c.leader()
		if leader == target {
			target = c.others(leader)[0]
		}
		return healthy(leader, target.id) && leader.TransferTo(ctx, to(target.id)) == nil &&
			target.Status().Role == cluster.Leader
	})
	c.write("b", "1")
	c.everywhere("b", "1")
}

func inContact(n *testNode, id cluster.NodeID) bool {
	for _, p := range n.Peers() {
		if p.ID == id {
			return p.Contacted && p.LastContact <= 2*timeoutMax
		}
	}
	return false
}

func healthy(n *testNode, id cluster.NodeID) bool {
	for _, p := range n.Peers() {
		if p.ID == id {
			return p.Healthy && p.LagEntries == 0
		}
	}
	return false
}

func TestBackupAndRestore(t *testing.T) {
	t.Parallel()
	c, leader := startCalmCluster(t, 3)
	c.write("kept", "old")
	var backup bytes.Buffer
	if err := leader.Backup(within(t, testTimeout), &backup); err != nil {
		t.Fatal(err)
	}
	c.write("kept", "new")
	c.write("later", "1")
	revision, term := leader.View().Revision(), leader.Status().Term

	damaged := bytes.Clone(backup.Bytes())
	damaged[len(damaged)/2] ^= 1
	wantCode(t, leader.Restore(within(t, testTimeout), bytes.NewReader(damaged)), cluster.CodeBadRequest)
	if !leader.has("kept", "new") {
		t.Fatal("a damaged backup changed something")
	}
	for _, n := range c.nodes {
		n.elections.Store(0)
	}
	if err := leader.Restore(within(t, testTimeout), bytes.NewReader(backup.Bytes())); err != nil {
		t.Fatal(err)
	}
	c.everywhere("kept", "old")
	if _, ok := leader.View().Get("later"); ok {
		t.Error("a key that the backup does not have")
	}
	if err := leader.ReadBarrier(within(t, testTimeout)); err != nil {
		t.Error(err)
	}
	c.write("after", "1")
	if leader.View().Revision() <= revision {
		t.Errorf("revision went back to %d from %d", leader.View().Revision(), revision)
	}
	c.everywhere("after", "1")
	for _, n := range c.nodes {
		if n.elections.Load() != 0 || n.Status().Term != term {
			t.Errorf("an election came of the restore: %s in term %d", n.id, n.Status().Term)
		}
	}
	for _, n := range c.nodes {
		n.stop()
	}
	for _, n := range c.nodes {
		n.start()
	}
	c.elect()
	c.everywhere("kept", "old")
	c.everywhere("after", "1")
}

// TestRebuild rebuilds the leader's Raft node under load: nothing acknowledged is lost, nothing is applied twice, no
// reader sees the past.
func TestRebuild(t *testing.T) {
	t.Parallel()
	c, leader := startCluster(t, 3)
	for i := range 20 {
		c.write(fmt.Sprint("k", i), "1")
	}
	if err := leader.TakeSnapshot(); err != nil {
		t.Fatal(err)
	}
	c.write("after", "1")
	before := leader.Instance()
	revision := leader.View().Revision()
	leader.RestartRaft("a test")
	eventually(t, "a new Raft node runs", func() bool {
		i := leader.Instance()
		return i != before &&
			leader.Status().Servers != nil
	})
	if got := leader.View().Revision(); got < revision {
		t.Errorf("the state went back to %d from %d", got, revision)
	}
	c.write("more", "1")
	c.everywhere("more", "1")
	eventually(t, "all states are the same: nothing was applied twice", func() bool {
		want := leader.View()
		for _, n := range c.nodes {
			if v := n.View(); v.AppliedIndex() != want.AppliedIndex() || v.Fingerprint() != want.Fingerprint() {
				return false
			}
		}
		return true
	})
	eventually(t, "the rebuilt node may take snapshots again", func() bool { return leader.TakeSnapshot() == nil })
	leader.restart()
	c.everywhere("k7", "1")
	c.everywhere("more", "1")
}

// TestUnknownCommand commits an entry that this build cannot read. A node that learns of the commit stops before it
// applies the entry, and applies nothing after it. At least a majority learns of it. The last node may never do so.
func TestUnknownCommand(t *testing.T) {
	t.Parallel()
	c, _ := startCluster(t, 3)
	c.write("a", "1")
	c.everywhere("a", "1")
	ended := func(n *testNode) bool { return len(n.done) > 0 }
	eventually(t, "two nodes end", func() bool {
		count := 0
		for _, n := range c.nodes {
			if ended(n) {
				count++
			}
		}
		for _, n := range c.nodes {
			if count == 0 && n.Status().Role == cluster.Leader {
				_ = n.ProposeRaw([]byte("\xff\xff\xff\xff what is this"))
			}
		}
		return count >= 2
	})
	for _, n := range c.nodes {
		if !n.has("a", "1") {
			t.Errorf("%s lost its state", n.id)
		}
		if !ended(n) {
			continue
		}
		if err := n.wait(false); err == nil || !strings.Contains(err.Error(), "cannot apply log entry") {
			t.Errorf("%s ended with %v", n.id, err)
		}
		if err := n.tryStart(); err != nil { // it meets the entry again
			t.Fatal(err)
		}
	}
	for _, n := range c.nodes {
		if _, ok := n.View().Get("after"); ok {
			t.Errorf("%s applied something after it", n.id)
		}
		_ = n.wait(true)
	}
}

func TestRestartFromSnapshot(t *testing.T) {
	t.Parallel()
	c, leader := startCluster(t, 3)
	for i := range 50 {
		c.write(fmt.Sprint("k", i), "1")
	}
	for _, n := range c.nodes {
		eventually(t, "a snapshot of "+string(n.id), func() bool { return n.TakeSnapshot() == nil })
	}
	c.write("tail", "1")
	leader.stop()
	c.write("while away", "1")
	leader.start()
	c.everywhere("k49", "1")
	c.everywhere("tail", "1")
	c.everywhere("while away", "1")
}

// TestRebuild_OnceForTwoRequests: a second request to replace the Raft node comes while the first is being carried out.
// It is about the same Raft node, and the next one is not replaced because of it.
func TestRebuild_OnceForTwoRequests(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1)
	n := c.nodes["n1"]
	ending, end := make(chan struct{}), make(chan struct{})
	var once sync.Once
	n.tasks = append(n.tasks, func(ctx context.Context, _ uint64) {
		<-ctx.Done()
		once.Do(func() { close(ending); <-end })
	})
	n.start()
	c.write("a", "1")
	n.RestartRaft("a test asks for it")
	<-ending
	n.RestartRaft("a test asks for it")
	close(end)
	c.write("b", "1")
	if starts := n.raftStarts.Load(); starts != 2 {
		t.Errorf("Raft was started %d times, want 2", starts)
	}
}
