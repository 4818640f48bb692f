package transport

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"northstar/cluster"
)

// node is a real raft.Raft over the transport, with stores in memory.
type node struct {
	*end
	r    *raft.Raft
	fsm  *testFSM
	log  *raft.InmemStore
	snap *raft.InmemSnapshotStore

	slowLog raft.LogStore // not nil: raft's log, over log
}

// testFSM keeps all commands. Restore may be slow, with progress.
type testFSM struct {
	mu       sync.Mutex
	data     [][]byte
	restore  func() // called while restoring, may block
	restored atomic.Uint64
}

func (f *testFSM) Apply(l *raft.Log) any {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.data = append(f.data, bytes.Clone(l.Data))
	return nil
}

func (f *testFSM) len() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.data)
}

func (f *testFSM) Snapshot() (raft.FSMSnapshot, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return snapshotOf(bytes.Join(f.data, []byte("\n"))), nil
}

func (f *testFSM) Restore(r io.ReadCloser) error {
	defer r.Close()
	b, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	if f.restore != nil {
		f.restore()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.data = bytes.Split(b, []byte("\n"))
	return nil
}

type snapshotOf []byte

func (s snapshotOf) Persist(sink raft.SnapshotSink) error {
	_, err := sink.Write(s)
	return errors.Join(err, sink.Close())
}
func (snapshotOf) Release() {}

// testCluster is a number of nodes that know each other, not yet bootstrapped.
type testCluster struct {
	t     *testing.T
	nodes []*node
}

func newCluster(t *testing.T, n int, opts ...option) *testCluster {
	t.Helper()
	c := &testCluster{t: t}
	for i := range n {
		id := cluster.NodeID(fmt.Sprintf("n%d", i+1))
		nd := &node{
			end: newEnd(t, id, opts...), log: raft.NewInmemStore(), snap: raft.NewInmemSnapshotStore(),
			fsm: &testFSM{},
		}
		c.nodes = append(c.nodes, nd)
	}
	return c
}

func (c *testCluster) servers(suffrage ...raft.ServerSuffrage) raft.Configuration {
	var conf raft.Configuration
	for i, n := range c.nodes {
		s := raft.Server{ID: raft.ServerID(n.id), Address: raft.ServerAddress(n.addr)}
		if i < len(suffrage) {
			s.Suffrage = suffrage[i]
		}
		conf.Servers = append(conf.Servers, s)
	}
	return conf
}

// start starts the node's raft, from what its stores hold.
func (n *node) start(bootstrap *raft.Configuration) {
	n.t.Helper()
	cfg := raft.DefaultConfig()
	cfg.LocalID = raft.ServerID(n.id)
	timeout := n.tr.cfg.TimeoutMin
	cfg.HeartbeatTimeout, cfg.ElectionTimeout, cfg.LeaderLeaseTimeout = timeout, timeout, timeout
	cfg.CommitTimeout = 5 * time.Millisecond
	cfg.TrailingLogs, cfg.SnapshotThreshold = 0, 1<<40
	cfg.Logger = hclog.NewNullLogger()
	if bootstrap != nil {
		if err := raft.BootstrapCluster(cfg, n.log, n.log, n.snap, n.raft, *bootstrap); err != nil {
			n.t.Fatal(err)
		}
	}
	var log raft.LogStore = n.log
	if n.slowLog != nil {
		log = n.slowLog
	}
	r, err := raft.NewRaft(cfg, n.fsm, log, n.log, n.snap, n.raft)
	if err != nil {
		n.t.Fatal(err)
	}
	n.r = r
	n.raft.Bind(n)
	n.t.Cleanup(n.shutdown)
}

// A node has a real raft instead of the one that its end simulates.

func (n *node) CurrentTerm() uint64 { return n.r.CurrentTerm() }

func (n *node) Progress() (applied, restored uint64) {
	return n.r.AppliedIndex(), n.fsm.restored.Load()
}

func (n *node) Leader() cluster.NodeID {
	_, id := n.r.LeaderWithID()
	return cluster.NodeID(id)
}

// shutdown stops raft in the order that the library needs: the transport first, then wait.
func (n *node) shutdown() {
	f := n.r.Shutdown()
	_ = n.raft.Close()
	if err := f.Error(); err != nil {
		n.t.Error(err)
	}
}

func (c *testCluster) bootstrap() {
	conf := c.servers()
	for _, n := range c.nodes {
		n.start(&conf)
	}
}

// leader waits for the one leader.
func (c *testCluster) leader() *node {
	c.t.Helper()
	var leader *node
	eventually(c.t, "a leader is elected", func() bool {
		i := slices.IndexFunc(c.nodes, func(n *node) bool { return n.r != nil && n.r.State() == raft.Leader })
		if i < 0 {
			return false
		}
		leader = c.nodes[i]
		return true
	})
	return leader
}

func (c *testCluster) others(than *node) []*node {
	return slices.DeleteFunc(slices.Clone(c.nodes), func(n *node) bool { return n == than })
}

func (n *node) apply(data string) {
	n.t.Helper()
	if err := n.r.Apply([]byte(data), 5*time.Second).Error(); err != nil {
		n.t.Fatalf("apply: %v", err)
	}
}

// confirm waits until a majority has acknowledged something sent after now, as a linearizable read does.
func (n *node) confirm(voters []cluster.NodeID, wait time.Duration) bool {
	start, term := time.Now(), n.r.CurrentTerm()
	n.r.VerifyLeader() // only sends heartbeats now
	timeout := time.After(wait)
	for {
		changed := n.tr.Acks().Changed()
		if n.tr.Acks().QuorumSince(term, n.id, voters, start) {
			return true
		}
		select {
		case <-changed:
		case <-timeout:
			return false
		}
	}
}

func (c *testCluster) ids() []cluster.NodeID {
	var ids []cluster.NodeID
	for _, n := range c.nodes {
		ids = append(ids, n.id)
	}
	return ids
}

// slowly is for nodes in real time, on a machine that may be busy.
func slowly(c *Config, _ *end) { c.TimeoutMin, c.TimeoutMax = time.Second, 2*time.Second }

func TestClusterElectsReplicatesAndReads(t *testing.T) {
	t.Parallel()
	ca := newAuthority(t)
	for name, opts := range map[string][]option{
		"plain": {slowly},
		"TLS": {slowly, func(c *Config, e *end) {
			c.TLS = ca.load(t, "northstar://test/node/"+string(e.id))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, 3, opts...)
			c.bootstrap()
			leader := c.leader()
			for i := range 200 {
				leader.apply(fmt.Sprint(i))
			}
			for _, n := range c.nodes {
				eventually(t, "all apply", func() bool { return n.fsm.len() == 200 })
			}
			if !leader.confirm(c.ids(), 5*time.Second) {
				t.Error("a read was not confirmed")
			}
			last := leader.r.LastIndex()
			for _, f := range c.others(leader) {
				eventually(t, "match index", func() bool { return leader.tr.Acks().Peer(f.id).MatchIndex == last })
			}
			eventually(t, "a majority has acknowledged recently", func() bool {
				acked := leader.tr.Acks().LeaseTime(leader.r.CurrentTerm(), leader.id, c.ids(), 0)
				return time.Since(acked) < time.Second
			})
		})
	}
}

