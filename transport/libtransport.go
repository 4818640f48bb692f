package transport

import (
	"net"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
)

// libTransport is an unmodified NetworkTransport of the library with its stream layer.
type libTransport struct {
	*raft.NetworkTransport
	stream *streamLayer
}

// streamLayer provides connections of one peer to the library.
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

// Accept waits for a connection from this peer.
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

// newLibTransport creates a library transport. It starts a goroutine, which ends when the transport is closed.
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
		MaxRPCsInFlight: 1, // no pipelining: one refused append would stop it permanently
		Timeout:         p.r.t.params.rpc,
	})
	return &libTransport{NetworkTransport: n, stream: s}
}

// offer hands a connection to the library. It returns false if the queue of accepted connections is full.
func (l *libTransport) offer(c net.Conn) bool {
	select {
	case l.stream.accepted <- c:
		return true
	default:
		return false
	}
}

// drain closes the connections that the library has not accepted.
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
