package api

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"northstar/api/apiv1"
	"northstar/api/problem"
)

// Listener limits the connections of l; further ones wait in the kernel's queue. It also turns net/http's own
// plain-text errors, for unreadable requests, into problems. node puts TLS around this listener: of errors over TLS
// it sees only a missing TLS handshake.
func (s *Server) Listener(l net.Listener) net.Listener {
	return &listener{Listener: l, slots: make(chan struct{}, s.limits.Connections), closed: make(chan struct{})}
}

type listener struct {
	net.Listener
	slots  chan struct{}
	once   sync.Once
	closed chan struct{}
}

// Accept waits for a free slot and a connection.
func (l *listener) Accept() (net.Conn, error) {
	select {
	case l.slots <- struct{}{}:
	case <-l.closed:
		return nil, net.ErrClosed
	}
	c, err := l.Listener.Accept()
	if err != nil {
		<-l.slots
		return nil, err
	}
	return &conn{Conn: c, release: func() { <-l.slots }}, nil
}

// Close also ends Accept.
func (l *listener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return l.Listener.Close()
}

type conn struct {
	net.Conn
	once    sync.Once
	release func()
	phase   atomic.Int32
}

// Phases of a connection. A text can be net/http's own error only while no request is served: a response may contain
// the same bytes.
const (
	connReading  int32 = iota // reads a request, or waits for one
	connServing               // the handler runs
	connFlushing              // the handler has returned; the rest of its response is sent
)

type (
	connKey   struct{}
	socketKey struct{}
)

// withConn makes the connection, and its socket, known to ServeHTTP.
func withConn(ctx context.Context, c net.Conn) context.Context {
	under := c
	if secured, ok := c.(*tls.Conn); ok {
		under = secured.NetConn()
		ctx = context.WithValue(ctx, trustKey{}, new(connTrust))
	}
	if own, ok := under.(*conn); ok {
		ctx = context.WithValue(ctx, socketKey{}, own.Conn)
	}
	if own, ok := c.(*conn); ok {
		return context.WithValue(ctx, connKey{}, own)
	}
	return ctx
}

// socketOf returns the socket of a request's connection, nil if unknown.
func socketOf(ctx context.Context) net.Conn {
	socket, _ := ctx.Value(socketKey{}).(net.Conn)
	return socket
}

// served marks the connection as serving until done is called; it does nothing over TLS.
func served(ctx context.Context) (done func()) {
	own, ok := ctx.Value(connKey{}).(*conn)
	if !ok {
		return func() {}
	}
	own.phase.Store(connServing)
	return func() { own.phase.Store(connFlushing) }
}

// net/http calls SetReadDeadline when it begins to wait for the next request.
func (c *conn) SetReadDeadline(t time.Time) error {
	c.phase.CompareAndSwap(connFlushing, connReading)
	return c.Conn.SetReadDeadline(t)
}

// Close releases the slot.
func (c *conn) Close() error {
	err := c.Conn.Close()
	c.once.Do(c.release)
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
	notTLS        = []byte("HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request")
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
	case bytes.HasPrefix(p, notTLS):
		return malformedRequestResponse("400", "this is an HTTPS port, and the client spoke plain HTTP")
	case !bytes.HasPrefix(p, plainPrefix):
		return nil
	case bytes.HasPrefix(p, noExpectation):
		return malformedRequestResponse("417", "Expect: want 100-continue")
	}
	if head, detail, ok := bytes.Cut(p, plainHeaders); ok {
		return malformedRequestResponse(string(head[len(plainPrefix):]), string(detail))
	}
	return nil
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
