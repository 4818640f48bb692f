package transport

import (
	"net"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
)

// libTransport is one unmodified NetworkTransport of the library with its stream.
type libTransport struct {
	*raft.NetworkTransport
	stream *streamLayer
}

// streamLayer is the library's view of where connections come from.
type streamLayer struct {
	addr     addr
	accepted chan net.Conn
	dial     func(target string, timeout time.Duration) (net.Conn, error)
	closed   chan struct{}
	once     sync.Once
}

type addr string

func (addr) Network() string  { return "tcp" }
func (a addr) String() string { return string(a) }

// Accept waits for a connection of this peer.
func (s *streamLayer) Accept() (net.Conn, error) {
	select {
	case c := <-s.accepted:
		return c, nil
	case <-s.closed:
		return nil, net.ErrClosed
	}
}

// Close ends Accept.
func (s *streamLayer) Close() error {
	s.once.Do(func() { close(s.closed) })
	return nil
}

// Addr is this node's advertised address.
func (s *streamLayer) Addr() net.Addr { return s.addr }

// Dial opens a connection to this peer.
func (s *streamLayer) Dial(target raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	return s.dial(string(target), timeout)
}

// newLibTransport makes one of the library's transports. It starts a goroutine, which
// ends when it is closed.
func (p *peer) newLibTransport() *libTransport {
	s := &streamLayer{
		addr:     addr(p.r.t.cfg.Advertise),
		accepted: make(chan net.Conn, maxPeerConns),
		dial:     p.dial,
		closed:   make(chan struct{}),
	}
	n := raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
		Logger:          hclog.NewNullLogger(), // the connections and the receive loop log instead
		Stream:          s,
		MaxPool:         maxPool,
		MaxRPCsInFlight: 1, // no pipelining: a refusal wedges it for good
		Timeout:         p.r.t.params.rpc,
	})
	return &libTransport{NetworkTransport: n, stream: s}
}

// offer hands a connection to the library. It reports false when as many as may be
// open are not accepted yet.
func (l *libTransport) offer(c net.Conn) bool {
	select {
	case l.stream.accepted <- c:
		return true
	default:
		return false
	}
}

// drain closes connections that the library has not accepted.
func (l *libTransport) drain() {
	for {
		select {
		case c := <-l.stream.accepted:
			_ = c.Close()
		default:
			return
		}
	}
}
