package api

import (
	"context"
	"crypto/x509"
	"errors"
	"net"
	"net/http/httptest"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"northstar/api/openapi"
	"northstar/api/token"
	"northstar/cluster"
)

// calls opens connections of another protocol to a node, and makes calls on them.
type calls struct {
	*node
	tokens   map[string]string
	listener net.Listener
}

func newCalls(t *testing.T, change func(*Limits)) *calls {
	t.Helper()
	file, tokens := limitedTokens(t)
	n := startServer(t, newFakeCluster("n1", true), withTokens(file), func(d *Deps) { change(&d.Limits) })
	l := n.LimitConnections(listen(t))
	t.Cleanup(func() { _ = l.Close() })
	return &calls{node: n, tokens: tokens, listener: l}
}

// dial opens a connection, and reports whether the node has closed it.
func (c *calls) dial() (closed func() bool) {
	c.t.Helper()
	client, err := net.Dial("tcp", c.listener.Addr().String())
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { _ = client.Close() })
	return func() bool {
		_ = client.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
		_, err := client.Read(make([]byte, 1))
		timeout := net.Error(nil)
		return !errors.As(err, &timeout) || !timeout.Timeout() || errors.Is(err, syscall.ECONNRESET)
	}
}

// open is dial, and returns the node's end, too.
func (c *calls) open() (server net.Conn, closed func() bool) {
	c.t.Helper()
	closed = c.dial()
	server, err := c.listener.Accept()
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { _ = server.Close() })
	return server, closed
}

// begin begins a call on a connection.
func (c *calls) begin(on net.Conn, who string, role token.Role) (*Call, error) {
	r := httptest.NewRequestWithContext(c.t.Context(), "POST", "http://127.0.0.1/x", nil)
	r.RemoteAddr = on.RemoteAddr().String()
	r.Header.Set("Authorization", c.tokens[who])
	return c.Begin(r.Context(), r, NewCallConn(on), CallSpec{Name: "x", Role: role})
}

// Connections of another protocol without a caller with an identity, also those whose TLS handshake has not ended, give
// way to new ones. Others stay.
func TestAnonymousConnectionsOfCalls(t *testing.T) {
	t.Parallel()
	c := newCalls(t, func(l *Limits) { l.AnonymousConnections = 4 })
	known, knownClosed := c.open()
	call, err := c.begin(known, "alice", token.Observer)
	if err != nil {
		t.Fatal(err)
	}
	call.Leave(nil)
	unknown, _ := c.open()
	if _, err := c.begin(unknown, "nobody", token.Observer); !cluster.IsCode(err, cluster.CodeUnauthenticated) {
		t.Fatalf("a call without a token: %v", err)
	}
	var all []func() bool
	for range 20 {
		_, closed := c.open()
		all = append(all, closed)
	}
	eventually(t, func() bool {
		n := 0
		for _, closed := range all {
			if closed() {
				n++
			}
		}
		return n == 16
	})
	if open := c.conns.Len(); open != 5 || knownClosed() {
		t.Errorf("%d connections are open; that of a caller with an identity was closed: %v", open, knownClosed())
	}
	if _, err := c.begin(unknown, "alice", token.Observer); !cluster.IsCode(err, cluster.CodeBusy) {
		t.Errorf("a call on a connection that was closed: %v", err)
	}
}

// The connection of another protocol ends with its certificate, once a call was refused or a stream has ended for it: a
// client that has renewed the certificate shows the new one only on another connection. Calls in progress go on.
func TestCallConnectionsEndWithTheirCertificate(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		valid        time.Duration
		kind         openapi.ResponseKind
		never        bool // the call in progress does not end
		closedWithin time.Duration
	}{
		"expired":                  {valid: 30 * time.Second, closedWithin: time.Second},
		"no longer trusted":        {valid: time.Hour, closedWithin: time.Second},
		"a stream":                 {valid: 30 * time.Second, kind: openapi.Stream, closedWithin: time.Second},
		"a stream, not trusted":    {valid: time.Hour, kind: openapi.Stream, closedWithin: time.Second},
		"a call that does not end": {valid: 30 * time.Second, never: true, closedWithin: callTimeout},
		"such a call and a stream": {valid: time.Hour, kind: openapi.Stream, never: true, closedWithin: callTimeout},
	} {
		virtually(t, name, func(t *testing.T) {
			old, next := newAuthority(t), newAuthority(t)
			both := x509.NewCertPool()
			both.AddCert(old.cert)
			both.AddCert(next.cert)
			var roots atomic.Pointer[x509.CertPool]
			roots.Store(both)
			n := startServer(t, newFakeCluster("n1", true), func(d *Deps) { d.ClientRoots = roots.Load })
			open := func(a *authority, valid time.Duration) (func(openapi.ResponseKind) (*Call, error), func() bool) {
				c, closed := pipeConn(t, "192.0.2.1")
				n.conns.add(c)
				at, state := NewCallConn(c), a.certified(t, "northstar://test/client/alice", valid)
				return func(kind openapi.ResponseKind) (*Call, error) {
					r := httptest.NewRequestWithContext(t.Context(), "POST", "http://127.0.0.1/x", nil)
					r.RemoteAddr, r.TLS = c.remote, state
					return n.Begin(r.Context(), r, at, CallSpec{Name: "x", Role: token.Observer, Kind: kind})
				}, closed
			}
			begin, closed := open(old, tc.valid)
			others, othersClosed := open(next, time.Hour)
			inProgress, err := begin(openapi.Unary)
			if err != nil {
				t.Fatal(err)
			}
			call, err := begin(tc.kind)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := others(tc.kind); err != nil {
				t.Fatal(err)
			}
			time.Sleep(tc.valid % time.Hour)
			if tc.valid == time.Hour {
				roots.Store(next.pool)
				time.Sleep(2 * credentialInterval)
			}
			if tc.kind == openapi.Stream {
				<-call.Context().Done()
				if code := context.Cause(call.Context()); !cluster.IsCode(code, cluster.CodeUnauthenticated) {
					t.Errorf("the stream ended with %v", code)
				}
			} else if _, err := begin(openapi.Unary); !cluster.IsCode(err, cluster.CodeUnauthenticated) {
				t.Fatalf("a call with an invalid certificate: %v", err)
			}
			call.Leave(nil)
			if time.Sleep(time.Second); closed() {
				t.Fatal("a call in progress was ended")
			}
			if !tc.never {
				inProgress.Leave(nil)
			}
			if time.Sleep(tc.closedWithin); !closed() {
				t.Error("the connection is open")
			}
			if _, err := others(openapi.Unary); err != nil || othersClosed() {
				t.Errorf("another certificate: %v", err)
			}
		})
	}
}

