package consensus_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"go.uber.org/goleak"

	"northstar/chaos/ports"
	"northstar/chaos/testenv"
	"northstar/cluster"
	"northstar/consensus"
	"northstar/consensus/storage"
	"northstar/state"
	"northstar/transport"
)

func TestMain(m *testing.M) {
	testenv.Parallel(16) // most tests here wait for elections and timeouts, and hardly compute
	testenv.InMemory(maxTestData)
	// The library's own, of a transfer that got stuck (TestStuckTransfer): they hold nothing but memory.
	goleak.VerifyTestMain(m,
		goleak.IgnoreTopFunction("github.com/hashicorp/raft.(*Raft).leaderLoop.func2"),
		goleak.IgnoreTopFunction("github.com/hashicorp/raft.(*Raft).leadershipTransfer"))
}

// maxTestData bounds the bytes in the data directories of the clusters that run at one time.
const maxTestData = 8 << 30

// calm is the pace of a cluster in which only the test makes leadership move.
const calm = 5

var (
	// Generous: the machine that runs tests is busy. But a node whose disk hangs ends after 20 s.
	timeoutMin  = min(testenv.Slowdown()*slowdown, 4) * time.Second
	timeoutMax  = 2 * timeoutMin
	testTimeout = testenv.Slowdown() * 90 * time.Second // how long a condition may take on a busy machine

	// noElection is how long a test watches that no election happens: each node's timer expires at least three times.
	noElection = 3 * timeoutMax
)

// testCluster is a cluster of whole nodes in this process, on loopback sockets and real data directories.
type testCluster struct {
	t     *testing.T
	first []consensus.FirstMember
	nodes map[cluster.NodeID]*testNode
	tune  func(*consensus.Config)
	pace  time.Duration // of its election timeouts: how many times timeoutMin and timeoutMax they are
	mu    sync.Mutex    // guards writes to nodes, which the transports read
}

func (c *testCluster) isCut(id cluster.NodeID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.nodes[id]
	return n != nil && n.cut.Load()
}

// raftDecides leaves every decision to Raft.
type raftDecides struct{}

func (raftDecides) VetoPreVote(cluster.NodeID, time.Time) string                     { return "" }
func (raftDecides) MayIgnoreLeader(cluster.NodeID, uint64, time.Time) bool           { return false }
func (raftDecides) ApproveTimeoutNow(context.Context, cluster.NodeID, uint64) string { return "" }
func (raftDecides) MayStartElection(cluster.ElectionCause) bool                      { return true }

func (raftDecides) VoteObstacle() (kind, why string)       { return "", "" }
func (raftDecides) VoteReceived(cluster.VoteResponse)      {}
func (raftDecides) VoteAnswered(cluster.VoteGiven, string) {}
func (raftDecides) TermRaised(uint64)                      {}

// deferredNode is a node that the transport gets before there is one. Nothing vetoes a vote, and Raft's timers elect.
type deferredNode struct {
	raftDecides
	*consensus.Node
	n *testNode
}

// LocalPeer returns the node's own description, with the record that a test makes it claim.
func (d *deferredNode) LocalPeer() cluster.Peer {
	p := d.Node.LocalPeer()
	p.RecordedIndex = max(p.RecordedIndex, d.n.claimed.Load())
	return p
}

func (d *deferredNode) VoteObstacle() (kind, why string) { return d.Node.VoteObstacle() }

func (d *deferredNode) MayStartElection(by cluster.ElectionCause) bool {
	return !d.GenerationSuperseded() &&
		(by != cluster.CauseLeaderFailed || d.Node.MayStartElection() && !d.n.idle.Load())
}

// ReplicationPaused reports whether its disk stalls or it steps down, as for a whole node.
func (d *deferredNode) ReplicationPaused() bool {
	return d.DiskHangs(true) && !d.n.loud.Load() || d.StepDownPending()
}

func (*deferredNode) OnHeard(cluster.NodeID, *cluster.Claim)      {}
func (*deferredNode) OnConnectionLost(cluster.ConnectionLoss)     {}
func (*deferredNode) Rejected(string, string)                     {}
func (*deferredNode) InstallRepeated(cluster.NodeID, uint64, int) {}