// A leader is cut off from the voters and reaches a non-voter. The library's VerifyLeader succeeds, and QuorumSince
// reports no majority.
func TestNonVotersDoNotConfirmLeadership(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cut := &links{}
		c := newSimNet().newCluster(t, 3, cut.install)
		conf := c.servers(raft.Voter, raft.Voter, raft.Nonvoter)
		for _, n := range c.nodes {
			n.start(&conf)
		}
		leader := c.leader()
		leader.apply("x")
		voters := []cluster.NodeID{"n1", "n2"}
		if !leader.confirm(voters, 5*time.Second) {
			t.Fatal("not confirmed while connected")
		}
		other := voters[0]
		if leader.id == other {
			other = voters[1]
		}
		cut.cut(leader.id, other)
		verified := leader.r.VerifyLeader()
		if leader.confirm(voters, 200*time.Millisecond) {
			t.Error("confirmed without a majority of voters")
		}
		t.Logf("the library's VerifyLeader gives %v", verified.Error())
	})
}

// links is a fault hook that cuts connections between pairs of nodes.
type links struct {
	mu   sync.Mutex
	off  map[[2]cluster.NodeID]bool
	sent chan struct{} // closed when a snapshot is sent, which cuts its link
}

func (l *links) install(c *Config, _ *end) { c.Faults = l }

