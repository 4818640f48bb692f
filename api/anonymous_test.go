package api

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"
	"time"

	"northstar/api/apiv1"
	"northstar/cluster"
)

// anonymousTable is a table in which only connections without an identity are limited, and a function that adds one.
func anonymousTable(t *testing.T, limit int) (table *connTable, add func(ip string) (*conn, func() bool)) {
	t.Helper()
	table = newConnTable(Limits{Connections: 1 << 20, AddressConnections: 1 << 20, AnonymousConnections: limit},
		func(netip.Prefix) bool { return false }, func(string) {})
	return table, func(ip string) (*conn, func() bool) {
		c, closed := pipeConn(t, ip)
		if !table.add(c) {
			t.Fatalf("a connection of %s was refused", ip)
		}
		return c, closed
	}
}

// A flood from some addresses closes connections of these addresses, not those of others.
func TestAnonymousFlood(t *testing.T) {
	t.Parallel()
	for _, addresses := range []int{1, 2, 4, 31} {
		table, add := anonymousTable(t, 64)
		flood := func() {
			for i := range 1000 {
				add(fmt.Sprintf("192.0.2.%d", i%addresses+1))
			}
		}
		flood()
		_, closed := add("198.51.100.1")
		flood()
		if closed() || table.Len() != 64 {
			t.Errorf("%d addresses: another one's connection is closed: %v; %d connections", addresses, closed(), table.Len())
		}
	}
}

// An address whose connections all serve requests does not make the addresses with fewer give way to each other.
func TestAnonymousFlood_BusyAddress(t *testing.T) {
	t.Parallel()
	table, add := anonymousTable(t, 64)
	for range 40 {
		c, _ := add("192.0.2.1")
		c.begin()
	}
	_, closed := add("198.51.100.1")
	for range 1000 {
		add("192.0.2.2")
	}
	if closed() || table.Len() != 64 {
		t.Errorf("another address's connection is closed: %v; %d connections", closed(), table.Len())
	}
}

// The addresses are ordered by their numbers of connections after each change.
func TestAnonymousConns_Order(t *testing.T) {
	t.Parallel()
	table, add := anonymousTable(t, 64)
	var all []*conn
	for i := range 60 {
		c, _ := add(fmt.Sprintf("192.0.2.%d", i%7*i%5))
		all = append(all, c)
	}
	for i, c := range all {
		switch i % 3 {
		case 0:
			table.identified(c)
		case 1:
			table.addPeer(c)
		default:
			table.remove(c)
		}
		a := &table.anonymousConns
		count := 0
		for n, same := range a.bySize {
			for e := same.Front(); e != nil; e = e.Next() {
				own := e.Value.(*anonymousAddress)
				if own.conns.Len() != n+1 || a.addresses[own.conns.Front().Value.(*conn).group] != own {
					t.Fatalf("an address with %d connections is among those with %d", own.conns.Len(), n+1)
				}
				count += n + 1
			}
		}
		if count != a.count || count != len(all)-i-1 || len(a.bySize) > 0 && a.bySize[len(a.bySize)-1].Len() == 0 {
			t.Fatalf("%d connections in order, %d counted, %d expected", count, a.count, len(all)-i-1)
		}
	}
	if len(table.anonymousConns.addresses) != 0 {
		t.Errorf("%d addresses are remembered", len(table.anonymousConns.addresses))
	}
}

// A connection before its TLS handshake outlives a flood from several other addresses.
func TestAnonymousFlood_TLS(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := startServer(t, newFakeCluster("n1", true), func(d *Deps) { d.Limits.AnonymousConnections = 8 })
		l, _ := serveTLS(t, n.Server)
		dial := func(from string) net.Conn {
			server, client := net.Pipe()
			t.Cleanup(func() { _ = client.Close() })
			l.(*memoryListener).conns <- memoryConn{server, from, l.Addr().String()}
			return client
		}
		operator := dial("198.51.100.1:5")
		for i := range 100 {
			dial(fmt.Sprintf("192.0.2.%d:5", i%4+1))
		}
		secured := tls.Client(operator, &tls.Config{InsecureSkipVerify: true})
		if _, err := io.WriteString(secured, "GET /livez HTTP/1.1\r\nHost: n1\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		resp, err := http.ReadResponse(bufio.NewReader(secured), nil)
		if err != nil || resp.StatusCode != 200 {
			t.Fatalf("%+v %v", resp, err)
		}
		if open := n.conns.Len(); open != 8 {
			t.Errorf("%d connections are open", open)
		}
		t.Cleanup(func() { time.Sleep(time.Second) }) // net/http waits before it closes a connection with unread bytes
	})
}

