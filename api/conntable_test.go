package api

import (
	"bufio"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"northstar/cluster"
)

// serveTLS serves s on another listener, with TLS.
func serveTLS(t *testing.T, s *Server) (l net.Listener, client *http.Client) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	l = listen(t)
	hs := s.HTTPServer()
	var wg sync.WaitGroup
	wg.Go(func() {
		_ = hs.Serve(s.Listener(l, &tls.Config{
			Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}},
			NextProtos:   []string{"http/1.1"},
		}))
	})
	tr := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}
	t.Cleanup(func() { _ = hs.Close(); wg.Wait() })
	return l, &http.Client{Transport: tr, Timeout: 20 * time.Second}
}

// pipeConn is a connection from an address, with a function that reports whether it was closed.
func pipeConn(t *testing.T, ip string) (c *conn, closed func() bool) {
	t.Helper()
	a, b := net.Pipe()
	t.Cleanup(func() { _ = a.Close(); _ = b.Close() })
	socket := memoryConn{a, net.JoinHostPort(ip, "5"), "127.0.0.1:1"}
	return &conn{Conn: socket, socket: socket}, func() bool {
		_ = b.SetReadDeadline(time.Now())
		_, err := b.Read(make([]byte, 1))
		return err == io.EOF
	}
}

// When places run out, the connection that was idle for longest is closed. If none is idle, there are a few places
// for calls that must work, and then none.
func TestConnTable(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		limits Limits
		ip     func(i int) string
	}{
		"node": {
			Limits{Connections: 3, AddressConnections: 100, AnonymousConnections: 100},
			func(i int) string { return fmt.Sprintf("192.0.2.%d", i+1) },
		},
		"address": {
			Limits{Connections: 100, AddressConnections: 3, AnonymousConnections: 100},
			func(int) string { return "192.0.2.1" },
		},
		"network": {
			Limits{Connections: 100, AddressConnections: 3, AnonymousConnections: 100},
			func(i int) string { return fmt.Sprintf("2001:db8::%d", i) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			table := newConnTable(tc.limits, func(netip.Prefix) bool { return false }, func(string) {})
			add := func(i int) (*conn, func() bool) {
				c, closed := pipeConn(t, tc.ip(i))
				if !table.add(c) {
					t.Fatalf("connection %d was refused", i)
				}
				return c, closed
			}
			busy, busyClosed := add(0)
			busy.begin()
			used, usedClosed := add(1)
			used.begin()
			used.end()
			_, unusedClosed := add(2)
			fourth, _ := add(3)
			if busyClosed() || usedClosed() || !unusedClosed() {
				t.Fatalf("closed: busy %v, used %v, unused %v", busyClosed(), usedClosed(), unusedClosed())
			}
			if fourth.reserved.Load() || table.Len() != 3 {
				t.Fatalf("reserved %v, %d connections", fourth.reserved.Load(), table.Len())
			}
			used.begin()
			fourth.begin()
			if fifth, _ := add(4); !fifth.reserved.Load() {
				t.Error("a connection beyond the limit is like any other")
			} else {
				fifth.begin()
			}
			sixth, _ := pipeConn(t, tc.ip(5))
			if table.add(sixth) {
				t.Error("a connection beyond the reserve has a place")
			}
			_ = busy.Close()
			_ = busy.Close() // frees one place only
			if table.Len() != 3 {
				t.Errorf("%d connections", table.Len())
			}
		})
	}
}

// Idle connections that give way to others do not let ordinary calls into the reserve.
func TestConnTable_ReserveStaysFree(t *testing.T) {
	t.Parallel()
	for name, limits := range map[string]Limits{
		"node":    {Connections: 64, AddressConnections: 1000, AnonymousConnections: 1000},
		"address": {Connections: 1000, AddressConnections: 64, AnonymousConnections: 1000},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			table := newConnTable(limits, func(netip.Prefix) bool { return false }, func(string) {})
			open := func() *conn {
				c, _ := pipeConn(t, "192.0.2.1")
				if !table.add(c) {
					t.Fatalf("a connection beside %d others was refused", table.Len())
				}
				return c
			}
			calls := 0
			call := func(c *conn) {
				if !c.begin() {
					t.Fatal("a new connection was closed")
				}
				if table.hasPlace(c) {
					calls++
					return
				}
				c.end()
				_ = c.Close()
			}
			for range 64 {
				call(open())
			}
			for range 8 {
				open()
				call(open())
			}
			if calls != 64 || table.Len() >= withReserve(64) {
				t.Errorf("%d calls on %d connections", calls, table.Len())
			}
		})
	}
}