// testNode is one node over its restarts.
type testNode struct {
	t     *testing.T
	id    cluster.NodeID
	dir   string
	addr  string
	join  bool
	first []consensus.FirstMember
	tune  func(*consensus.Config)

	claimed    atomic.Uint64 // RecordedIndex of its hellos, if it is greater than the true one
	heldProbes chan struct{} // not nil: probes are answered once it is closed
	lostProbes bool          // probes reach no node

	cluster   *testCluster
	cut       atomic.Bool                                  // from everybody, in both directions
	slowTo    atomic.Value                                 // cluster.NodeID: appends to it take too long
	hangNext  atomic.Value                                 // cluster.NodeID: the next append to it hangs
	faults    atomic.Pointer[func(transport.Message) bool] // messages to drop
	overLive  atomic.Bool                                  // its elections count as over a live leader
	idle      atomic.Bool                                  // it may start no election by itself
	loud      atomic.Bool                                  // its appends leave it though its disk is stalled
	mayWrite  atomic.Pointer[func() error]                 // nil: it may
	applied   atomic.Pointer[func()]                       // called after each batch of entries; nil: nothing
	peerAck   atomic.Pointer[func(cluster.NodeID)]         // called whenever it asks what a peer has acknowledged
	elections atomic.Int64
	installs  atomic.Int64
	asides    atomic.Int64 // times that it asked to be restarted without its data
	snapshots atomic.Int64 // that it took itself

	fresh      bool // its data directory was empty when it started
	raftStarts atomic.Int64
	caughtUp   atomic.Pointer[func(consensus.StartTimes)] // called when it has caught up after a start; nil: nothing

	*consensus.Node // of the current run
	tr              *transport.Transport
	cancel          context.CancelFunc
	done            chan error
	tasks           []func(ctx context.Context, term uint64)
}

// Outgoing makes testNode the fault hook of its transport.
func (n *testNode) Outgoing(m transport.Message) transport.Fault {
	if n.cut.Load() || n.cluster.isCut(m.To) {
		return transport.Fault{Drop: true}
	}
	if drop := n.faults.Load(); drop != nil && (*drop)(m) {
		return transport.Fault{Drop: true}
	}
	if slow, _ := n.slowTo.Load().(cluster.NodeID); slow == m.To && m.Kind == "append" {
		return transport.Fault{Delay: 4 * timeoutMax}
	}
	if m.Kind == "append" && n.hangNext.CompareAndSwap(m.To, cluster.NodeID("")) {
		return transport.Fault{Delay: 2 * testTimeout}
	}
	return transport.Fault{}
}

// drop makes the node lose each message that it sends and for which which returns true. nil ends that.
func (n *testNode) drop(which func(transport.Message) bool) {
	if which == nil {
		n.faults.Store(nil)
		return
	}
	n.faults.Store(&which)
}

// newCluster makes nodes n1 … of which none runs yet.
func newCluster(t *testing.T, size int) *testCluster {
	t.Helper()
	c := &testCluster{t: t, nodes: map[cluster.NodeID]*testNode{}, pace: 1}
	for i := range size {
		n := c.addNode(cluster.NodeID(fmt.Sprintf("n%d", i+1)))
		c.first = append(c.first, consensus.FirstMember{ID: n.id, RaftAddress: n.addr, HTTPAddress: "http-" +
			string(n.id)})
	}
	for _, n := range c.nodes {
		n.first = c.first
	}
	return c
}

func freeAddress(t *testing.T) string {
	t.Helper()
	addrs, err := ports.Reserve(1)
	if err != nil {
		t.Fatal(err)
	}
	return addrs[0]
}

func (c *testCluster) addNode(id cluster.NodeID) *testNode {
	c.t.Helper()
	addr := freeAddress(c.t)
	n := &testNode{t: c.t, cluster: c, id: id, dir: c.t.TempDir(), addr: addr, tune: func(cfg *consensus.Config) {
		if c.tune != nil {
			c.tune(cfg)
		}
	}}
	c.mu.Lock()
	c.nodes[id] = n
	c.mu.Unlock()
	c.t.Cleanup(n.stop)
	return n
}

// startCluster starts all of them and waits for a leader that is ready.
func startCluster(t *testing.T, size int) (*testCluster, *testNode) {
	t.Helper()
	return startClusterAt(t, 1, size)
}

// startCalmCluster is startCluster with long election timeouts, for a test that does not wait for one: leadership does
// not move when the machine is busy.
func startCalmCluster(t *testing.T, size int) (*testCluster, *testNode) {
	t.Helper()
	return startClusterAt(t, calm, size)
}

