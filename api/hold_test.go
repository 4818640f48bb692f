package api

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"northstar/cluster"
	"northstar/state"
)

// inBubble runs a server without a listener in virtual time.
func inBubble(t *testing.T, f *fakeCluster, change func(*Deps),
	test func(s *Server, ask func(method, path string) *httptest.ResponseRecorder),
) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := testDeps(f)
		if change != nil {
			change(&d)
		}
		f.set(func() { f.changed = make(chan struct{}) }) // one of the bubble
		s, err := New(d)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); _ = s.Run(ctx) }()
		synctest.Wait()
		test(s, func(method, path string) *httptest.ResponseRecorder {
			r := httptest.NewRequest(method, "http://127.0.0.1"+path, strings.NewReader("v"))
			r.RemoteAddr = "127.0.0.1:5"
			w := httptest.NewRecorder()
			s.ServeHTTP(w, r)
			return w
		})
		cancel()
		<-done
	})
}

func TestQueue_EndsAfterTwiceTheTimeout(t *testing.T) {
	inBubble(t, newFakeCluster("n1", false), nil, func(s *Server, ask func(string, string) *httptest.ResponseRecorder) {
		for _, tc := range []struct {
			method, path string
			want         time.Duration
		}{
			{"PUT", "/v1/kv/k", 600 * time.Millisecond},
			{"GET", "/v1/kv/k", 600 * time.Millisecond},
			{"PUT", "/v1/kv/k?redirect", 600 * time.Millisecond},
			{"PUT", "/v1/kv/k?timeout_ms=100", 100 * time.Millisecond},
		} {
			start := time.Now()
			var counted atomic.Int64
			time.AfterFunc(50*time.Millisecond, func() { counted.Store(int64(s.QueuedWrites())) })
			w := ask(tc.method, tc.path)
			if held := counted.Load(); held == 1 != (tc.method == "PUT") || s.QueuedWrites() != 0 {
				t.Errorf("%s %s: counted as %d held writes, and %d after", tc.method, tc.path, held, s.QueuedWrites())
			}
			if took := time.Since(start); w.Code != 503 || took != tc.want {
				t.Errorf("%s %s: %d after %v, want %v", tc.method, tc.path, w.Code, took, tc.want)
			}
			if !strings.Contains(w.Body.String(), `"code":4002`) || w.Header().Get("Retry-After") != "1" || !strings.Contains(w.Body.String(), `"retryable":true`) {
				t.Errorf("%s %s: %s %v", tc.method, tc.path, w.Body, w.Header())
			}
		}
	})
}

// A timeout in the queue names the reason why the leader is not ready, because an operator may have to fix it.
// A follower names that reason, too.
func TestQueue_TimeoutNamesLeaderProblem(t *testing.T) {
	virtual(t, func(t *testing.T) {
		leader, follower := pair(t)
		leader.fake.set(func() {
			leader.fake.propose = func(context.Context, state.Command) (state.Result, error) {
				return state.Result{}, cluster.Errorf(cluster.CodeNoLeader, "some lock is missing")
			}
		})
		says := func(n *node, path string) {
			t.Helper()
			p := n.do("PUT", path, "v").is(t, 503, cluster.CodeNoLeader)
			if !strings.Contains(p.Detail, "leader n1 (term 2) is not ready") ||
				!strings.Contains(p.Detail, "some lock is missing") {
				t.Error(p.Detail)
			}
		}
		says(leader, "/v1/kv/k")
		says(leader, "/v1/kv/k?timeout_ms=100") // less than the hold
		says(follower, "/v1/kv/k")
	})
}

func TestQueue_RequestContinuesWithLeader(t *testing.T) {
	f := newFakeCluster("n1", false)
	inBubble(t, f, nil, func(_ *Server, ask func(string, string) *httptest.ResponseRecorder) {
		go func() {
			time.Sleep(250 * time.Millisecond)
			f.lead("n1", 3)
		}()
		start := time.Now()
		if w := ask("PUT", "/v1/kv/k"); w.Code != 200 || time.Since(start) != 250*time.Millisecond {
			t.Errorf("%d %s after %v", w.Code, w.Body, time.Since(start))
		}
	})
}

