package api

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"northstar/cluster"
	"northstar/state"
)

// pair is a leader n1 and a follower n2 that knows n1's address.
func pair(t *testing.T, change ...func(*Deps)) (leader, follower *node) {
	t.Helper()
	leader = startServer(t, newFakeCluster("n1", true), change...)
	f := newFakeCluster("n2", false)
	f.addRecord(cluster.Member{ID: "n1", HTTPAddress: leader.addr, RaftAddress: "h1:7700", Lifecycle: cluster.Active})
	f.lead("n1", 2)
	return leader, startServer(t, f, change...)
}

func TestForwardToLeader(t *testing.T) {
	virtual(t, func(t *testing.T) {
		leader, follower := pair(t)
		r := follower.do("PUT", "/v1/kv/a//b/../c%2Fd", "value", "If-None-Match", "*", "Idempotency-Key", "i")
		if r.status != 200 || !strings.Contains(r.body, `"key":"a//b/../c/d"`) || r.header.Get("ETag") == "" || r.header.Get("X-Northstar-Leader") != leader.addr {
			t.Fatalf("PUT: %+v", r)
		}
		if it, ok := leader.fake.View().Get("a//b/../c/d"); !ok || string(it.Value) != "value" {
			t.Fatalf("leader has %+v, %v", it, ok)
		}
		for _, q := range []string{"", "?consistency=lease", "?timeout_ms=1000"} {
			r = follower.do("GET", "/v1/kv/a//b/../c%2Fd"+q, "")
			if r.status != 200 || r.body != "value" || r.header.Get("X-Northstar-Revision") == "" ||
				len(r.header["Date"]) != 1 {
				t.Errorf("GET%s: %+v", q, r)
			}
		}
		if r := follower.do("HEAD", "/v1/kv/a//b/../c%2Fd", ""); r.status != 200 ||
			r.header.Get("Content-Length") != "5" {
			t.Errorf("HEAD: %+v", r)
		}
		if r := leader.do("GET", "/v1/kv/a//b/../c%2Fd", ""); r.header.Get("X-Northstar-Leader") != "" {
			t.Errorf("answer that was not forwarded: %+v", r)
		}
		// The stale read is this node's own business, and it has nothing.
		if r := follower.do("GET", "/v1/kv/a?consistency=stale", ""); r.status != 404 ||
			r.header.Get("X-Northstar-Last-Contact-Ms") != "20" {
			t.Errorf("stale: %+v", r)
		}
		// Errors of the leader come through as they are.
		p := follower.do("PUT", "/v1/kv/a//b/../c%2Fd", "w", "If-None-Match", "*").is(t, 412,
			cluster.CodeConditionFailed)
		if p.Revision == 0 {
			t.Error("412 without revision")
		}
		if r := follower.do("GET", "/v1/kv?prefix=a", ""); r.status != 200 || !strings.Contains(r.body, "a//b") {
			t.Errorf("list: %+v", r)
		}
		if r := follower.do("DELETE", "/v1/kv/a//b/../c%2Fd", ""); r.status != 200 {
			t.Errorf("DELETE: %+v", r)
		}
	})
}

func TestForward_LargeResponse(t *testing.T) {
	virtual(t, func(t *testing.T) {
		leader, follower := pair(t)
		big := strings.Repeat("0123456789", 100_000)
		leader.fake.put("big", big)
		if r := follower.do("GET", "/v1/kv/big", ""); r.status != 200 || r.body != big {
			t.Errorf("status %d, %d bytes", r.status, len(r.body))
		}
	})
}

// TestForward_PropagatesIdentity: idempotency keys are the caller's own, also
// when another node asks for it.
func TestForward_PropagatesIdentity(t *testing.T) {
	virtual(t, func(t *testing.T) {
		data, tokens := tokenFile()
		leader, follower := pair(t, withTokens(data))
		seen := make(chan string, 1)
		leader.fake.set(func() {
			leader.fake.propose = func(_ context.Context, c state.Command) (state.Result, error) {
				seen <- c.Idempotency.Key
				return state.Result{Revision: 7}, nil
			}
		})
		r := follower.do("PUT", "/v1/kv/k", "v", "Authorization", "Bearer "+tokens["client"], "Idempotency-Key", "x")
		if r.status != 200 {
			t.Fatalf("%+v", r)
		}
		if got := <-seen; got != "the-client\nx" {
			t.Errorf("key at the leader: %q", got)
		}
		follower.do("PUT", "/v1/kv/k", "v", "Authorization", "Bearer "+tokens["observer"]).is(t, 403,
			cluster.CodeForbidden)
	})
}