// A flood closes no connection on which another node has called, also if the node only asked for the leader: the node
// may be sending a write on it.
func TestPollingPeersStay(t *testing.T) {
	t.Parallel()
	data, _ := tokenFile()
	const remote, here = "192.0.2.7", "127.0.0.1"
	for name, tc := range map[string]struct {
		change     func(*Deps)
		from, cert string
		unsaid     bool // without the name of the forwarding node
		stays      bool
	}{
		"a member":                    {from: remote, cert: "node/n2", stays: true},
		"a member, with tokens":       {change: withTokens(data), from: remote, cert: "node/n2", stays: true},
		"a member, private views":     {change: func(d *Deps) { d.PrivateViews = true }, from: remote, cert: "node/n2", stays: true},
		"a node that is no member":    {from: remote, cert: "node/n9"},
		"a removed node":              {from: remote, cert: "node/n4"},
		"a client's certificate":      {from: remote, cert: "client/c"},
		"an operator's certificate":   {from: remote, cert: "operator/o"},
		"nobody":                      {from: remote},
		"a local peer without tokens": {from: here, stays: true},
		"a local caller":              {from: here, unsaid: true},
		"a local peer with tokens":    {change: withTokens(data), from: here},
		"insecure":                    {change: func(d *Deps) { d.Insecure = true }, from: remote, stays: true},
	} {
		s := bareServer(t, func(d *Deps) {
			if tc.change != nil {
				tc.change(d)
			}
			d.Limits.AnonymousConnections = 4
			d.Reads.(*fakeCluster).removeRecord("n4")
		})
		c, closed := pipeConn(t, tc.from)
		if !s.conns.add(c) {
			t.Fatalf("%s: refused", name)
		}
		r := httptest.NewRequest("GET", "http://127.0.0.1"+apiv1.PathLeader, nil)
		r.RemoteAddr = tc.from + ":5"
		if tc.cert != "" {
			clientCertificate(r, "northstar://test/"+tc.cert, true)
		}
		if !tc.unsaid {
			r.Header.Set(apiv1.HeaderForwardedBy, "n2")
		}
		s.ServeHTTP(httptest.NewRecorder(), r.WithContext(context.WithValue(r.Context(), connKey{}, c)))
		for range 20 {
			other, _ := pipeConn(t, tc.from)
			s.conns.add(other)
		}
		if closed() == tc.stays {
			t.Errorf("%s: its connection is closed: %v", name, closed())
		}
	}
}

// The connections of a node that was removed are closed as those of any other caller.
func TestConnectionsOfARemovedNode(t *testing.T) {
	t.Parallel()
	const remote = "192.0.2.7"
	f := newFakeCluster("n1", true)
	s := bareServerOf(t, f, func(d *Deps) { d.Limits.AnonymousConnections, d.Limits.AddressConnections = 4, 4 })
	f.addRecord(cluster.Member{ID: "n4", Lifecycle: cluster.Active})
	poll := func(c *conn) {
		r := httptest.NewRequest("GET", "http://127.0.0.1"+apiv1.PathLeader, nil)
		r.RemoteAddr = remote + ":5"
		clientCertificate(r, "northstar://test/node/n4", true)
		r.Header.Set(apiv1.HeaderForwardedBy, "n4")
		s.ServeHTTP(httptest.NewRecorder(), r.WithContext(context.WithValue(r.Context(), connKey{}, c)))
	}
	var conns []*conn
	var closed []func() bool
	for range 8 {
		c, isClosed := pipeConn(t, remote)
		if !s.conns.add(c) {
			t.Fatal("a member's connection was refused")
		}
		poll(c)
		conns, closed = append(conns, c), append(closed, isClosed)
	}
	f.removeRecord("n4")
	for _, c := range conns {
		poll(c)
	}
	for range 4 {
		other, _ := pipeConn(t, remote)
		s.conns.add(other)
	}
	open := 0
	for _, isClosed := range closed {
		if !isClosed() {
			open++
		}
	}
	if open > 4 {
		t.Errorf("%d of 8 connections of a removed node stay", open)
	}
	for _, c := range conns {
		_ = c.Close() // twice, for those that are closed
	}
	if n := s.conns.Len(); n > 4 {
		t.Errorf("%d connections are left", n)
	}
}
