package transport

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 3 * time.Second, Interval: time.Second, Count: 3}

// closeNow closes a connection without TLS shutdown, which may block. A cut-off Raft message is noticed anyway.
func closeNow(conn net.Conn) error {
	if s, ok := conn.(*tls.Conn); ok {
		return s.NetConn().Close()
	}
	return conn.Close()
}

// readDeadline limits how long a connection waits for bytes in the middle of a message. It waits for step, and repeats
// that up to limit (0: without limit) while the peer is known to be alive by other means.
type readDeadline struct {
	step, limit  time.Duration
	lastReceived func() time.Time // the peer's last sign of life
}

// read reads from conn with this deadline.
func (w readDeadline) read(conn net.Conn, p []byte) (int, error) {
	start := time.Now()
	for {
		if err := conn.SetReadDeadline(time.Now().Add(w.step)); err != nil {
			return 0, err
		}
		n, err := conn.Read(p)
		if n > 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
			return n, err
		}
		now := time.Now()
		if w.limit > 0 && now.Sub(start) >= w.limit {
			return 0, err
		}
		if w.lastReceived == nil || now.Sub(w.lastReceived()) >= w.step {
			return 0, err
		}
	}
}

// inConn is an accepted connection after its hello, as the library's server side reads it. One goroutine reads and
// writes it; retire is safe for concurrent use.
type inConn struct {
	net.Conn
	readDeadline readDeadline
	budget       *atomic.Int64 // bytes of unfinished messages of this peer
	limit        int64         // of budget
	reject       func(reason string)
	released     func() // called once, when the library closes it
	trust        *peerTrust

	scan  scanner
	held  int64 // this connection's share of budget
	armed bool  // a read deadline is set
	final bool  // the response to a snapshot was written: nothing may follow

	state atomic.Uint32 // connBusy, connRetired
	once  sync.Once

	opened   time.Time    // when the library got it
	answered atomic.Int64 // when the last response was about to be sent, in ns after opened; 0: there was none
}

const (
	connBusy    uint32 = 1 << iota // a message has begun and is unanswered
	connRetired                    // to be closed after the response
)

// Read returns checked bytes, and io.EOF after the response to a snapshot: the connection is not used again. A message
// of a node whose authority is not trusted any more ends the connection.
func (c *inConn) Read(p []byte) (int, error) {
	if c.final {
		return 0, io.EOF
	}
	begins := !c.scan.midMessage()
	n, err := c.readSome(p)
	if n == 0 {
		return n, err
	}
	if begins && !c.trust.hasAuthority() {
		c.reject("tls")
		_ = closeNow(c.Conn)
		return 0, io.EOF
	}
	c.state.Or(connBusy)
	if !c.scan.data {
		c.held += int64(n)
		if c.budget.Add(int64(n)) > c.limit {
			return 0, c.malformed(fmt.Errorf("%w: all of this peer take over %d bytes", errMalformed, c.limit))
		}
	}
	if bad := c.scan.feed(p[:n]); bad != nil {
		return 0, c.malformed(bad)
	}
	return n, err
}

func (c *inConn) readSome(p []byte) (int, error) {
	if c.scan.midMessage() {
		c.armed = true
		return c.readDeadline.read(c.Conn, p)
	}
	if c.armed {
		c.armed = false
		if err := c.Conn.SetReadDeadline(time.Time{}); err != nil {
			return 0, err
		}
	}
	return c.Conn.Read(p)
}

func (c *inConn) malformed(err error) error {
	c.reject("malformed")
	_ = closeNow(c.Conn)
	return err
}

// Write sends a response.
func (c *inConn) Write(p []byte) (int, error) {
	now := time.Now()
	if err := c.Conn.SetWriteDeadline(now.Add(c.readDeadline.step)); err != nil {
		return 0, err
	}
	c.answered.Store(max(1, int64(now.Sub(c.opened))))
	n, err := c.Conn.Write(p)
	c.final = c.final || c.scan.data
	c.releaseBudget()
	if c.state.And(^connBusy)&connRetired != 0 {
		_ = closeNow(c.Conn)
	}
	return n, err
}