// One address has no more connections of another protocol than its limit, and a few for operators. Those with a call
// are not closed for others.
func TestConnectionsOfCallsOfOneAddress(t *testing.T) {
	t.Parallel()
	c := newCalls(t, func(l *Limits) { l.AddressConnections = 4 })
	var calls []*Call
	var closed []func() bool
	for range 4 {
		conn, gone := c.open()
		call, err := c.begin(conn, "alice", token.Observer)
		if err != nil {
			t.Fatal(err)
		}
		calls, closed = append(calls, call), append(closed, gone)
	}
	fifth, fifthClosed := c.open()
	if _, err := c.begin(fifth, "alice", token.Observer); !cluster.IsCode(err, cluster.CodeBusy) {
		t.Errorf("a client's call beyond the limit: %v", err)
	}
	operator, err := c.begin(fifth, "root", token.Operator)
	if err != nil {
		t.Fatalf("an operator's call beyond the limit: %v", err)
	}
	sixthClosed := c.dial()
	accepted := make(chan net.Conn, 1)
	go func() {
		conn, err := c.listener.Accept() // passes over the sixth
		if err == nil {
			accepted <- conn
		}
	}()
	eventually(t, sixthClosed)
	for i, gone := range append(closed, fifthClosed) {
		if gone() {
			t.Errorf("connection %d with a call was closed", i)
		}
	}
	operator.Leave(nil)
	calls[0].Leave(nil)
	seventhClosed := c.dial() // in the place of an idle one
	eventually(t, func() bool { return len(accepted) == 1 })
	conn := <-accepted
	t.Cleanup(func() { _ = conn.Close() })
	if seventhClosed() {
		t.Error("an idle connection did not give way")
	}
	for _, call := range calls[1:] {
		call.Leave(nil)
	}
}

// A connection that came while the places were taken serves its client once there is a place: a gRPC client calls again
// on the same connection.
func TestConnectionsOfCallsGetAPlaceLater(t *testing.T) {
	t.Parallel()
	for name, free := range map[string]func(net.Conn, *Call){
		"one has ended": func(conn net.Conn, call *Call) { call.Leave(nil); _ = conn.Close() },
		"one is idle":   func(_ net.Conn, call *Call) { call.Leave(nil) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCalls(t, func(l *Limits) { l.AddressConnections = 16 })
			var conns []net.Conn
			var calls []*Call
			begin := func(conn net.Conn) error {
				call, err := c.begin(conn, "alice", token.Observer)
				if err == nil {
					calls = append(calls, call)
				}
				return err
			}
			for range 16 {
				conn, _ := c.open()
				if err := begin(conn); err != nil {
					t.Fatal(err)
				}
				conns = append(conns, conn)
			}
			late, closed := c.open()
			for range 3 {
				if err := begin(late); !cluster.IsCode(err, cluster.CodeBusy) {
					t.Fatalf("a call beyond the limit: %v", err)
				}
			}
			free(conns[7], calls[7])
			if err := begin(late); err != nil || closed() {
				t.Errorf("a call when there is a place: %v", err)
			}
			if n := c.conns.Len(); n != 16 {
				t.Errorf("%d connections have places", n)
			}
			further, _ := c.open()
			if err := begin(further); !cluster.IsCode(err, cluster.CodeBusy) {
				t.Errorf("a call beyond the limit: %v", err)
			}
		})
	}
}

// Leases that end with their connection have places among the attached sessions: one client may have thousands of
// leases, and hold each on thousands of streams.
func TestHeldLeasesAreLimited(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := startServer(t, newFakeCluster("n1", true), func(d *Deps) { d.Limits.Attached = 4 })
		n.lead()
		lease := n.sessionOf(60_000)
		r := httptest.NewRequest("POST", "http://127.0.0.1/lease", nil)
		r.RemoteAddr = "127.0.0.1:5"
		call, err := n.Begin(t.Context(), r, nil, CallSpec{Name: "keep alive", Role: token.Client})
		if err != nil {
			t.Fatal(err)
		}
		defer call.Leave(nil)
		var held []func(bool)
		for err == nil && len(held) < 10 {
			var detach func(bool)
			if detach, err = call.HoldLease(t.Context(), lease, time.Second); err == nil {
				held = append(held, detach)
			}
		}
		if !cluster.IsCode(err, cluster.CodeBusy) || len(held) != 5 { // with the reserve of operators
			t.Fatalf("%d leases are held, then %v", len(held), err)
		}
		for _, detach := range held {
			detach(false)
		}
		if _, err := call.HoldLease(t.Context(), "none", time.Second); !cluster.IsCode(err, cluster.CodeSessionEnded) {
			t.Errorf("a lease that is not there: %v", err)
		}
		if left := n.attaching.Load(); left != 0 {
			t.Errorf("%d places are not given back", left)
		}
	})
}