func startClusterAt(t *testing.T, pace time.Duration, size int) (*testCluster, *testNode) {
	t.Helper()
	c := newCluster(t, size)
	c.pace = pace
	for _, n := range c.nodes {
		n.start()
	}
	return c, c.elect()
}

// elect has the running nodes elect a leader immediately, and not after an election timeout. It waits until the leader
// is ready.
func (c *testCluster) elect() *testNode {
	c.t.Helper()
	c.startElection()
	return c.leader()
}

// startElection makes one of the running nodes start an election as soon as all of them take part.
func (c *testCluster) startElection() {
	c.t.Helper()
	running := c.others(nil)
	if len(running) == len(c.first) && !slices.ContainsFunc(running, func(n *testNode) bool { return !n.fresh }) {
		return // they start the first one themselves
	}
	candidate := running[mathrand.IntN(len(running))]
	led := func(n *testNode) bool { return n.Status().LeaderID != "" }
	eventually(c.t, "all take part in elections", func() bool {
		return slices.ContainsFunc(running, led) || !slices.ContainsFunc(running, func(n *testNode) bool {
			return len(n.Status().Servers) == 0 || !n.MayVote() || !n.MayStartElection()
		})
	})
	if !slices.ContainsFunc(running, led) { // otherwise, and when it is not elected, one is by the nodes' own timers
		term := candidate.Status().Term
		_, _ = candidate.tr.Raft().StartElection(within(c.t, testTimeout), term, cluster.CauseOperator)
	}
}

func testLogger() hclog.Logger {
	if os.Getenv("NORTHSTAR_TEST_LOG") == "" {
		return hclog.NewNullLogger()
	}
	return hclog.New(&hclog.LoggerOptions{Level: hclog.Debug, Output: os.Stderr})
}

// start runs the node on its data directory.
func (n *testNode) start() {
	n.t.Helper()
	if err := n.tryStart(); err != nil {
		n.t.Fatalf("start %s: %v", n.id, err)
	}
}

func (n *testNode) tryStart() error {
	n.t.Helper()
	logger := testLogger().Named(string(n.id))
	before, err := os.ReadDir(n.dir)
	if err != nil {
		return err
	}
	n.fresh = len(before) == 0
	store, err := storage.Open(storage.Options{Dir: n.dir, Logger: logger})
	if err != nil {
		return err
	}
	return n.startOn(store)
}

// startOn runs the node on a storage.
func (n *testNode) startOn(store storage.Storage) error {
	n.t.Helper()
	logger := testLogger().Named(string(n.id))
	cfg := consensus.Config{
		Self: cluster.Peer{
			Identity: cluster.Identity{NodeID: n.id}, BootID: rand.Text(), RaftAddress: n.addr,
			HTTPAddress: "http-" + string(n.id), Version: "test", Priority: 100, Eligible: true,
		},
		ClusterName: "test", InitialCluster: n.first, Join: n.join,
		TimeoutMin: n.cluster.pace * timeoutMin, TimeoutMax: n.cluster.pace * timeoutMax, AutoFailover: true,
		SnapshotThreshold: 8192, SnapshotInterval: 120 * time.Second, TrailingLogs: 10240,
	}
	n.tune(&cfg)
	var node *consensus.Node
	ln, err := listen(n.addr)
	if err != nil {
		return errors.Join(err, store.Close())
	}
	members := &deferredNode{n: n}
	tr, err := transport.New(transport.Config{
		Listener: ln, Advertise: n.addr, ClusterName: "test", Logger: logger,
		TimeoutMin: cfg.TimeoutMin, TimeoutMax: cfg.TimeoutMax,
		Membership: members, Elections: members, Replication: members, Claims: members, Events: members,
		Lease: cfg.Lease, Faults: n,
		Dial: func(ctx context.Context, addr string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", addr)
		},
	})
	if err != nil {
		return errors.Join(err, store.Close(), ln.Close())
	}
	start := time.Now()
	deps := consensus.Deps{
		Storage: store, Logger: logger, Entropy: rand.Reader,
		LeaseClock: func() time.Duration { return time.Since(start) },
		Transport:  func() consensus.Transport { return tr.Raft() },
		Bind:       func(c consensus.RaftCallbacks) { n.raftStarts.Add(1); tr.Raft().Bind(c) },
		Acks:       tr.Acks(),
		PeerAck: func(id cluster.NodeID) cluster.PeerAck {
			if called := n.peerAck.Load(); called != nil {
				(*called)(id)
			}
			return tr.Acks().Peer(id)
		},
		ResetPeers: tr.ResetPeers,
		Facts: func(uint64) consensus.ElectionFacts {
			return consensus.ElectionFacts{OverLiveLeader: n.overLive.Load()}
		},
		Probe: func(ctx context.Context, addr string) (cluster.Peer, cluster.Admission, error) {
			if n.heldProbes != nil {
				<-n.heldProbes
			}
			if n.lostProbes {
				<-ctx.Done()
				return cluster.Peer{}, cluster.Admission{}, ctx.Err()
			}
			return tr.Probe(ctx, addr)
		},
		Poll: tr.Poll,
		MayWrite: func() error {
			if may := n.mayWrite.Load(); may != nil {
				return (*may)()
			}
			return nil
		},
		Hooks: consensus.Hooks{
			Election: func(consensus.Election) { n.elections.Add(1) },
			Applied: func(time.Duration) {
				if applied := n.applied.Load(); applied != nil {
					(*applied)()
				}
			},
			SetAside: func() { n.asides.Add(1) },
			CaughtUp: func(times consensus.StartTimes) {
				if caughtUp := n.caughtUp.Load(); caughtUp != nil {
					(*caughtUp)(times)
				}
			},
			Snapshot: func(restored bool) {
				if restored {
					if node.Restoring() != 0 {
						n.cluster.t.Error("the state is replaced, and a restore goes on")
					}
					n.installs.Add(1)
				} else {
					n.snapshots.Add(1)
				}
			},
		},
	}
	node, err = consensus.New(cfg, deps)
	members.Node = node
	if err != nil {
		return errors.Join(err, ln.Close())
	}
	for _, task := range n.tasks {
		node.AddLeaderTask(task)
	}
	n.run(node, tr)
	return nil
}