func (l *links) cut(a, b cluster.NodeID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.off == nil {
		l.off = make(map[[2]cluster.NodeID]bool)
	}
	l.off[[2]cluster.NodeID{a, b}], l.off[[2]cluster.NodeID{b, a}] = true, true
}

func (l *links) heal() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.off = nil
}

// cutAtSnapshot heals all links. The next snapshot is lost, and its link is cut from then on.
func (l *links) cutAtSnapshot() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.off, l.sent = nil, make(chan struct{})
	return l.sent
}

func (l *links) Outgoing(m Message) Fault {
	l.mu.Lock()
	defer l.mu.Unlock()
	if m.Kind == "snapshot" && l.sent != nil {
		close(l.sent)
		l.sent = nil
		l.off = map[[2]cluster.NodeID]bool{{m.From, m.To}: true, {m.To, m.From}: true}
	}
	return Fault{Drop: l.off[[2]cluster.NodeID{m.From, m.To}]}
}

// One of three nodes is down, and a follower restores a snapshot for many election timeouts. The follower answers
// heartbeats meanwhile, and no node starts an election.
func TestSlowRestoreCausesNoElection(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newSimNet().newCluster(t, 3)
		fresh := c.nodes[2]
		conf := c.servers()
		for _, n := range c.nodes[:2] {
			n.start(&conf)
		}
		leader := c.leader()
		for i := range 100 {
			leader.apply(fmt.Sprint(i))
		}
		if err := leader.r.Snapshot().Error(); err != nil {
			t.Fatal(err)
		}
		leader.apply("after")
		// The third node has the configuration and no other entry.
		const slow = 8
		fresh.fsm.restore = func() {
			for range slow * 10 {
				time.Sleep(testMax / 10)
				fresh.fsm.restored.Add(1)
			}
		}
		other := c.others(leader)[0]
		fresh.start(&conf)
		other.shutdownNow()
		term := leader.r.CurrentTerm()
		eventually(t, "the snapshot is installed", func() bool { return fresh.fsm.len() == 101 })
		if now := leader.r.CurrentTerm(); leader.r.State() != raft.Leader || now != term {
			t.Errorf("there was an election: term %d to %d, %v", term, now, leader.r.State())
		}
		leader.apply("still")
	})
}

// shutdownNow stops the node for the rest of the test.
func (n *node) shutdownNow() {
	n.shutdown()
	n.stop()
}

// A follower gets entries soon after its return from an outage of any length, also if the outage began during a
// snapshot. The library's back-off of up to 10 s does not grow meanwhile.
func TestReturningFollowerCatchesUpSoon(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		away     time.Duration
		snapshot bool
	}{
		"a while":       {away: 6 * time.Second},
		"long":          {away: 40 * time.Second},
		"in a snapshot": {away: 40 * time.Second, snapshot: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { followerReturns(t, tc.away, tc.snapshot) })
		})
	}
}

func followerReturns(t *testing.T, outage time.Duration, snapshot bool) {
	cut := &links{}
	c := newSimNet().newCluster(t, 3, cut.install)
	c.bootstrap()
	leader := c.leader()
	leader.apply("before")
	away := c.others(leader)[0]
	for _, n := range c.others(away) {
		cut.cut(away.id, n.id)
	}
	if snapshot {
		leader.apply("and")
		if err := leader.r.Snapshot().Error(); err != nil {
			t.Fatal(err)
		}
		leader.apply("after")
		<-cut.cutAtSnapshot()
	}
	for i := range 300 {
		leader.apply(fmt.Sprint(i))
		time.Sleep(outage / 300)
	}
	want := leader.fsm.len()
	cut.heal()
	healed := time.Now()
	eventually(t, "it has caught up", func() bool { return away.fsm.len() >= want })
	if d := time.Since(healed); d > time.Second {
		t.Errorf("it took %v", d)
	}
}