// A call on a connection of the reserve closes idle ones only if it has a place then.
func TestConnTable_NothingIsClosedInVain(t *testing.T) {
	t.Parallel()
	for name, limits := range map[string]Limits{
		"node":    {Connections: 32, AddressConnections: 1000, AnonymousConnections: 1000},
		"address": {Connections: 1000, AddressConnections: 32, AnonymousConnections: 1000},
		"both":    {Connections: 32, AddressConnections: 32, AnonymousConnections: 1000},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			table := newConnTable(limits, func(netip.Prefix) bool { return false }, func(string) {})
			var conns []*conn
			for i := range 34 {
				ip := "192.0.2.1"
				if name == "both" && i == 33 { // the node has 2 more than its limit, the address of the call 1
					ip = "192.0.2.2"
				}
				c, _ := pipeConn(t, ip)
				if !table.add(c) || !c.begin() {
					t.Fatalf("connection %d", i)
				}
				conns = append(conns, c)
			}
			late := conns[32]
			if !late.reserved.Load() {
				t.Fatal("a connection beyond the limit is like any other")
			}
			conns[7].end()
			if table.hasPlace(late) || conns[7].serving.Load() == connClosed || table.Len() != 34 {
				t.Errorf("one place is missing: %d connections", table.Len())
			}
			conns[20].end()
			if !table.hasPlace(late) || late.reserved.Load() || table.Len() != 32 {
				t.Errorf("two are idle: %d connections", table.Len())
			}
		})
	}
}

// A request that arrives while its connection is closed is not served.
func TestConnTable_ClosedConnectionServesNothing(t *testing.T) {
	t.Parallel()
	table := newConnTable(Limits{Connections: 1, AddressConnections: 1, AnonymousConnections: 100},
		func(netip.Prefix) bool { return false }, func(string) {})
	first, closed := pipeConn(t, "192.0.2.1")
	second, _ := pipeConn(t, "192.0.2.1")
	if !table.add(first) || !table.add(second) || !closed() || first.begin() || !second.begin() {
		t.Error("an idle connection did not give way")
	}
}

// Another node's connections do not count for its address, and stay.
func TestConnTable_Peers(t *testing.T) {
	t.Parallel()
	table := newConnTable(Limits{Connections: 10, AddressConnections: 1, AnonymousConnections: 100},
		func(netip.Prefix) bool { return false }, func(string) {})
	for i := range 3 {
		c, closed := pipeConn(t, "192.0.2.1")
		if !table.add(c) || !c.begin() {
			t.Fatalf("connection %d", i)
		}
		table.addPeer(c)
		table.addPeer(c)
		c.end()
		if c.reserved.Load() || closed() {
			t.Errorf("connection %d: reserved %v", i, c.reserved.Load())
		}
	}
	if len(table.addresses) != 0 || table.Len() != 3 {
		t.Errorf("%d addresses, %d connections", len(table.addresses), table.Len())
	}
}