func (n *testNode) run(node *consensus.Node, tr *transport.Transport) {
	ctx, cancel := context.WithCancel(context.Background())
	n.Node, n.tr, n.cancel, n.done = node, tr, cancel, make(chan error, 1)
	go func() {
		peers, hangUp := context.WithCancel(context.Background()) // the transport ends last, as in a real node
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := tr.Run(peers); err != nil {
				n.t.Errorf("transport of %s: %v", n.id, err)
			}
		})
		err := node.Run(ctx)
		hangUp()
		wg.Wait()
		n.done <- err
	}()
}

// stop ends the node; it must end without an error.
func (n *testNode) stop() {
	n.t.Helper()
	if err := n.wait(true); err != nil {
		n.t.Errorf("node %s ended with: %v", n.id, err)
	}
}

// wait waits until the node has ended. With end it stops the node first.
func (n *testNode) wait(end bool) error {
	n.t.Helper()
	if n.cancel == nil {
		return nil
	}
	if end {
		n.cancel()
	}
	select {
	case err := <-n.done:
		n.cancel()
		n.cancel = nil
		return err
	case <-time.After(testTimeout):
		n.t.Fatalf("node %s does not end", n.id)
		return nil
	}
}

func (n *testNode) restart() {
	n.t.Helper()
	n.stop()
	n.start()
}

// wipe replaces the data directory by an empty one.
func (n *testNode) wipe() { n.dir = n.t.TempDir() }

func listen(addr string) (net.Listener, error) {
	deadline := time.Now().Add(testTimeout)
	for {
		ln, err := net.Listen("tcp", addr)
		if err == nil || time.Now().After(deadline) {
			return ln, err
		}
		time.Sleep(time.Millisecond) // the old run's port is being given back
	}
}

// eventually waits for a condition.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(testTimeout)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
		time.Sleep(slowdown * 2 * time.Millisecond)
	}
}

// whileLeading repeats a step about one leader until leadership did not move in it, as it may on a busy machine. The
// step then must return nil. A step that makes leadership move itself never succeeds.
func (c *testCluster) whileLeading(what string, step func(leader *testNode) error) (leader *testNode) {
	c.t.Helper()
	eventually(c.t, what, func() bool {
		leader = c.leader()
		term := leader.Status().Term
		problem := step(leader)
		lost := cluster.IsCode(problem, cluster.CodeNoLeader) || cluster.IsCode(problem, cluster.CodeOutcomeUnknown)
		if st := leader.Status(); st.Role != cluster.Leader || st.Term != term || lost { // the role is sampled
			c.t.Logf("%s led in term %d, and is a %s of term %d: %v", leader.id, term, st.Role, st.Term, problem)
			return false
		}
		if problem != nil {
			c.t.Fatalf("%s: %v", what, problem)
		}
		return true
	})
	return leader
}

