package api

import (
	"bytes"
	lists "container/list"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"

	"northstar/api/apiv1"
	"northstar/api/problem"
)

// Listener limits the connections of l, and what the kernel holds of their unsent responses. It also turns net/http's
// own plain-text errors, for unreadable requests, into problems, also over TLS: net/http sees only the connections of
// this listener. secure is nil without TLS.
func (s *Server) Listener(l net.Listener, secure *tls.Config) net.Listener {
	return &listener{Listener: l, server: s, secure: secure}
}

// unsentBytes is how much of the responses of one connection the kernel holds before a write waits. What was sent and
// is not acknowledged does not count, so clients that read lose no throughput.
const unsentBytes = 64 << 10

// acceptWarnEvery is the time between two warnings that accepting fails.
const acceptWarnEvery = 10 * time.Second

type listener struct {
	net.Listener
	server *Server
	secure *tls.Config
	warned time.Time // when a warning last said that accepting fails; net/http accepts in one goroutine
}

// Accept waits for a connection, and makes room for it. Every error but net.ErrClosed is one that net/http waits after:
// the node must not end because the kernel is short of memory.
func (l *listener) Accept() (net.Conn, error) {
	c, err := l.server.conns.accept(l.Listener)
	switch {
	case errors.Is(err, net.ErrClosed):
		return nil, err
	case err != nil:
		if l.warned.IsZero() || time.Since(l.warned) >= acceptWarnEvery {
			l.warned = time.Now()
			l.server.logger.Warn("accepting a connection failed", "error", err)
		}
		return nil, passingError{err}
	}
	limitUnsent(c.socket)
	if l.secure == nil {
		return c, nil
	}
	secured := tls.Server(c.socket, l.secure)
	c.Conn = secured
	return &securedConn{conn: c, tls: secured, logger: l.server.logger}, nil
}

// passingError is a net.Error after which net/http accepts again, later.
type passingError struct{ error }

func (passingError) Timeout() bool   { return false }
func (passingError) Temporary() bool { return true }

// outOfResources reports whether closing a connection may help against err.
func outOfResources(err error) bool {
	return slices.ContainsFunc([]error{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM},
		func(of error) bool { return errors.Is(err, of) })
}

type conn struct {
	net.Conn          // with TLS if the listener has it
	socket   net.Conn // without
	once     sync.Once
	phase    atomic.Int32

	table   *connTable
	remote  string       // address of the client
	group   netip.Prefix // of remote
	local   bool         // remote is of this machine
	serving atomic.Int32 // requests; connClosed: closed while there was none
	used    atomic.Bool  // has served a request since the last search for idle connections

	identified atomic.Bool // a caller with an identity has called
	closing    atomic.Bool // see closeSoon
	reserved   atomic.Bool // beyond the limit: only for calls that must work on a full node

	// guarded by the table's mutex
	inAll, inAddress, inAnonymous *lists.Element

	peer bool // another node's
}

const connClosed = -1

// begin reports whether the connection may serve a request: it may not if it was closed.
func (c *conn) begin() bool {
	if !c.hold() {
		return false
	}
	c.phase.Store(connServing)
	return true
}

func (c *conn) end() {
	c.phase.Store(connFlushing)
	c.letGo()
}

// hold is begin for a connection of another protocol.
func (c *conn) hold() bool {
	for {
		n := c.serving.Load()
		if n < 0 {
			return false
		}
		if c.serving.CompareAndSwap(n, n+1) {
			break
		}
	}
	if !c.used.Load() {
		c.used.Store(true)
	}
	return true
}

func (c *conn) letGo() { c.serving.Add(-1) }

// sendingTime is how long the answer to a call may take until the kernel has it.
const sendingTime = 200 * time.Millisecond

// closeSoon closes a connection of another protocol once its answers are sent and it has no call, at the latest after
// callTimeout.
func (c *conn) closeSoon() {
	if !c.closing.Swap(true) {
		c.closeWithoutCalls(time.Now().Add(callTimeout))
	}
}

func (c *conn) closeWithoutCalls(until time.Time) {
	time.AfterFunc(sendingTime, func() {
		if !c.serving.CompareAndSwap(0, connClosed) && time.Now().Before(until) {
			c.closeWithoutCalls(until)
			return
		}
		_ = c.socket.Close() // the server of the protocol then closes c
	})
}

// Phases of a connection. A text can be net/http's own error only while no request is served: a response may contain
// the same bytes.
const (
	connReading  int32 = iota // reads a request, or waits for one
	connServing               // the handler runs
	connFlushing              // the handler has returned; the rest of its response is sent
)

// fromThisMachine reports whether a process of this machine made the request itself, as far as its headers tell: a
// proxy on this machine makes requests of others.
func fromThisMachine(r *http.Request) bool {
	if r.Header["Forwarded"] != nil || r.Header["X-Forwarded-For"] != nil {
		return false
	}
	if conn := connOf(r.Context()); conn != nil && conn.remote == r.RemoteAddr {
		return conn.local
	}
	return isLoopback(r.RemoteAddr)
}

