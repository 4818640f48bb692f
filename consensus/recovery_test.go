package consensus_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"northstar/cluster"
	"northstar/consensus"
	"northstar/consensus/storage"
)

// flood writes on the leader until stop is called. stop returns the highest acknowledged revision and the number of
// writes.
func (c *testCluster) flood() (stop func() (revision uint64, writes int)) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	var revision uint64
	var writes int
	leader := c.leader()
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			r, err := leader.Propose(ctx, put(fmt.Sprint("k", writes%50), fmt.Sprint(writes)))
			if err == nil && r.Err == nil {
				revision, writes = max(revision, r.Revision), writes+1
			} else if next := c.nodes[leader.Status().LeaderID]; next != nil {
				leader = next
			}
		}
	}()
	return func() (uint64, int) {
		cancel()
		<-done
		return revision, writes
	}
}

// lose stops nodes abruptly, like the loss of their machines.
func lose(nodes ...*testNode) {
	for _, n := range nodes {
		n.cut.Store(true)
	}
	for _, n := range nodes {
		n.stop()
		n.cut.Store(false)
	}
}

// recoveryRequest is a recovery of a cluster in which these are left.
func (c *testCluster) recoveryRequest(left ...*testNode) cluster.RecoveryRequest {
	o := cluster.RecoveryRequest{Confirm: left[0].Identity().ClusterID, Operator: "test", Reason: "drill"}
	for _, n := range left {
		o.Survivors = append(o.Survivors, n.id)
	}
	return o
}

// checkRecovered holds what a recovered node must show, and writes.
func checkRecovered(t *testing.T, n *testNode, acked uint64) {
	t.Helper()
	v := n.View()
	if g := v.Generation(); g.Number != 2 || g.RecoveryID == "" || g != n.Identity().Generation {
		t.Errorf("generation %+v, identity %+v", g, n.Identity())
	}
	items, _ := v.List("", "", 0)
	for _, it := range items {
		if it.Revision <= acked {
			t.Errorf("%s has revision %d, %d was acknowledged before", it.Key, it.Revision, acked)
		}
	}
	if _, d := v.ClusterLockDelay(); d < 10*time.Second {
		t.Errorf("roles wait %v for who may believe to hold them", d)
	}
	r, err := n.Propose(within(t, testTimeout), put("after", "recovery"))
	if err != nil || r.Err != nil || r.Revision <= acked || r.Revision>>40 != 1 {
		t.Errorf("a write has revision %d after %d: %v, %v", r.Revision, acked, err, r.Err)
	}
}

// checkOutside starts nodes with the data that they had before the recovery. They must notice the new generation,
// elect no leader, and disturb no other node. It returns the leader of the new generation at the end, which may be
// another node on a slow machine.
func checkOutside(t *testing.T, c *testCluster, leader *testNode, old ...*testNode) *testNode {
	t.Helper()
	before := leader.Status().Term
	for _, n := range old {
		n.start()
	}
	terms := map[*testNode]uint64{}
	for _, n := range old {
		eventually(t, string(n.id)+" is dead", func() bool { return n.Status().Lifecycle == cluster.Dead })
		eventually(t, string(n.id)+" has read its log", func() bool { terms[n] = n.Status().Term; return terms[n] > 0 })
	}
	// Long enough for elections, were there any.
	for _, n := range old {
		if _, err := n.tr.Raft().StartElection(within(t, testTimeout), terms[n], cluster.CauseOperator); err == nil {
			t.Errorf("%s starts an election at an operator's request", n.id)
		}
	}
	for end := time.Now().Add(noElection); time.Now().Before(end); time.Sleep(timeoutMin / 10) {
		for _, n := range old {
			if st := n.Status(); st.Role == cluster.Leader || n.MayStartElection() || n.MayVote() ||
				st.Term != terms[n] {
				t.Fatalf("%s takes part, it was in term %d: %+v", n.id, terms[n], st)
			}
		}
	}
	c.write("undisturbed", "1")
	leader = c.leader()
	for _, e := range leader.View().Elections() {
		if e.Term > before && slices.ContainsFunc(old, func(n *testNode) bool { return n.id == e.Node }) {
			t.Errorf("%s was elected in term %d", e.Node, e.Term)
		}
	}
	for _, n := range old {
		if n.has("undisturbed", "1") {
			t.Errorf("%s took an entry of the new generation", n.id)
		}
	}
	return leader
}