// transferTo makes a node lead. A transfer that was given up is refused for the rest of the term, so another node leads
// the next one.
func (c *testCluster) transferTo(target *testNode) {
	c.t.Helper()
	eventually(c.t, string(target.id)+" leads", func() bool {
		l := c.leader()
		if l == target {
			return true
		}
		err := l.TransferTo(within(c.t, testTimeout), to(target.id))
		if err != nil && strings.Contains(err.Error(), "no second one in this term") {
			for _, other := range c.others(l) {
				if other != target && healthy(l, other.id) {
					c.t.Logf("%v; to another node: %v", err, l.TransferTo(within(c.t, testTimeout), to(other.id)))
					break
				}
			}
		}
		return c.leader() == target
	})
}

// leader waits until exactly one running node leads and is ready.
func (c *testCluster) leader() *testNode {
	c.t.Helper()
	var leader *testNode
	eventually(c.t, "a leader that is ready", func() bool {
		leader = nil
		for _, n := range c.nodes {
			if n.cancel != nil && !n.cut.Load() && n.Status().Role == cluster.Leader &&
				!n.Status().LeaderSince.IsZero() {
				leader = n
			}
		}
		return leader != nil
	})
	return leader
}

// leaderThatCommitsNothing restarts all nodes and drops all their appends, until the caller ends that. It makes them
// elect a leader and returns it.
func (c *testCluster) leaderThatCommitsNothing() (leader *testNode) {
	c.t.Helper()
	for _, n := range c.nodes {
		n.drop(func(m transport.Message) bool { return m.Kind == "append" })
		n.stop()
	}
	for _, n := range c.nodes {
		n.start()
	}
	c.startElection()
	eventually(c.t, "one says that it leads", func() bool {
		for _, n := range c.nodes {
			if n.Status().Role == cluster.Leader {
				leader = n
			}
		}
		return leader != nil
	})
	return leader
}

// others returns the running nodes without than.
func (c *testCluster) others(than *testNode) []*testNode {
	var all []*testNode
	for _, m := range c.first {
		if n := c.nodes[m.ID]; n != than && n.cancel != nil {
			all = append(all, n)
		}
	}
	return all
}

func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

func put(key, value string) state.Command {
	return state.Command{Kind: state.KindPut, Put: &state.Put{Key: key, Value: []byte(value)}}
}

func (n *testNode) put(key, value string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*timeoutMin)
	defer cancel()
	r, err := n.Propose(ctx, put(key, value))
	if err == nil && r.Err != nil {
		return r.Err
	}
	return err
}

// write writes a key on the leader, as a client would.
func (c *testCluster) write(key, value string) {
	c.t.Helper()
	eventually(c.t, "a write of "+key, func() bool { return c.leader().put(key, value) == nil })
}

// onLeader calls the leader until the call succeeds, and returns that leader. Leadership may move for no reason of the
// test when the machine is busy.
func (c *testCluster) onLeader(what string, call func(leader *testNode) error) (leader *testNode) {
	c.t.Helper()
	eventually(c.t, what, func() bool { leader = c.leader(); return call(leader) == nil })
	return leader
}

// remove removes a member with a call to the leader, and returns that leader.
func (c *testCluster) remove(id cluster.NodeID) *testNode {
	c.t.Helper()
	return c.onLeader("the removal of "+string(id), func(n *testNode) error {
		err := n.RemoveMember(within(c.t, testTimeout), id)
		if n.Record(id).Removed { // also by a call whose outcome was not known
			return nil
		}
		return err
	})
}

func (n *testNode) has(key, value string) bool {
	item, ok := n.View().Get(key)
	return ok && string(item.Value) == value
}

func (c *testCluster) everywhere(key, value string) {
	c.t.Helper()
	for _, n := range c.nodes {
		if n.cancel != nil {
			eventually(c.t, fmt.Sprintf("%s on %s", key, n.id), func() bool { return n.has(key, value) })
		}
	}
}

func wantCode(t *testing.T, err error, code cluster.Code) {
	t.Helper()
	if !cluster.IsCode(err, code) {
		t.Fatalf("got %v, want %s", err, code.Name())
	}
}
