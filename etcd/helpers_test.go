package etcd

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.uber.org/goleak"
	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"northstar/cluster"
	"northstar/state"
)

func TestMain(m *testing.M) {
	// After a body that it has not read, net/http keeps the connection for 500 ms. goleak waits for 431 ms.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("net/http.(*conn).closeWriteAndWait"))
}

// fakeNode is a cluster of one node, with the real state and no log.
type fakeNode struct {
	state *state.State

	mu      sync.Mutex
	leader  cluster.NodeID
	changed chan struct{}
	behind  error            // of CheckCaughtUp
	full    []cluster.NodeID // of Full
	peers   []cluster.Server
	moves   int // of MoveLeader

	answers, largest atomic.Int64 // taken by TakeAnswer
	share, watches   fakeShare
	returning        *semaphore.Weighted // of AwaitPlace
}

const maxReturning = 4

// fakeShare is a share with limits, 0: none.
type fakeShare struct {
	mu                 sync.Mutex
	calls, bytes       int // taken
	maxCalls, maxBytes int
}

func (f *fakeShare) Take(calls, bytes int) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.maxCalls > 0 && f.calls+calls > f.maxCalls || f.maxBytes > 0 && f.bytes+bytes > f.maxBytes {
		return cluster.Errorf(cluster.CodeBusy, "limit reached")
	}
	f.calls, f.bytes = f.calls+calls, f.bytes+bytes
	return nil
}

func (f *fakeShare) Give(calls, bytes int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls, f.bytes = f.calls-calls, f.bytes-bytes
}

func (f *fakeShare) set(maxCalls, maxBytes int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.maxCalls, f.maxBytes = maxCalls, maxBytes
}

func (f *fakeShare) taken() (calls, bytes int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls, f.bytes
}

func newFakeNode(t testing.TB) *fakeNode {
	t.Helper()
	n := &fakeNode{
		state: state.New(state.Options{}), leader: "n1", changed: make(chan struct{}),
		returning: semaphore.NewWeighted(maxReturning),
	}
	n.apply(t, state.Command{Kind: state.KindClusterInit, ClusterInit: &state.ClusterInit{
		ClusterID: "c-1", Generation: cluster.Generation{Number: 1}, AutoFailover: true,
	}}, state.Command{Kind: state.KindFirstRevision, FirstRevision: &state.FirstRevision{}})
	return n
}

func (n *fakeNode) apply(t testing.TB, cmds ...state.Command) []state.Result {
	t.Helper()
	results := n.propose(cmds...)
	for _, r := range results {
		if r.Err != nil {
			t.Fatal(r.Err)
		}
	}
	return results
}

func (n *fakeNode) propose(cmds ...state.Command) []state.Result {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.state.Apply(n.state.View().AppliedIndex()+1, 1, cmds)
}

func put(key, value string) state.Command {
	return state.Command{Kind: state.KindPut, Put: &state.Put{Key: key, Value: []byte(value)}}
}

func del(key string) state.Command {
	return state.Command{Kind: state.KindDelete, Delete: &state.Delete{Key: key}}
}

func (n *fakeNode) View() *state.View { return n.state.View() }
func (n *fakeNode) Feed() *state.Feed { return n.state.Feed() }

func (n *fakeNode) Status() cluster.NodeStatus {
	n.mu.Lock()
	defer n.mu.Unlock()
	return cluster.NodeStatus{
		Identity: cluster.Identity{NodeID: "n1", ClusterID: "c-1"}, Term: 3, LeaderID: n.leader,
		Servers:  append([]cluster.Server{{ID: "n1", Address: "127.0.0.1:1", Suffrage: cluster.Voter}}, n.peers...),
		CaughtUp: n.behind == nil,
	}
}

func (n *fakeNode) Term() uint64 { return 3 }

func (n *fakeNode) LeaderChanged() <-chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.changed
}

// setLeader changes the leader that the node knows.
func (n *fakeNode) setLeader(id cluster.NodeID) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.leader = id
	close(n.changed)
	n.changed = make(chan struct{})
}

func (n *fakeNode) CheckCaughtUp() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.behind
}

func (n *fakeNode) Full() []cluster.NodeID {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.full
}