// readmit wipes nodes and takes them back.
func readmit(t *testing.T, c *testCluster, nodes ...*testNode) {
	t.Helper()
	for _, n := range nodes {
		n.stop()
		n.wipe()
		eventually(t, "readmission of "+string(n.id), func() bool {
			return c.leader().PatchMember(within(t, testTimeout), n.id, cluster.MemberPatch{Readmit: true}) == nil
		})
		n.start()
	}
	for _, n := range nodes {
		eventually(t, string(n.id)+" is a voter again", func() bool { return n.Status().Suffrage() == cluster.Voter })
	}
	c.write("whole", "again")
	c.everywhere("whole", "again")
}

// TestRecoverLastOfThree: two of three nodes are lost under load, and the third is recovered. The lost nodes come back
// with their old data, then without it.
func TestRecoverLastOfThree(t *testing.T) {
	t.Parallel()
	c, leader := startCluster(t, 3)
	stop := c.flood()
	eventually(t, "writes", func() bool { return leader.View().Revision() > 60 })
	left := c.others(leader)[0]
	eventually(t, "the survivor has most of them", func() bool { return left.View().Revision() > 30 })
	lost := c.others(left)
	eventually(t, "no plan with all of them", func() bool {
		_, err := left.PlanRecovery(within(t, testTimeout), c.recoveryRequest(left))
		return cluster.IsCode(err, cluster.CodeQuorumExists)
	})
	lose(lost...)
	acked, writes := stop()
	request := c.recoveryRequest(left)
	var plan cluster.RecoveryPlan
	eventually(t, "a plan", func() bool {
		var err error
		plan, err = left.PlanRecovery(within(t, testTimeout), request)
		return err == nil
	})
	if plan.Chosen != left.id || len(plan.Lost) != 2 || plan.Generation != 2 {
		t.Errorf("%+v", plan)
	}
	term := left.Status().Term
	g, err := left.Recover(within(t, testTimeout), request)
	if err != nil || g.Number != 2 {
		t.Fatalf("generation %+v, %v", g, err)
	}
	t.Logf("%d writes, up to revision %d; recovered to %d", writes, acked, left.View().Revision())
	checkRecovered(t, left, acked)
	all := left.View().Elections()
	if e := all[len(all)-1]; e.Trigger != "manual" || e.Operator != request.Operator ||
		!strings.Contains(e.Reason, "recovery from a lost quorum") {
		t.Errorf("the election after the recovery: %+v", e)
	}
	if st := left.Status(); st.Term <= term+1000 {
		t.Errorf("term %d after %d", st.Term, term)
	}
	if _, err := left.Recover(within(t, testTimeout), request); !cluster.IsCode(err, cluster.CodeQuorumExists) {
		t.Errorf("recovered again: %v", err)
	}
	if left.put("still", "leads") != nil {
		c.write("still", "leads") // the second request has stopped Raft for a moment
	}
	left = checkOutside(t, c, c.leader(), lost...)
	left.restart() // alone, beside nodes that refuse it
	left = c.leader()
	if g := left.Identity().Generation; g.Number != 2 {
		t.Errorf("generation %d after a restart", g.Number)
	}
	readmit(t, c, lost...)
}

