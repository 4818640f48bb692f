package transport

import (
	"context"
	"fmt"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"northstar/cluster"
)

// simNet is a network of pipes, for nodes in virtual time.
type simNet struct {
	mu        sync.Mutex
	listeners map[string]*simListener
}

type simListener struct {
	addr   addr
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func newSimNet() *simNet { return &simNet{listeners: make(map[string]*simListener)} }

func (s *simNet) listen(a string) net.Listener {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := &simListener{addr: addr(a), conns: make(chan net.Conn), closed: make(chan struct{})}
	s.listeners[a] = l
	return l
}

func (l *simListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *simListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (l *simListener) Addr() net.Addr { return l.addr }

func (s *simNet) dial(ctx context.Context, a string) (net.Conn, error) {
	s.mu.Lock()
	l := s.listeners[a]
	s.mu.Unlock()
	if l == nil {
		return nil, fmt.Errorf("no route to %s", a)
	}
	here, there := net.Pipe()
	select {
	case l.conns <- there:
		return here, nil
	case <-l.closed:
		return nil, fmt.Errorf("connection to %s refused", a)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (s *simNet) newCluster(t *testing.T, n int, opts ...option) *testCluster {
	c := &testCluster{t: t}
	opts = append(opts, func(cfg *Config, _ *end) { cfg.Dial = s.dial })
	for i := range n {
		id := fmt.Sprintf("n%d", i+1)
		e := newEndOn(t, cluster.NodeID(id), s.listen(id+":1"), opts...)
		c.nodes = append(c.nodes, &node{
			end: e, log: raft.NewInmemStore(), snap: raft.NewInmemSnapshotStore(),
			fsm: &testFSM{},
		})
	}
	return c
}

// inBubble runs a test with n ends, n1 and so on, in virtual time.
func inBubble(t *testing.T, n int, f func(t *testing.T, ends []*end), opts ...option) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		var ends []*end
		for _, nd := range newSimNet().newCluster(t, n, opts...).nodes {
			ends = append(ends, nd.end)
		}
		f(t, ends)
	})
}

// Complete nodes run in virtual time, over connections that are not TCP. A leader is isolated, another node is elected,
// and the first one returns.
func TestClusterInVirtualTime(t *testing.T) {
	t.Parallel()
	for range 5 {
		synctest.Test(t, func(t *testing.T) {
			cut := &links{}
			c := newSimNet().newCluster(t, 3, cut.install)
			c.bootstrap()
			first := c.leader()
			first.apply("a")
			for _, n := range c.others(first) {
				cut.cut(first.id, n.id)
			}
			var second *node
			eventually(t, "another leader", func() bool {
				for _, n := range c.others(first) {
					if n.r.State() == raft.Leader {
						second = n
					}
				}
				return second != nil
			})
			if first.confirm(c.ids(), time.Second) {
				t.Error("the leader that is cut off confirms a read")
			}
			second.apply("b")
			cut.heal()
			for _, n := range c.nodes {
				eventually(t, "all converge", func() bool { return n.fsm.len() == 2 })
			}
		})
	}
}