// Idle connections of callers without an identity give way to new ones, from any address. Others stay.
func TestAnonymousConnections(t *testing.T) {
	t.Parallel()
	file, tokens := limitedTokens(t)
	n := startServer(t, newFakeCluster("n1", true), withTokens(file), func(d *Deps) { d.Limits.AnonymousConnections = 8 })
	open := func() (ask func(path string) error) {
		t.Helper()
		c, err := net.Dial("tcp", n.addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		read := bufio.NewReader(c)
		return func(path string) error {
			if _, err := fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: %s\r\n\r\n", path,
				tokens["alice"]); err != nil {
				return err
			}
			resp, err := http.ReadResponse(read, nil)
			if err != nil {
				return err
			}
			_, err = io.Copy(io.Discard, resp.Body)
			return err
		}
	}
	known := open()
	if err := known("/v1/kv"); err != nil {
		t.Fatal(err)
	}
	var anonymous []func(string) error
	for range 40 {
		ask := open()
		if err := ask("/livez"); err != nil { // needs no identity, so the token is not checked
			t.Fatal(err)
		}
		anonymous = append(anonymous, ask)
	}
	if open := n.conns.Len(); open != 9 {
		t.Errorf("%d connections are open", open)
	}
	if err := known("/livez"); err != nil {
		t.Errorf("a connection of a caller with an identity: %v", err)
	}
	closed := 0
	for _, ask := range anonymous {
		if ask("/livez") != nil {
			closed++
		}
	}
	if closed != 32 {
		t.Errorf("%d of 40 connections were closed", closed)
	}
}

// Idle connections of one address, with TLS or without, and connections that have sent half a header, do not keep
// health checks and operators out, also those from the same address. On a full node clients get 4017.
func TestIdleConnectionsGiveWay(t *testing.T) {
	t.Parallel()
	file, tokens := limitedTokens(t)
	n := startServer(t, newFakeCluster("n1", true), withTokens(file), func(d *Deps) { d.Limits.AddressConnections = 32 })
	l, client := serveTLS(t, n.Server)
	for i := range 200 {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if i%10 == 0 {
			secured := tls.Client(c, &tls.Config{InsecureSkipVerify: true})
			if err := secured.Handshake(); err != nil {
				t.Fatal(err)
			}
			if i%20 == 0 {
				_, _ = io.WriteString(secured, "GET /v1/kv/k HTTP/1.1\r\n")
			}
		}
	}
	for _, path := range []string{"/livez", "/leader", "/admin/auto-failover", "/v1/kv"} {
		req, err := http.NewRequest("GET", "https://"+l.Addr().String()+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", tokens["root"])
		resp, err := client.Do(req)
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		resp.Body.Close()
		if resp.StatusCode != 200 {
			t.Errorf("%s: %s", path, resp.Status)
		}
	}
	if open := n.conns.Len(); open > 32 {
		t.Errorf("%d connections", open)
	}
}

// While streams have all connections of an address, health checks and operators get through, and others get 4017.
func TestReservedConnections(t *testing.T) {
	virtual(t, func(t *testing.T) {
		file, tokens := limitedTokens(t)
		n := startServer(t, newFakeCluster("n1", true), withTokens(file), func(d *Deps) { d.Limits.AddressConnections = 4 })
		for range 4 {
			c, err := dialMemory(t.Context(), n.addr)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if _, err := fmt.Fprintf(c, "GET /v1/watch HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: %s\r\n\r\n",
				tokens["alice"]); err != nil {
				t.Fatal(err)
			}
			if _, err := http.ReadResponse(bufio.NewReader(c), nil); err != nil {
				t.Fatal(err)
			}
		}
		n.do("GET", "/v1/kv", "", "Authorization", tokens["alice"]).is(t, 503, cluster.CodeBusy)
		for _, path := range []string{"/livez", "/leader", "/admin/auto-failover"} {
			synctest.Wait() // with so low a limit one connection is reserved: the one before must have ended
			if r := n.do("GET", path, "", "Authorization", tokens["root"]); r.status != 200 {
				t.Errorf("%s: %+v", path, r)
			}
		}
	})
}

// Plain HTTP on a port with TLS is answered with a problem.
func TestPlainRequestToTLS(t *testing.T) {
	t.Parallel()
	n := startServer(t, newFakeCluster("n1", true))
	l, _ := serveTLS(t, n.Server)
	resp, err := http.Get("http://" + l.Addr().String() + "/livez")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != 400 || !strings.Contains(string(body), "HTTPS port") {
		t.Errorf("%s %s %v", resp.Status, body, err)
	}
}