// Of five, three are lost. The fresher of the two survivors is recovered, the other's data set aside; it comes back by
// itself.
func TestRecoverTwoOfFive(t *testing.T) {
	t.Parallel()
	c, leader := startCluster(t, 5)
	c.write("a", "1")
	c.everywhere("a", "1")
	fresh := c.others(leader)[0]
	behind := c.others(leader)[1]
	behind.cut.Store(true)
	lost := []*testNode{leader, c.others(leader)[2], c.others(leader)[3]}
	for i := range 20 {
		c.write("more", fmt.Sprint(i))
	}
	eventually(t, "the fresher survivor has it", func() bool { return fresh.has("more", "19") })
	acked := leader.View().Revision()
	lose(lost...)
	behind.cut.Store(false)
	request := c.recoveryRequest(behind, fresh)
	for _, n := range []*testNode{behind, fresh} {
		eventually(t, "a plan at "+string(n.id), func() bool {
			plan, err := n.PlanRecovery(within(t, testTimeout), request)
			return err == nil && plan.Chosen == fresh.id && len(plan.Lost) == 3
		})
	}
	if err := behind.SetAside(within(t, testTimeout), request.Confirm, fresh.id,
		cluster.Generation{Number: 2, RecoveryID: "x"}); !cluster.IsCode(err, cluster.CodeBadRequest) {
		t.Errorf("set aside for a generation that nobody is of: %v", err)
	}
	g, err := fresh.Recover(within(t, testTimeout), request)
	if err != nil {
		t.Fatal(err)
	}
	checkRecovered(t, fresh, acked)
	old := behind.Identity()
	release := behind.HoldAside() // as by the recovered node's hello, which names this node
	ended, end := context.WithCancel(t.Context())
	end()
	wantCode(t, behind.SetAside(ended, request.Confirm, fresh.id, g), cluster.CodeBusy)
	release()
	eventually(t, "its data is set aside", func() bool {
		return behind.SetAside(within(t, testTimeout), request.Confirm, fresh.id, g) == nil
	})
	behind.cut.Store(true)
	if err := behind.SetAside(within(t, testTimeout), request.Confirm, fresh.id, g); err != nil {
		t.Errorf("another request for the same generation: %v", err)
	}
	behind.cut.Store(false)
	behind.restart()
	eventually(t, "the other survivor is a voter again",
		func() bool { return behind.Status().Suffrage() == cluster.Voter && behind.has("after", "recovery") })
	if id := behind.Identity(); id.Generation != g || id.Incarnation == old.Incarnation {
		t.Errorf("it is %+v, and was %+v", id, old)
	}
	if err := behind.SetAside(within(t, testTimeout), request.Confirm, fresh.id, g); err != nil {
		t.Errorf("again: %v", err)
	}
	// The lost ones are a quorum of the old generation: they start together.
	checkOutside(t, c, fresh, lost...)
	readmit(t, c, lost...)
}