// sentAfter returns a time before the peer sent the newest message on one of these connections that is unanswered, on
// whichever; zero: unknown. A message may have been in a socket while this node or the network was stopped. But a peer
// sends the next one on a connection only when it has the response to the one before. It may have made it earlier: it
// reads its log before it takes a connection.
func sentAfter(conns []*inConn) (earliest time.Time) {
	for _, c := range conns {
		if c.state.Load()&connBusy == 0 {
			continue
		}
		answered := c.answered.Load()
		if answered == 0 {
			return time.Time{} // it may have been about to be sent before the connection was made
		}
		if at := c.opened.Add(time.Duration(answered)); earliest.IsZero() || at.Before(earliest) {
			earliest = at
		}
	}
	return earliest
}

func (c *inConn) releaseBudget() {
	c.budget.Add(-c.held)
	c.held = 0
}

// retire closes the connection after the response in progress, if any.
func (c *inConn) retire() {
	if c.state.Or(connRetired)&connBusy == 0 {
		_ = closeNow(c.Conn)
	}
}

// Close is called by the library when it no longer uses the connection.
func (c *inConn) Close() error {
	err := closeNow(c.Conn)
	c.once.Do(func() {
		c.releaseBudget()
		c.released()
	})
	return err
}

// writeChunk is how much of a message must be sent within one RPC timeout.
const writeChunk = 128 << 10

// outConn is a dialled connection after its hello, as the library's client side uses it: one RPC at a time, each
// starting with SetDeadline. It replaces the library's deadline by one that follows the bytes: a large message may
// take long, but no part of it may. One goroutine uses it.
type outConn struct {
	net.Conn
	rpc          time.Duration
	lastReceived func() time.Time // the peer's last response on any connection
	stale        func() bool      // no request may start on it: its hello is outdated, or the peer's authority is gone
	released     func()

	scan    scanner
	sent    int64
	kind    byte
	answers bool // the response has started
	once    sync.Once
}

// SetDeadline starts an RPC.
func (c *outConn) SetDeadline(time.Time) error {
	c.sent, c.answers = 0, false
	return nil
}

// Write sends a part of a request, in chunks with a deadline each. No request starts on a connection whose hello is
// stale: it was in use when the other ones were closed.
func (c *outConn) Write(p []byte) (int, error) {
	if c.sent == 0 && c.stale() {
		_ = closeNow(c.Conn)
		return 0, io.EOF // like any connection that died in the pool
	}
	written := 0
	for len(p) > 0 {
		if c.sent == 0 {
			c.kind = p[0]
		}
		wait := c.rpc
		if c.kind == wireInstallSnapshot {
			wait = max(wait, maxStall)
		}
		if err := c.Conn.SetWriteDeadline(time.Now().Add(wait)); err != nil {
			return written, err
		}
		n, err := c.Conn.Write(p[:min(len(p), writeChunk)])
		written += n
		c.sent += int64(n)
		if err != nil {
			return written, err
		}
		p = p[n:]
	}
	return written, nil
}

// Read reads a part of the response. The wait for its start grows with the request, by an RPC timeout for each
// writeChunk of it: the peer stores all of that before it responds. For a snapshot it lasts while the peer answers
// heartbeats, which it does while its restore makes progress.
func (c *outConn) Read(p []byte) (int, error) {
	wait := readDeadline{step: c.rpc}
	if !c.answers {
		wait.step += c.rpc * time.Duration(c.sent/writeChunk)
		if c.kind == wireInstallSnapshot {
			wait = readDeadline{step: max(c.rpc, maxStall/5), lastReceived: c.lastReceived}
		}
	}
	n, err := wait.read(c.Conn, p)
	if n == 0 {
		return n, err
	}
	c.answers = true
	if bad := c.scan.feed(p[:n]); bad != nil {
		_ = closeNow(c.Conn)
		return 0, bad
	}
	return n, err
}

// Close is called by the library when it no longer uses the connection.
func (c *outConn) Close() error {
	err := closeNow(c.Conn)
	c.once.Do(c.released)
	return err
}