// Neither requests nor clients are sent to a leader whose process is dead.
func TestQueue_WhileLeaderIsDead(t *testing.T) {
	f := newFakeCluster("n1", false)
	asked := atomic.Int64{}
	inBubble(t, f, func(d *Deps) {
		d.LeaderProcessDead = func(id cluster.NodeID, term uint64) bool { return id == "n2" && term == 2 }
		d.AddressOf = func(cluster.NodeID) string { return "127.0.0.1:1" }
		d.Dial = func(context.Context, string) (net.Conn, error) {
			asked.Add(1)
			return nil, errors.New("refused")
		}
	}, func(_ *Server, ask func(string, string) *httptest.ResponseRecorder) {
		for term, path := range map[uint64]string{2: "/v1/kv/k", 12: "/v1/kv/k?redirect"} {
			f.lead("n2", 2)
			synctest.Wait()
			start := time.Now()
			time.AfterFunc(40*time.Millisecond, func() { f.lead("n1", term+1) })
			if w := ask("PUT", path); w.Code != 200 || time.Since(start) != 40*time.Millisecond || asked.Load() > 0 {
				t.Errorf("%s: %d %s after %v, %d dials", path, w.Code, w.Body, time.Since(start), asked.Load())
			}
		}
		f.lead("n2", 30)
		synctest.Wait()
		if w := ask("PUT", "/v1/kv/k?redirect"); w.Code != http.StatusTemporaryRedirect {
			t.Errorf("another process: %d %s", w.Code, w.Body)
		}
	})
}

// TestQueue_WhileLeaderStarts: raft says leader before the first entry of the
// term is applied.
func TestQueue_WhileLeaderStarts(t *testing.T) {
	f := newFakeCluster("n1", true)
	inBubble(t, f, nil, func(_ *Server, ask func(string, string) *httptest.ResponseRecorder) {
		start := time.Now()
		f.set(func() {
			f.barrier = func(context.Context) error {
				if time.Since(start) < 30*time.Millisecond {
					return cluster.Errorf(cluster.CodeNoLeader, "not yet")
				}
				return nil
			}
		})
		if w := ask("GET", "/v1/kv/k"); w.Code != 404 || time.Since(start) > 100*time.Millisecond {
			t.Errorf("%d after %v", w.Code, time.Since(start))
		}
	})
}

func TestQueue_IsBounded(t *testing.T) {
	f := newFakeCluster("n1", false)
	inBubble(t, f, func(d *Deps) { d.Limits.QueuedForLeader = 2 },
		func(s *Server, ask func(string, string) *httptest.ResponseRecorder) {
			answers := make(chan int, 2)
			for range 2 {
				go func() { answers <- ask("PUT", "/v1/kv/k").Code }()
			}
			synctest.Wait()
			w := ask("PUT", "/v1/kv/k")
			if w.Code != 503 || !strings.Contains(w.Body.String(), `"code":4017`) {
				t.Errorf("third: %d %s", w.Code, w.Body)
			}
			for range 2 {
				if got := <-answers; got != 503 {
					t.Errorf("held: %d", got)
				}
			}
			if s.queued.Load() != 0 {
				t.Errorf("%d are still held", s.queued.Load())
			}
		})
}

func TestStaleReadsNeedNoLeader(t *testing.T) {
	virtual(t, func(t *testing.T) {
		f := newFakeCluster("n1", false)
		f.put("k", "v")
		n := startServer(t, f)
		r := n.do("GET", "/v1/kv/k?consistency=stale", "")
		// It never heard from a leader: the answer is at least as old as the process.
		if r.status != 200 || r.body != "v" || len(r.header.Get("X-Northstar-Last-Contact-Ms")) < 4 {
			t.Errorf("%+v", r)
		}
		if r := n.do("GET", "/v1/kv?consistency=stale", ""); r.status != 200 ||
			r.header.Get("X-Northstar-Last-Contact-Ms") == "" {
			t.Errorf("list: %+v", r)
		}
	})
}