// A directory that was recovered while its node was stopped.
func TestRecoverOffline(t *testing.T) {
	t.Parallel()
	c, leader := startCluster(t, 3)
	c.write("a", "1")
	c.everywhere("a", "1")
	acked := leader.View().Revision()
	id := leader.Identity().ClusterID
	left := c.others(leader)[0]
	if _, err := consensus.OpenOffline(left.dir); !errors.As(err, new(*storage.LockedError)) {
		t.Errorf("of a node that runs: %v", err)
	}
	lost := c.others(left)
	lose(append(lost, left)...)
	s, err := consensus.OpenOffline(left.dir)
	if err != nil {
		t.Fatal(err)
	}
	if l := s.Inspection(); l.LastIndex == 0 || l.LastTerm == 0 || l.CurrentTerm < l.LastTerm ||
		len(s.Servers()) != 3 || s.Identity().ClusterID != id {
		t.Errorf("%+v, %+v, %+v", l, s.Servers(), s.Identity())
	}
	if _, err := s.Recover("another", "test", rand.Reader); !cluster.IsCode(err, cluster.CodeBadRequest) {
		t.Errorf("with another cluster's ID: %v", err)
	}
	g, err := s.Recover(id, "test", rand.Reader)
	if err != nil || g.Number != 2 {
		t.Fatal(g, err)
	}
	if _, err := s.Recover(id, "test", rand.Reader); !cluster.IsCode(err, cluster.CodeBadRequest) {
		t.Errorf("twice: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	left.start()
	left = c.leader()
	checkRecovered(t, left, acked)
	checkOutside(t, c, left, lost...)
	readmit(t, c, lost...)
}

// brokenDisk is a real data directory that fails at one of its writes, and at all after it.
type brokenDisk struct {
	storage.Storage
	writes, fail atomic.Int64 // the write that fails first; 0: none
}

func (d *brokenDisk) write(do func() error) error {
	n := d.writes.Add(1)
	if at := d.fail.Load(); at != 0 && n >= at {
		return errors.New("input/output error")
	}
	return do()
}

func (d *brokenDisk) Save(name string, data []byte) error {
	return d.write(func() error { return d.Storage.Save(name, data) })
}
func (d *brokenDisk) Log() raft.LogStore        { return &brokenLog{d.Storage.Log(), d} }
func (d *brokenDisk) Stable() storage.VoteStore { return &brokenStable{d.Storage.Stable(), d} }

type brokenLog struct {
	raft.LogStore
	d *brokenDisk
}

func (l *brokenLog) StoreLogs(e []*raft.Log) error {
	return l.d.write(func() error { return l.LogStore.StoreLogs(e) })
}

func (l *brokenLog) DeleteRange(from, to uint64) error {
	return l.d.write(func() error { return l.LogStore.DeleteRange(from, to) })
}

func (l *brokenLog) StoreLog(e *raft.Log) error { return l.StoreLogs([]*raft.Log{e}) }

type brokenStable struct {
	storage.VoteStore
	d *brokenDisk
}

func (s *brokenStable) SetUint64(k []byte, v uint64) error {
	return s.d.write(func() error { return s.VoteStore.SetUint64(k, v) })
}

func (s *brokenStable) RecordVote(term, voteTerm uint64, candidate []byte) error {
	return s.d.write(func() error { return s.VoteStore.RecordVote(term, voteTerm, candidate) })
}

func (s *brokenStable) Set(k, v []byte) error {
	return s.d.write(func() error { return s.VoteStore.Set(k, v) })
}

// TestRecoverFailsAtEachWrite: the disk fails at any one write of a recovery. The data directory is then of the old
// generation, or becomes one of the new generation at its next start.
func TestRecoverFailsAtEachWrite(t *testing.T) {
	t.Parallel()
	c, leader := startCluster(t, 3)
	c.write("a", "1")
	c.everywhere("a", "1")
	left := c.others(leader)[0]
	lose(append(c.others(left), left)...)
	data := left.dir
	for fail := int64(1); fail <= 6; fail++ { // four of the recovery, then those of the election
		left.wipe()
		if err := os.CopyFS(left.dir, os.DirFS(data)); err != nil {
			t.Fatal(err)
		}
		if left.recoverFailing(c, fail) {
			t.Fatalf("a recovery took less than %d writes", fail)
		}
		left.start()
		// A node with the old identity must not recover by itself. One with the new identity must need no further
		// action.
		if number := left.Identity().Generation.Number; number == 2 {
			left = c.leader()
			checkRecovered(t, left, 0)
			if !left.has("a", "1") {
				t.Errorf("write %d failed: what was committed is gone", fail)
			}
		} else if fail > 1 {
			t.Errorf("write %d failed: generation %d, but the first write had decided it", fail, number)
		}
		left.stop()
	}
}

// recoverFailing recovers a stopped node on a disk that fails at one of its writes. It reports whether the node was
// recovered in spite of that.
func (n *testNode) recoverFailing(c *testCluster, fail int64) (recovered bool) {
	n.t.Helper()
	dir, err := storage.Open(storage.Options{Dir: n.dir, Logger: testLogger()})
	if err != nil {
		n.t.Fatal(err)
	}
	disk := &brokenDisk{Storage: dir}
	if err := n.startOn(disk); err != nil {
		n.t.Fatal(err)
	}
	eventually(n.t, "Raft runs", func() bool { return n.Servers() != nil })
	disk.writes.Store(0)
	disk.fail.Store(fail)
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		_, err := n.Recover(ctx, c.recoveryRequest(n))
		done <- err
	}()
	eventually(n.t, "an end", func() bool { return disk.writes.Load() >= fail || len(done) > 0 })
	if len(done) == 0 {
		cancel()
	}
	recovered = <-done == nil
	_ = n.wait(true) // how it ends is the disk's matter
	return recovered
}

// TestNoElectionBeforeAllWereAsked: members that start together are a quorum. Before they have probed the other
// members they must elect no leader, because there may be a newer generation.
func TestNoElectionBeforeAllWereAsked(t *testing.T) {
	t.Parallel()
	c, leader := startCluster(t, 3)
	c.write("a", "1")
	c.everywhere("a", "1")
	both := c.others(leader)
	lose(append(both, leader)...)
	answer := make(chan struct{})
	for _, n := range both {
		n.heldProbes = answer
		n.start()
	}
	for end := time.Now().Add(noElection); time.Now().Before(end); time.Sleep(timeoutMin / 10) {
		for _, n := range both {
			if st := n.Status(); st.Role == cluster.Leader || n.MayVote() || n.MayStartElection() {
				t.Fatalf("%s takes part before it knows: %+v", n.id, st)
			}
		}
	}
	close(answer)
	c.leader()
}
