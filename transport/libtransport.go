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
	p        *peer
	accepted chan net.Conn
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
func (s *streamLayer) Addr() net.Addr { return addr(s.p.r.t.cfg.Advertise) }

// Dial opens a connection to this peer.
func (s *streamLayer) Dial(target raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	return s.p.dial(string(target), timeout)
}

// newLibTransport creates a library transport. It starts a goroutine, which ends when the transport is closed.
func (p *peer) newLibTransport() *libTransport {
	s := &streamLayer{p: p, accepted: make(chan net.Conn, maxPeerConns), closed: make(chan struct{})}
	n := raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
		Logger:          hclog.NewNullLogger(), // the connections and the receive loop log instead
		Stream:          s,
		MaxPool:         maxPool,
		MaxRPCsInFlight: 1, // no pipelining: one refused append would stop it permanently
		Timeout:         p.r.t.params.rpc,
	})
	return &libTransport{NetworkTransport: n, stream: s}
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