// A follower whose disk is full rejects entries. It gets them soon after it has space again.
func TestFullFollowerCatchesUpSoon(t *testing.T) {
	t.Parallel()
	for _, long := range []time.Duration{6 * time.Second, 40 * time.Second} {
		t.Run(long.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newSimNet().newCluster(t, 3)
				c.bootstrap()
				acquaint(t, c.nodes[0].end, c.nodes[1].end, c.nodes[2].end)
				leader := c.leader()
				full := c.others(leader)[0]
				space := func(no bool) {
					full.claims(func(c *cluster.Claim) { c.Disk.ReadOnly = no })
					full.readOnly.Store(no)
				}
				space(true)
				for i := range 300 {
					leader.apply(fmt.Sprint(i))
					time.Sleep(long / 300)
				}
				full.mu.Lock()
				tries := full.rejects["append/read_only"]
				full.mu.Unlock()
				if tries == 0 || tries > 3 {
					t.Errorf("it was tried %d times", tries)
				}
				space(false)
				freed := time.Now()
				eventually(t, "it has caught up", func() bool { return full.fsm.len() >= 300 })
				if d := time.Since(freed); d > testMin {
					t.Errorf("it took %v", d)
				}
			})
		})
	}
}

// A peer that returns in a newer term refuses every heartbeat. The leader still sends it the next entries, and so
// learns of that term.
func TestRefusingPeerIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newSimNet().newCluster(t, 3)
		c.bootstrap()
		leader := c.leader()
		peer := c.others(leader)[0]
		peer.shutdownNow()
		var held sync.WaitGroup
		held.Go(func() {
			leader.raft.awaitRetryable(errDropped, peer.id, raft.ServerAddress(peer.addr), leader.r.CurrentTerm())
		})
		start := time.Now()
		time.Sleep(time.Minute)
		term := leader.r.CurrentTerm()
		leader.raft.record(sentAppend{to: peer.id, incarnation: "i", term: term, at: time.Now()}, term+1, false)
		held.Wait()
		if d := time.Since(start); d < time.Minute || d > time.Minute+testMin {
			t.Errorf("it was waited for for %v", d)
		}
	})
}

// The leader stops waiting for an unreachable member when that member is removed.
func TestRemovedPeerIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newSimNet().newCluster(t, 3)
		c.bootstrap()
		leader := c.leader()
		c.others(leader)[0].shutdownNow()
		gone := c.others(leader)[0]
		leader.mu.Lock()
		for _, n := range c.nodes {
			leader.servers = append(leader.servers, cluster.Server{ID: n.id, Address: n.addr, Suffrage: cluster.Voter})
		}
		leader.mu.Unlock()
		var held sync.WaitGroup
		held.Go(func() {
			leader.raft.awaitRetryable(errDropped, gone.id, raft.ServerAddress(gone.addr), leader.r.CurrentTerm())
		})
		start := time.Now()
		time.Sleep(time.Minute)
		leader.mu.Lock()
		// A new list, as the transport may still look at the old one.
		leader.servers = slices.DeleteFunc(slices.Clone(leader.servers),
			func(s cluster.Server) bool { return s.ID == gone.id })
		leader.mu.Unlock()
		held.Wait()
		if d := time.Since(start); d < time.Minute || d > time.Minute+testMin {
			t.Errorf("it was waited for for %v", d)
		}
	})
}

// A node that restarts over the same transport's successor joins again.
func TestRestartOfANode(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newSimNet().newCluster(t, 3)
		c.bootstrap()
		leader := c.leader()
		leader.apply("a")
		f := c.others(leader)[0]
		// Only raft is restarted; the transport keeps running.
		f.shutdown()
		old := f.raft
		f.raft = f.tr.Raft()
		if f.raft == old {
			t.Fatal("the closed one was given again")
		}
		f.fsm.mu.Lock()
		f.fsm.data = nil
		f.fsm.mu.Unlock()
		f.start(nil)
		leader.apply("b")
		eventually(t, "it applies again", func() bool { return f.fsm.len() == 2 })
	})
}
