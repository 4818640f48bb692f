package api

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"northstar/api/apiv1"
	"northstar/api/token"
	"northstar/cluster"
)

// limitedTokens makes two clients and an operator.
func limitedTokens(t *testing.T) (file []byte, tokens map[string]string) {
	t.Helper()
	tokens = map[string]string{}
	var b strings.Builder
	for name, role := range map[string]token.Role{
		"alice": token.Client, "bob": token.Client, "root": token.Operator,
	} {
		secret, hash := token.New()
		tokens[name] = "Bearer " + secret
		fmt.Fprintf(&b, "[[token]]\nname = %q\nrole = %q\nhash = %q\n", name, role, hash)
	}
	return []byte(b.String()), tokens
}

// unfinished sends a request whose body never ends.
func (n *node) unfinished(method, path, authorization string) net.Conn {
	n.t.Helper()
	c, err := dialMemory(n.t.Context(), n.addr)
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { _ = c.Close() })
	if _, err := fmt.Fprintf(c, "%s %s HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: %s\r\nContent-Length: 10\r\n\r\n{",
		method, path, authorization); err != nil {
		n.t.Fatal(err)
	}
	return c
}

// Bodies that do not arrive hold a share of the places, for 10 s: other clients, operators and nodes are served.
func TestUnfinishedBodies(t *testing.T) {
	virtual(t, func(t *testing.T) {
		file, tokens := limitedTokens(t)
		n := startServer(t, newFakeCluster("n1", true), withTokens(file), func(d *Deps) {
			d.Limits.Requests, d.Limits.Bodies = 32, 8
		})
		start := time.Now()
		var slow []net.Conn
		for range 2 { // the share of one caller
			slow = append(slow, n.unfinished("POST", "/v1/sessions", tokens["alice"]))
		}
		eventually(t, func() bool { return n.bodies.Load() == 2 })
		create := func(who string) reply {
			return n.do("POST", "/v1/sessions", `{"name":"s"}`, "Authorization", tokens[who])
		}
		create("alice").is(t, 503, cluster.CodeBusy)
		if r := create("root"); r.status != 200 {
			t.Errorf("an operator: %+v", r)
		}
		for i, c := range slow {
			resp, err := http.ReadResponse(bufio.NewReader(c), nil)
			if err != nil || resp.StatusCode != 400 {
				t.Fatalf("body %d: %v %v", i, resp, err)
			}
			var p apiv1.Problem
			if err := json.NewDecoder(resp.Body).Decode(&p); err != nil || !strings.Contains(p.Detail, "10s") {
				t.Errorf("%v %+v", err, p)
			}
		}
		if took := time.Since(start); took < jsonBodyTimeout || took > jsonBodyTimeout+time.Second {
			t.Errorf("the bodies had %v", took)
		}
		eventually(t, func() bool { return n.bodies.Load() == 0 && n.requests.Load() == 0 })
		if r := create("alice"); r.status != 200 {
			t.Errorf("after the time limit: %+v", r)
		}
	})
}

// at returns counters of a caller of its own.
func at(i uint16) counters { return counters{i, i} }

// most returns the highest of all counters.
func (s *shares) most() (most int64) {
	for row := range s {
		for i := range s[row] {
			most = max(most, s[row][i].Load())
		}
	}
	return most
}

// A caller that has one of its counters together with another one has a share of its own.
func TestShares_Collisions(t *testing.T) {
	t.Parallel()
	b := newBudget("places", 100, 2)
	holder := func(by counters) shareholder { return shareholder{identity: by, address: by} }
	for b.take(holder(counters{1, 1}), 1) == nil {
	}
	for _, by := range []counters{{1, 2}, {3, 1}} {
		if err := b.take(holder(by), 2); err != nil {
			t.Errorf("%v: %v", by, err)
		}
	}
	if b.take(holder(counters{1, 1}), 1) == nil {
		t.Error("the first caller has more than its share")
	}
	seen := map[counters]bool{}
	for i := range uint64(shareBuckets) {
		seen[countersOf(i*0x9e3779b97f4a7c15)] = true
	}
	if len(seen) < shareBuckets*9/10 {
		t.Errorf("%d different counters of %d hashes", len(seen), shareBuckets)
	}
}