// TestStaleReadAfterARestart: a node that has restarted without a quorum has what was acknowledged in its log, and not
// in its state.
func TestStaleReadAfterARestart(t *testing.T) {
	virtual(t, func(t *testing.T) {
		f := newFakeCluster("n1", false)
		n := startServer(t, f)
		f.set(func() { f.st.CaughtUp, f.st.AppliedIndex, f.st.StartLogIndex = false, 0, 0 }) // Raft has not started
		n.do("GET", "/v1/kv/k?consistency=stale", "").is(t, 503, cluster.CodeNoLeader)
		f.set(func() { f.st.AppliedIndex, f.st.StartLogIndex, f.st.LastLogIndex = 6, 7, 7 })
		// Old changes must not look new, nor a pause be forgotten.
		for _, path := range []string{"/v1/watch", "/v1/roles/r/watch", "/admin/auto-failover"} {
			n.do("GET", path, "").is(t, 503, cluster.CodeNoLeader)
		}
		for _, path := range []string{"/v1/kv/k", "/v1/kv", "/v1/roles", "/v1/roles/r", "/v1/sessions", "/v1/nodes"} {
			r := n.do("GET", path+"?consistency=stale", "").is(t, 503, cluster.CodeNoLeader)
			if !strings.Contains(r.Detail, "has not learned") {
				t.Errorf("%s: %s", path, r.Detail)
			}
		}
		for what, change := range map[string]func(){
			"it has caught up": func() { f.st.CaughtUp = true },
			"it has applied its log of then, and a leader sends more": func() {
				f.st.CaughtUp, f.st.AppliedIndex, f.st.LastLogIndex = false, 7, 8
			},
		} {
			f.set(change)
			if r := n.do("GET", "/v1/kv/k?consistency=stale", ""); r.status != 404 {
				t.Errorf("%s: %+v", what, r)
			}
		}
	})
}

func TestUnknownOutcomes(t *testing.T) {
	virtual(t, func(t *testing.T) {
		f := newFakeCluster("n1", true)
		n := startServer(t, f)
		f.set(func() {
			f.propose = func(ctx context.Context, _ state.Command) (state.Result, error) {
				<-ctx.Done()
				return state.Result{}, ctx.Err()
			}
			f.barrier = func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
		})
		if p := n.do("PUT", "/v1/kv/k?timeout_ms=30", "v").is(t, 504, cluster.CodeOutcomeUnknown); p.Retryable {
			t.Error("unknown and retryable")
		}
		if p := n.do("GET", "/v1/kv/k?timeout_ms=30", "").is(t, 503, cluster.CodeNoLeader); !p.Retryable {
			t.Error("a read is not retryable")
		}
	})
}

// A write with a key that may have taken effect stays unknown, though a later try
// was turned away: what turned that away says nothing of the first.
func TestForward_KeepsUnknownOutcome(t *testing.T) {
	virtual(t, func(t *testing.T) {
		for _, later := range []cluster.Code{cluster.CodeReadOnly, cluster.CodeBusy, cluster.CodeNoLeader} {
			f := newFakeCluster("n1", true)
			tries := 0
			f.propose = func(context.Context, state.Command) (state.Result, error) {
				if tries++; tries == 1 {
					return state.Result{}, cluster.Errorf(cluster.CodeOutcomeUnknown, "the first")
				}
				return state.Result{}, cluster.Errorf(later, "turned away")
			}
			n := startServer(t, f)
			if p := n.do("PUT", "/v1/kv/k", "v", "Idempotency-Key", "i").is(t, 504,
				cluster.CodeOutcomeUnknown); p.Retryable {
				t.Errorf("%d after unknown: retryable", later)
			}
			if tries < 2 {
				t.Errorf("%d tries", tries)
			}
		}
	})
}