func TestForward_OnlyOnce(t *testing.T) {
	virtual(t, func(t *testing.T) {
		a := startServer(t, newFakeCluster("n1", false))
		b := startServer(t, newFakeCluster("n2", false))
		a.fake.addRecord(cluster.Member{ID: "n2", HTTPAddress: b.addr})
		b.fake.addRecord(cluster.Member{ID: "n1", HTTPAddress: a.addr})
		a.fake.lead("n2", 5)
		b.fake.lead("n1", 5)
		a.waitForLeaderView()
		b.waitForLeaderView()
		start := time.Now()
		p := a.do("PUT", "/v1/kv/k", "v").is(t, 503, cluster.CodeNoLeader)
		if !p.Retryable {
			t.Error("4002 is not retryable")
		}
		if took := time.Since(start); took > 5*time.Second {
			t.Errorf("took %v", took)
		}
		// A node that receives a forwarded request and does not lead rejects it immediately.
		start = time.Now()
		a.do("PUT", "/v1/kv/k", "v", "X-Northstar-Forwarded-By", "n9").is(t, 503, cluster.CodeNoLeader)
		if took := time.Since(start); took > 500*time.Millisecond {
			t.Errorf("a forwarded request was held for %v", took)
		}
	})
}

func TestRedirect(t *testing.T) {
	virtual(t, func(t *testing.T) {
		leader, follower := pair(t)
		r := follower.do("PUT", "/v1/kv/a%2Fb?redirect&timeout_ms=1000", "v")
		if want := "http://" + leader.addr + "/v1/kv/a%2Fb?redirect&timeout_ms=1000"; r.status != 307 ||
			r.header.Get("Location") != want {
			t.Fatalf("%d %s, want %s", r.status, r.header.Get("Location"), want)
		}
		if r := leader.do("PUT", "/v1/kv/a%2Fb?redirect&timeout_ms=1000", "v"); r.status != 200 {
			t.Errorf("at the leader: %+v", r)
		}
	})
}

func TestForward_SendsRemainingBudget(t *testing.T) {
	virtual(t, func(t *testing.T) {
		leader, follower := pair(t)
		left := make(chan time.Duration, 1)
		leader.fake.set(func() {
			leader.fake.barrier = func(ctx context.Context) error {
				deadline, _ := ctx.Deadline()
				left <- time.Until(deadline)
				return nil
			}
		})
		follower.do("GET", "/v1/kv/k?timeout_ms=1000", "")
		if got := <-left; got > 900*time.Millisecond || got < 500*time.Millisecond {
			t.Errorf("the leader has %v for a request of 1 s", got)
		}
	})
}

// brokenLeader accepts connections, reads a request and hangs up, or never
// answers, and counts.
func brokenLeader(t *testing.T, hang bool) (addr string, requests *atomic.Int64) {
	t.Helper()
	l := listen(t)
	requests = new(atomic.Int64)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				r, err := http.ReadRequest(bufio.NewReader(c))
				if err != nil {
					return
				}
				_, _ = io.Copy(io.Discard, r.Body)
				requests.Add(1)
				if hang {
					<-stop
				}
			})
		}
	})
	t.Cleanup(func() { close(stop); l.Close(); wg.Wait() })
	return l.Addr().String(), requests
}

// followerOf is a node n2 that takes addr for the leader's, n1's.
func followerOf(t *testing.T, addr string, change ...func(*Deps)) *node {
	t.Helper()
	f := newFakeCluster("n2", false)
	f.addRecord(cluster.Member{ID: "n1", HTTPAddress: addr, Lifecycle: cluster.Active})
	f.lead("n1", 2)
	return startServer(t, f, change...)
}

// becomeLeader lets a healthy leader n3 appear.
func (n *node) becomeLeader(t *testing.T) *node {
	t.Helper()
	leader := startServer(t, newFakeCluster("n3", true))
	n.fake.addRecord(cluster.Member{ID: "n3", HTTPAddress: leader.addr, Lifecycle: cluster.Active})
	n.fake.lead("n3", 3)
	return leader
}

// TestForward_LeaderFailsOnceBeforeRequest: nothing was sent, so that any request is
// held until there is a leader that takes it.
func TestForward_LeaderFailsOnceBeforeRequest(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := followerOf(t, unusedAddress(t), func(d *Deps) { d.TimeoutMax = 5 * time.Second })
		answer := make(chan reply)
		go func() { answer <- n.do("PUT", "/v1/kv/k", "v") }()
		eventually(t, func() bool { return n.queued.Load() == 1 })
		leader := n.becomeLeader(t)
		if r := <-answer; r.status != 200 {
			t.Fatalf("%+v", r)
		}
		if _, ok := leader.fake.View().Get("k"); !ok {
			t.Error("the new leader has no k")
		}
	})
}

func TestForward_LeaderFailsBeforeRequest(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n := followerOf(t, unusedAddress(t))
		start := time.Now()
		r := n.do("PUT", "/v1/kv/k", "v")
		took := time.Since(start)
		p := r.is(t, 503, cluster.CodeNoLeader)
		if !p.Retryable || r.header.Get("Retry-After") == "" || p.LeaderID != "n1" {
			t.Errorf("%+v %v", p, r.header)
		}
		if took < 600*time.Millisecond || took > 3*time.Second {
			t.Errorf("held for %v, want 600 ms", took)
		}
	})
}

