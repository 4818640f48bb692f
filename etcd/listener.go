package etcd

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc/credentials"
)

// handshakeTimeout limits the time until a connection has shown which protocol it speaks.
const handshakeTimeout = 10 * time.Second

const (
	maxAcceptDelay   = 100 * time.Millisecond // longest pause after a connection could not be accepted
	acceptLogTimeout = time.Minute            // at least between two warnings of that
)

// protocols are offered in this order: gRPC clients offer h2 alone, and curl and urllib3 both, which then get HTTP/1.1.
var protocols = []string{"http/1.1", "h2"}

// preface begins each HTTP/2 connection.
var preface = []byte("PRI * HTTP/2.0")

// splitter accepts the connections of one listener and gives each to one of two servers: HTTP/2, which is gRPC, and
// HTTP/1.1. With TLS the negotiated protocol decides, otherwise the first bytes. One slow connection delays no other.
type splitter struct {
	listener net.Listener
	secure   *tls.Config // nil: no TLS
	logger   hclog.Logger
	grpc     *branch
	http     *branch
	sniffing sync.WaitGroup
	pending  connSet // connections that have not shown their protocol
}

func newSplitter(l net.Listener, secure *tls.Config, logger hclog.Logger) *splitter {
	if secure != nil {
		secure = secure.Clone()
		secure.NextProtos = protocols
		if inner := secure.GetConfigForClient; inner != nil {
			secure.GetConfigForClient = func(h *tls.ClientHelloInfo) (*tls.Config, error) {
				c, err := inner(h)
				if err != nil || c == nil {
					return c, err
				}
				c = c.Clone()
				c.NextProtos = protocols
				return c, nil
			}
		}
	}
	return &splitter{
		listener: l, secure: secure, logger: logger, grpc: newBranch(l.Addr()), http: newBranch(l.Addr()),
	}
}

// run accepts until the listener is closed, which is its error. Then it closes both branches. It goes on after every
// other error, such as too many open files or no memory.
func (s *splitter) run() error {
	defer func() {
		s.pending.closeAll()
		s.sniffing.Wait()
		_ = s.grpc.Close()
		_ = s.http.Close()
	}()
	backoff, warned := time.Duration(0), time.Time{}
	for {
		c, err := s.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return fmt.Errorf("etcd listener: %w", err)
		}
		if err != nil {
			if warned.IsZero() || time.Since(warned) > acceptLogTimeout {
				warned = time.Now()
				s.logger.Warn("accepting a connection failed", "error", err)
			}
			backoff = min(max(2*backoff, 5*time.Millisecond), maxAcceptDelay)
			time.Sleep(backoff)
			continue
		}
		backoff = 0
		c = &liveConn{Conn: c}
		if !s.pending.add(c) {
			continue
		}
		s.sniffing.Go(func() {
			defer s.pending.remove(c)
			s.sniff(c)
		})
	}
}

// sniff finds out the protocol of a connection and hands it over.
func (s *splitter) sniff(c net.Conn) {
	_ = c.SetDeadline(time.Now().Add(handshakeTimeout)) // a failure shows in the next read
	to, conn, err := s.branchOf(c)
	if err == nil {
		_ = c.SetDeadline(time.Time{})
		s.pending.remove(c) // from now on the server closes it
		err = to.offer(conn)
	}
	if err != nil {
		_ = c.Close()
	}
}

func (s *splitter) branchOf(c net.Conn) (*branch, net.Conn, error) {
	if s.secure != nil {
		secured := tls.Server(c, s.secure)
		if err := secured.Handshake(); err != nil {
			return nil, nil, err
		}
		if secured.ConnectionState().NegotiatedProtocol == "h2" {
			return s.grpc, secured, nil
		}
		return s.http, secured, nil
	}
	begin := make([]byte, 0, len(preface))
	for len(begin) < cap(begin) && bytes.HasPrefix(preface, begin) {
		n, err := c.Read(begin[len(begin):cap(begin)])
		begin = begin[:len(begin)+n]
		if err != nil && n == 0 {
			return nil, nil, err
		}
	}
	replayed := &replayConn{Conn: c, begin: begin}
	if bytes.Equal(begin, preface) {
		return s.grpc, replayed, nil
	}
	return s.http, replayed, nil
}

// replayConn is a connection whose first bytes were read, and are read once more.
type replayConn struct {
	net.Conn
	begin []byte
}

// Read returns the first bytes of the connection, then the others.
func (c *replayConn) Read(p []byte) (int, error) {
	if len(c.begin) > 0 {
		n := copy(p, c.begin)
		c.begin = c.begin[n:]
		return n, nil
	}
	return c.Conn.Read(p)
}

// NetConn returns the connection whose first bytes were read.
func (c *replayConn) NetConn() net.Conn { return c.Conn }