func (n *fakeNode) setFull(ids ...cluster.NodeID) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.full = ids
}

// fakeCall is a call that is always allowed.
type fakeCall struct {
	ctx  context.Context
	node *fakeNode
}

func (c fakeCall) Context() context.Context { return c.ctx }
func (c fakeCall) Leave(error)              {}

func (c fakeCall) ReadIndex(context.Context) error {
	if c.node.Status().LeaderID == "" {
		return cluster.Errorf(cluster.CodeNoLeader, "no leader")
	}
	return nil
}

func (c fakeCall) Propose(_ context.Context, cmd state.Command) (state.Result, error) {
	r := c.node.propose(cmd)[0]
	if r.Err != nil {
		return r, r.Err
	}
	return r, nil
}

func (c fakeCall) RenewLeases(_ context.Context, leases []*state.Session) (left []time.Duration, err error) {
	for _, lease := range leases {
		s, ok := c.node.View().Session(lease.ID)
		if !ok {
			s = &state.Session{}
		}
		left = append(left, s.TTL)
	}
	return left, nil
}

func (c fakeCall) Remaining(_ context.Context, id string) (time.Duration, bool, error) {
	s, ok := c.node.View().Session(id)
	if !ok {
		return 0, false, nil
	}
	return s.TTL, true, nil
}

func (c fakeCall) HoldLease(context.Context, string, time.Duration) (func(bool), error) {
	return func(bool) {}, nil
}

func (c fakeCall) TakeAnswer(size int) (func(), error) {
	n, node := int64(size), c.node // not the call, see Call
	if node.answers.Add(n) > maxAnswer {
		node.answers.Add(-n)
		return nil, cluster.Errorf(cluster.CodeBusy, "limit reached")
	}
	node.largest.Store(max(node.largest.Load(), n))
	return func() { node.answers.Add(-n) }, nil
}

func (c fakeCall) AwaitPlace(ctx context.Context) (func(), error) {
	if c.node.returning.Acquire(ctx, 1) != nil {
		return nil, context.Cause(ctx)
	}
	return func() { c.node.returning.Release(1) }, nil
}

func (c fakeCall) Watches() Share { return &c.node.watches }

func (c fakeCall) MoveLeader(_ context.Context, target cluster.NodeID) error {
	c.node.setLeader(target)
	c.node.mu.Lock()
	defer c.node.mu.Unlock()
	c.node.moves++
	return nil
}

// testDeps returns the dependencies of a server without authentication.
func testDeps(n *fakeNode) Deps {
	return Deps{
		Node: n,
		Begin: func(ctx context.Context, _ *http.Request, _ any, _ CallKind) (Call, error) {
			return fakeCall{ctx, n}, nil
		},
		NewConn: func(net.Conn) any { return nil }, NewShare: func(string) Share { return &n.share },
		AuthEnabled: func() bool { return false },
		CheckToken: func(string, string, string) error {
			return cluster.Errorf(cluster.CodeUnauthenticated, "unknown")
		},
		ClientURL:  func(cluster.NodeID) string { return "http://127.0.0.1:2379" },
		TimeoutMax: 100 * time.Millisecond, LeaseGrace: 500 * time.Millisecond, Entropy: rand.Reader,
		Logger: hclog.NewNullLogger(),
	}
}

// serve serves until the test ends, and returns the server and its address.
func serve(t *testing.T, d Deps, secure *tls.Config) (*Server, string) {
	t.Helper()
	s := New(d)
	return s, start(t, s, secure)
}

// start has a server serve until the test ends, and returns its address.
func start(t *testing.T, s *Server, secure *tls.Config) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	startOn(t, s, l, secure)
	return l.Addr().String()
}

// startOn has a server serve a listener until the test ends.
func startOn(t *testing.T, s *Server, l net.Listener, secure *tls.Config) {
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, l, secure) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil && !errors.Is(err, net.ErrClosed) {
			t.Errorf("Serve: %v", err)
		}
	})
}

// dial returns a connection without TLS.
func dial(t *testing.T, addr string, opts ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	c, err := grpc.NewClient(addr, append(opts, grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// within returns a context that ends a test which hangs.
func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

var _ pb.KVServer = (*kvService)(nil)