// TestForward_LeaderFailsAfterRequest: a write that was sent on may have happened.
func TestForward_LeaderFailsAfterRequest(t *testing.T) {
	virtual(t, func(t *testing.T) {
		addr, requests := brokenLeader(t, false)
		n := followerOf(t, addr)
		for _, method := range []string{"PUT", "DELETE"} {
			p := n.do(method, "/v1/kv/k", "").is(t, 504, cluster.CodeOutcomeUnknown)
			if p.Retryable {
				t.Errorf("%s: an unknown outcome says retryable", method)
			}
		}
		n.do("PATCH", "/admin/members/n1", `{"priority":3}`, "Content-Type", "application/json").is(t, 504, cluster.CodeOutcomeUnknown)
		// The second answer would be that there was nothing to end.
		n.do("DELETE", "/v1/sessions?prefix=job-", "").is(t, 504, cluster.CodeOutcomeUnknown)
		if got := requests.Load(); got != 4 {
			t.Errorf("four writes were sent %d times", got)
		}
		// A read may be sent as often as there is time for.
		n.do("GET", "/v1/kv/k", "").is(t, 503, cluster.CodeNoLeader)
		if got := requests.Load(); got < 6 {
			t.Errorf("the read was sent %d times", got-4)
		}
		// So may a write with a key, but what became of it stays unknown.
		n.do("PUT", "/v1/kv/k", "v", "Idempotency-Key", "i").is(t, 504, cluster.CodeOutcomeUnknown)
	})
}

// TestForward_ReadRetriedWhenLeaderHangs: as soon as there is another leader, a
// read, and a write that may be repeated, go there.
func TestForward_ReadRetriedWhenLeaderHangs(t *testing.T) {
	virtual(t, func(t *testing.T) {
		addr, requests := brokenLeader(t, true)
		n := followerOf(t, addr, func(d *Deps) { d.TimeoutMax = 5 * time.Second })
		answers := make(chan reply, 2)
		go func() { answers <- n.do("GET", "/v1/kv?prefix=k", "") }()
		go func() { answers <- n.do("PUT", "/v1/kv/k", "v", "Idempotency-Key", "i") }()
		eventually(t, func() bool { return requests.Load() == 2 })
		n.becomeLeader(t)
		for range 2 {
			if r := <-answers; r.status != 200 {
				t.Errorf("%+v", r)
			}
		}
	})
}

// TestForward_WriteUnknownWhenLeaderHangs: it need not wait for its whole
// timeout once another node leads.
func TestForward_WriteUnknownWhenLeaderHangs(t *testing.T) {
	virtual(t, func(t *testing.T) {
		addr, requests := brokenLeader(t, true)
		n := followerOf(t, addr)
		answer := make(chan reply)
		go func() { answer <- n.do("PUT", "/v1/kv/k?timeout_ms=30000", "v") }()
		eventually(t, func() bool { return requests.Load() == 1 })
		start := time.Now()
		n.becomeLeader(t)
		(<-answer).is(t, 504, cluster.CodeOutcomeUnknown)
		if took := time.Since(start); took > 10*time.Second {
			t.Errorf("took %v", took)
		}
	})
}

// TestForward_ReturnsResponseOfDeposedLeader: leadership has moved, as in a planned
// transfer, but the one who led still answers what it was sent.
func TestForward_ReturnsResponseOfDeposedLeader(t *testing.T) {
	virtual(t, func(t *testing.T) {
		leader, follower := pair(t, func(d *Deps) { d.TimeoutMax = 5 * time.Second })
		proposed, finish := make(chan struct{}), make(chan struct{})
		leader.fake.set(func() {
			leader.fake.propose = func(context.Context, state.Command) (state.Result, error) {
				close(proposed)
				<-finish
				return state.Result{Revision: 7}, nil
			}
		})
		answer := make(chan reply)
		go func() { answer <- follower.do("PUT", "/v1/kv/k", "v") }()
		<-proposed
		follower.becomeLeader(t)
		follower.waitForLeaderView()
		close(finish)
		if r := <-answer; r.status != 200 || !strings.Contains(r.body, `"revision":7`) {
			t.Errorf("%+v", r)
		}
	})
}

func TestForwardEndsWithTheTimeout(t *testing.T) {
	virtual(t, func(t *testing.T) {
		addr, _ := brokenLeader(t, true)
		n := followerOf(t, addr)
		n.do("PUT", "/v1/kv/k?timeout_ms=50", "v").is(t, 504, cluster.CodeOutcomeUnknown)
		n.do("GET", "/v1/kv/k?timeout_ms=50", "").is(t, 503, cluster.CodeNoLeader)
	})
}

// TestForward_ManyConcurrentRequests: 256 clients of a follower share a bounded pool of
// connections, and none gets an error.
func TestForward_ManyConcurrentRequests(t *testing.T) {
	virtual(t, func(t *testing.T) {
		_, follower := pair(t)
		var failed atomic.Int64
		var wg sync.WaitGroup
		for i := range 256 {
			wg.Go(func() {
				for j := range 4 {
					if r := follower.do("PUT", fmt.Sprintf("/v1/kv/%d-%d", i, j), "v"); r.status != 200 {
						failed.Add(1)
					}
				}
			})
		}
		wg.Wait()
		if failed.Load() != 0 {
			t.Errorf("%d requests failed", failed.Load())
		}
	})
}