// branch is the listener of one of the two servers.
type branch struct {
	addr   net.Addr
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func newBranch(addr net.Addr) *branch {
	return &branch{addr: addr, conns: make(chan net.Conn), closed: make(chan struct{})}
}

// offer hands a connection to the server; net.ErrClosed if it has stopped.
func (b *branch) offer(c net.Conn) error {
	select {
	case b.conns <- c:
		return nil
	case <-b.closed:
		return net.ErrClosed
	}
}

// Accept implements net.Listener.
func (b *branch) Accept() (net.Conn, error) {
	select {
	case c := <-b.conns:
		return c, nil
	case <-b.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (b *branch) Close() error {
	b.once.Do(func() { close(b.closed) })
	return nil
}

// Addr implements net.Listener.
func (b *branch) Addr() net.Addr { return b.addr }

// connSet is a set of connections that can be closed together.
type connSet struct {
	mu     sync.Mutex
	conns  map[net.Conn]struct{}
	closed bool
}

// add reports whether the set is open; otherwise it closes c.
func (s *connSet) add(c net.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		_ = c.Close()
		return false
	}
	if s.conns == nil {
		s.conns = map[net.Conn]struct{}{}
	}
	s.conns[c] = struct{}{}
	return true
}

func (s *connSet) remove(c net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
}

func (s *connSet) closeAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for c := range s.conns {
		_ = c.Close()
	}
}

// liveConn is a connection that knows whether its client has ended it.
type liveConn struct {
	net.Conn
	ended  atomic.Bool
	failed atomic.Bool // the network, or the client's machine, does not answer
}

// gone reports whether the client's machine has sent an end. It is final once the connection is closed.
func (c *liveConn) gone() bool { return c.ended.Load() && !c.failed.Load() }

// Read notes the end that the client's machine has sent, as when its process ends.
func (c *liveConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.note(err)
	return n, err
}

// Write notes it as well: the kernel reports it to the next call, and gRPC closes the connection before it reads again.
func (c *liveConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.note(err)
	return n, err
}

// note takes the error of a call. The kernel reports once that nothing answers, as ETIMEDOUT, to a reader or a writer.
// To the other one it reports the same as after an end that the client's machine has sent, and that one may be first.
func (c *liveConn) note(err error) {
	if err == nil {
		return
	}
	number := syscall.Errno(0)
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		c.ended.Store(true)
	case errors.As(err, &number):
		c.failed.Store(true)
	}
}

// liveConnOf returns the connection below those that this package puts around it, nil if there is none.
func liveConnOf(c net.Conn) *liveConn {
	for {
		switch at := c.(type) {
		case *liveConn:
			return at
		case interface{ NetConn() net.Conn }:
			c = at.NetConn()
		default:
			return nil
		}
	}
}

// newConn returns what is to be remembered of a connection.
func newConn(live *liveConn, of func(net.Conn) any) any {
	if live == nil {
		return of(nil)
	}
	return of(live.Conn)
}

// connInfo is what gRPC remembers of a connection.
type connInfo struct {
	live                *liveConn
	credentials.TLSInfo // if secure
	secure              bool
	conn                any // what Deps.NewConn returned
	wire                *wire
	remote              string // address of the client
}

// finishedTLS are the credentials of connections whose TLS handshake is over, or that have no TLS.
type finishedTLS struct {
	newConn  func(net.Conn) any
	newShare func(address string) Share
	opening  *connSet // connections from which gRPC waits for the first frame
}

var errServerOnly = errors.New("these credentials are for servers only")

// ServerHandshake implements credentials.TransportCredentials.
func (f finishedTLS) ServerHandshake(c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	if !f.opening.add(c) {
		return nil, nil, net.ErrClosed
	}
	live := liveConnOf(c)
	remote := c.RemoteAddr().String()
	w := newWire(c, f.newShare(remote))
	w.opening = f.opening
	info := &connInfo{conn: newConn(live, f.newConn), live: live, wire: w, remote: remote}
	if secured, ok := c.(*tls.Conn); ok {
		info.secure, info.State = true, secured.ConnectionState()
		info.CommonAuthInfo = credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity}
	}
	return w, info, nil
}

// ClientHandshake implements credentials.TransportCredentials.
func (finishedTLS) ClientHandshake(context.Context, string, net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errServerOnly
}

// Info implements credentials.TransportCredentials.
func (finishedTLS) Info() credentials.ProtocolInfo { return credentials.ProtocolInfo{} }

// Clone implements credentials.TransportCredentials.
func (c finishedTLS) Clone() credentials.TransportCredentials { return c }

// OverrideServerName implements credentials.TransportCredentials.
func (finishedTLS) OverrideServerName(string) error { return errServerOnly }