// The same where the tries are made at the leader for another node.
func TestForward_KeepsUnknownOutcomeAfterLaterRefusal(t *testing.T) {
	virtual(t, func(t *testing.T) {
		leader := newFakeCluster("n2", true)
		tries := 0
		leader.propose = func(context.Context, state.Command) (state.Result, error) {
			if tries++; tries == 1 {
				panic(http.ErrAbortHandler) // the connection breaks
			}
			return state.Result{}, cluster.Errorf(cluster.CodeReadOnly, "turned away")
		}
		n := followerOf(t, startServer(t, leader).addr)
		n.do("PUT", "/v1/kv/k", "v", "Idempotency-Key", "i").is(t, 504, cluster.CodeOutcomeUnknown)
		if tries < 2 {
			t.Errorf("%d tries", tries)
		}
	})
}

// TestErrorsOfProposals: each comes through with its code.
func TestErrorsOfProposals(t *testing.T) {
	virtual(t, func(t *testing.T) {
		for code, status := range map[cluster.Code]int{
			cluster.CodeBusy: 503, cluster.CodeReadOnly: 503, cluster.CodeOutcomeUnknown: 504,
			cluster.CodeInternal: 500,
		} {
			f := newFakeCluster("n1", true)
			f.propose = func(context.Context, state.Command) (state.Result, error) {
				return state.Result{}, cluster.Errorf(code, "as the test says")
			}
			n := startServer(t, f)
			r := n.do("PUT", "/v1/kv/k", "v")
			p := r.is(t, status, code)
			if p.Retryable != code.Retryable() || p.Retryable != (r.header.Get("Retry-After") != "") {
				t.Errorf("%d: retryable %v, Retry-After %q", code, p.Retryable, r.header.Get("Retry-After"))
			}
			if p.LeaderID != "n1" || p.LeaderAddress != n.addr {
				t.Errorf("%d names leader %s at %s", code, p.LeaderID, p.LeaderAddress)
			}
		}
	})
}

func TestDraining_RejectsWrites(t *testing.T) {
	virtual(t, func(t *testing.T) {
		leader, follower := pair(t)
		leader.Drain()
		leader.Drain() // does nothing more
		leader.do("PUT", "/v1/kv/k", "v").is(t, 503, cluster.CodeNoLeader)
		if r := leader.do("GET", "/readyz", ""); r.status != http.StatusServiceUnavailable {
			t.Errorf("/readyz: %+v", r)
		}
		if r := leader.do("GET", "/status", ""); !strings.Contains(r.body, `"lifecycle":"draining"`) {
			t.Errorf("/status: %s", r.body)
		}
		// Once leadership has moved, the same request goes there.
		answer := make(chan reply)
		go func() { answer <- leader.do("PUT", "/v1/kv/k", "v") }()
		eventually(t, func() bool { return leader.queued.Load() == 1 })
		leader.fake.addRecord(cluster.Member{ID: "n2", HTTPAddress: follower.addr})
		follower.fake.lead("n2", 3)
		leader.fake.lead("n2", 3)
		if r := <-answer; r.status != 200 {
			t.Errorf("%+v", r)
		}
	})
}

// A configured time takes the place of twice the timeout.
func TestQueue_EndsAfterHold(t *testing.T) {
	for _, hold := range []time.Duration{time.Millisecond, 2 * time.Second} {
		t.Run(hold.String(), func(t *testing.T) {
			inBubble(t, newFakeCluster("n1", false), func(d *Deps) { d.Hold = hold },
				func(_ *Server, ask func(string, string) *httptest.ResponseRecorder) {
					start := time.Now()
					if w := ask("PUT", "/v1/kv/k"); w.Code != 503 || time.Since(start) != hold {
						t.Errorf("%d after %v, want 503 after %v", w.Code, time.Since(start), hold)
					}
				})
		})
	}
}