// An address is counted as an identity is, and both are given back.
func TestBudget(t *testing.T) {
	t.Parallel()
	b := newBudget("places", 8, 2)
	alice, bob := shareholder{identity: at(1), address: at(1)}, shareholder{identity: at(2), address: at(1)}
	carol := shareholder{identity: at(3), address: at(3)}
	must := func(by shareholder, ok bool) {
		t.Helper()
		if err := b.take(by, 1); (err == nil) != ok {
			t.Errorf("%+v: %v", by, err)
		}
	}
	must(alice, true)
	must(bob, true)
	must(bob, false) // of the same address
	must(shareholder{identity: at(1), address: at(2)}, true)
	must(shareholder{identity: at(1), address: at(3)}, false) // the same identity from elsewhere
	must(carol, true)
	operator := shareholder{unshared: true}
	for range 4 {
		must(operator, true)
	}
	must(operator, false)
	peer := shareholder{identity: at(9), address: at(9), reserve: true}
	must(peer, true)
	must(peer, true)
	must(shareholder{identity: at(8), address: at(8), reserve: true}, false)
	if got := b.Load(); got != 10 {
		t.Fatalf("%d are held", got)
	}
	for range 4 {
		b.give(operator, 1)
	}
	for _, by := range []shareholder{alice, bob, {identity: at(1), address: at(2)}, carol, peer, peer} {
		b.give(by, 1)
	}
	if b.Load() != 0 {
		t.Errorf("%d are still held", b.Load())
	}
	if n := max(b.identities.most(), b.addresses.most()); n != 0 {
		t.Errorf("a counter is at %d", n)
	}
}

// Callers who fill the budget together leave places for those who hold little, but not without bound.
func TestBudgetOfManyCallers(t *testing.T) {
	t.Parallel()
	b := newBudget("places", 256, 192)
	for i := range uint16(2) {
		by := shareholder{identity: at(i), address: at(i)}
		for b.take(by, 1) == nil {
		}
	}
	if b.Load() != 256 {
		t.Fatalf("%d places are held", b.Load())
	}
	others := 0
	for i := range uint16(shareBuckets - 2) {
		by := shareholder{identity: at(i + 2), address: at(i + 2)}
		for b.take(by, 1) == nil {
			others++
			if held := b.identities.add(by.identity, 0); held > 256/littleShare {
				t.Fatalf("one caller holds %d", held)
			}
		}
	}
	if others != 256/8 {
		t.Errorf("others had %d places", others)
	}
	if err := b.take(shareholder{reserve: true, unshared: true}, 1); err != nil {
		t.Errorf("an operator: %v", err)
	}
}

// One client's requests leave room for others, and no client's requests delay /admin or what nodes forward.
func TestAdminAndNodesHavePlaces(t *testing.T) {
	virtual(t, func(t *testing.T) {
		file, tokens := limitedTokens(t)
		n := startServer(t, newFakeCluster("n1", true), withTokens(file), func(d *Deps) { d.Limits.Requests = 8 })
		var slow []net.Conn
		for range 6 {
			slow = append(slow, n.unfinished("PUT", "/v1/kv/k?timeout_ms=60000", tokens["alice"]))
		}
		eventually(t, func() bool { return n.requests.Load() == 6 })
		n.do("GET", "/v1/kv/k", "", "Authorization", tokens["alice"]).is(t, 503, cluster.CodeBusy)
		if r := n.do("PUT", "/v1/kv/k", "v", "Authorization", tokens["root"]); r.status != 200 {
			t.Errorf("another identity: %+v", r)
		}
		for range 4 { // an operator's own take the rest, and the reserve
			slow = append(slow, n.unfinished("PUT", "/v1/kv/k?timeout_ms=60000", tokens["root"]))
		}
		eventually(t, func() bool { return n.requests.Load() == 10 })
		n.do("GET", "/v1/kv/k", "", "Authorization", tokens["root"]).is(t, 503, cluster.CodeBusy)
		if r := n.do("GET", "/admin/auto-failover", "", "Authorization", tokens["root"]); r.status != 200 {
			t.Errorf("/admin: %+v", r)
		}
		if r := n.do("GET", "/livez", ""); r.status != 200 {
			t.Errorf("/livez: %+v", r)
		}
		for _, c := range slow {
			_, _ = io.WriteString(c, "xxxxxxxxx")
		}
		eventually(t, func() bool { return n.requests.Load() == 0 })
	})
}

// The connections of an address share its part of the calls and messages of other protocols.
func TestShareOfAConnection(t *testing.T) {
	t.Parallel()
	s := &Server{budgets: newBudgets(Limits{Streams: 8, RequestBytes: 800})}
	one, same, other := s.NewShare("192.0.2.1:7"), s.NewShare("192.0.2.1:8"), s.NewShare("192.0.2.2:7")
	must := func(h *Share, calls, bytes int, ok bool) {
		t.Helper()
		if err := h.Take(calls, bytes); (err == nil) != ok || err != nil && !cluster.IsCode(err, cluster.CodeBusy) {
			t.Errorf("%d calls, %d bytes: %v", calls, bytes, err)
		}
	}
	must(one, 6, 0, true)
	must(same, 1, 0, false)
	must(other, 2, 0, true)
	must(other, 1, 0, false)
	one.Give(6, 0)
	must(same, 0, 150, true)
	must(one, 1, 1, false)
	must(one, 6, 0, true) // the refused request has kept no place
	must(other, 0, 50, true)
	must(other, 0, 1, false)
	same.Give(0, 150)
	must(other, 0, 1, true)
}