// isLoopback reports whether an address, with its port, is of this machine.
func isLoopback(remote string) bool {
	addr, err := netip.ParseAddrPort(remote)
	return err == nil && addr.Addr().Unmap().IsLoopback()
}

type connKey struct{}

// withConn makes the connection known to ServeHTTP.
func withConn(ctx context.Context, c net.Conn) context.Context {
	switch c := c.(type) {
	case *conn:
		return context.WithValue(ctx, connKey{}, c)
	case *securedConn:
		return context.WithValue(context.WithValue(ctx, connKey{}, c.conn), trustKey{}, new(connTrust))
	}
	return ctx
}

// connOf returns the connection of a request, nil if this package did not accept it.
func connOf(ctx context.Context) *conn {
	c, _ := ctx.Value(connKey{}).(*conn)
	return c
}

// socketOf returns the socket of a request's connection, nil if unknown.
func socketOf(ctx context.Context) net.Conn {
	if c := connOf(ctx); c != nil {
		return c.socket
	}
	return nil
}

// net/http calls SetReadDeadline when it begins to wait for the next request.
func (c *conn) SetReadDeadline(t time.Time) error {
	c.phase.CompareAndSwap(connFlushing, connReading)
	return c.Conn.SetReadDeadline(t)
}

// Close frees the place.
func (c *conn) Close() error {
	err := c.Conn.Close()
	c.once.Do(func() { c.table.remove(c) })
	return err
}

// CloseWrite lets net/http end a connection gracefully.
func (c *conn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

// Errors that net/http writes itself, each in one Write.
var (
	plainPrefix   = []byte("HTTP/1.1 ")
	plainHeaders  = []byte("\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n")
	noExpectation = []byte("HTTP/1.1 417 ")
)

// Write replaces an error of net/http's own with a problem.
func (c *conn) Write(p []byte) (int, error) {
	if c.phase.Load() != connReading {
		return c.Conn.Write(p)
	}
	replacement := asProblem(p)
	if replacement == nil {
		return c.Conn.Write(p)
	}
	if _, err := c.Conn.Write(replacement); err != nil {
		return 0, err
	}
	return len(p), nil
}

// asProblem returns the problem for an error of net/http's own, nil for anything else.
func asProblem(p []byte) []byte {
	switch {
	case !bytes.HasPrefix(p, plainPrefix):
		return nil
	case bytes.HasPrefix(p, noExpectation):
		return malformedRequestResponse("417", "Expect: must be 100-continue")
	}
	if head, detail, ok := bytes.Cut(p, plainHeaders); ok {
		return malformedRequestResponse(string(head[len(plainPrefix):]), string(detail))
	}
	return nil
}

// securedConn is a connection with TLS, as net/http sees it.
type securedConn struct {
	*conn
	tls    *tls.Conn
	logger hclog.Logger
	failed bool
}

// ConnectionState is called by net/http before it reads. It completes the handshake.
func (c *securedConn) ConnectionState() tls.ConnectionState {
	_ = c.tls.SetDeadline(time.Now().Add(headerTimeout)) // on an error the handshake fails, too
	if err := c.tls.Handshake(); err != nil {
		c.failed = true
		c.logger.Debug("TLS handshake failed", "remote", c.RemoteAddr(), "error", err)
		var plain tls.RecordHeaderError
		if errors.As(err, &plain) && plain.Conn != nil && looksLikeHTTP(plain.RecordHeader[:]) {
			_, _ = plain.Conn.Write(malformedRequestResponse("400",
				"this is an HTTPS port, and the client spoke plain HTTP"))
		}
	}
	_ = c.tls.SetDeadline(time.Time{})
	return c.tls.ConnectionState()
}

func looksLikeHTTP(record []byte) bool {
	return slices.Contains([]string{"GET /", "HEAD ", "POST ", "PUT /", "PATCH", "DELET", "OPTIO"}, string(record))
}

// Read ends a connection without a handshake.
func (c *securedConn) Read(p []byte) (int, error) {
	if c.failed {
		return 0, io.EOF
	}
	return c.conn.Read(p)
}

// malformedRequestResponse returns the complete response to a request that net/http could not read.
func malformedRequestResponse(status, detail string) []byte {
	e := problem.BadRequest("request: %s", detail)
	if n, err := strconv.Atoi(status[:3]); err == nil {
		e.Status = n
	}
	body, err := json.Marshal(problem.Encode(e))
	if err != nil {
		body = nil // cannot happen: a struct of strings and numbers
	}
	return fmt.Appendf(nil, "HTTP/1.1 %d %s\r\nContent-Type: %s\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s",
		e.HTTPStatus(), http.StatusText(e.HTTPStatus()), apiv1.TypeProblem, len(body), body)
}
