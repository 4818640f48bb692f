package client

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"northstar/api/apiv1"
	"northstar/cluster"
)

// renewed returns the sessions that a request renews; none for other requests.
func renewed(r *http.Request) []string {
	if id, ok := strings.CutSuffix(r.URL.Path, "/renew"); ok && r.URL.Path != apiv1.PathRenew {
		return []string{strings.TrimPrefix(id, apiv1.PathSessions+"/")}
	}
	if r.URL.Path != apiv1.PathRenew {
		return nil
	}
	body, _ := io.ReadAll(r.Body)
	r.Body = io.NopCloser(bytes.NewReader(body))
	var in apiv1.RenewMany
	_ = json.Unmarshal(body, &in)
	return in.SessionIDs
}

// stall holds all requests that renew a session selected by is. They get no response.
func (f *fakeRoles) stall(is func(id string) bool) {
	f.reject = func(r *http.Request) error {
		if slices.ContainsFunc(renewed(r), is) {
			<-r.Context().Done()
			return r.Context().Err()
		}
		return nil
	}
}

// renewRequests counts the requests that renew one session and those that renew many.
func (fc *fakeCluster) renewRequests() (one, many int) {
	for name := range fc.nodes {
		for _, r := range fc.requests(name) {
			switch {
			case r.URL.Path == apiv1.PathRenew:
				many++
			case strings.HasSuffix(r.URL.Path, "/renew"):
				one++
			}
		}
	}
	return one, many
}

func startSessions(t *testing.T, c *Client, n int, ttl, apart time.Duration) []*Session {
	t.Helper()
	out := make([]*Session, n)
	for i := range out {
		out[i] = mustSession(t, c, SessionConfig{TTL: ttl})
		time.Sleep(apart)
	}
	return out
}

// Sessions are renewed in few requests, on time, and within the server's limit for one request. They started at the
// same time or spread out.
func TestRenewBatch_GroupsSessions(t *testing.T) {
	t.Parallel()
	for apart, n := range map[time.Duration]int{0: 1100, 10 * time.Millisecond: 300} {
		t.Run(fmt.Sprint(apart), func(t *testing.T) {
			bubble(t, func(t *testing.T, fc *fakeCluster) {
				f := fc.withRoles()
				c := fc.client("n1", "n2", "n3")
				defer c.Close()
				const seconds = 30
				var largest atomic.Int64
				f.reject = func(r *http.Request) error {
					largest.Store(max(largest.Load(), int64(len(renewed(r)))))
					return nil
				}
				all := startSessions(t, c, n, 9*time.Second, apart)
				time.Sleep(9 * time.Second)
				synctest.Wait()
				before := f.renewals
				oneBefore, manyBefore := fc.renewRequests()
				for range seconds {
					time.Sleep(time.Second)
					for _, s := range all {
						if left := s.ValidFor(); left < 5050*time.Millisecond || left > 8100*time.Millisecond {
							t.Fatalf("%s is valid for %v", s.ID(), left)
						}
					}
				}
				synctest.Wait()
				one, many := fc.renewRequests()
				requests, each := one-oneBefore+many-manyBefore, float64(f.renewals-before)/float64(n)
				if requests > seconds*5 {
					t.Errorf("%d requests in %d s", requests, seconds)
				}
				if l := largest.Load(); l > apiv1.MaxRenewals || l < 10 {
					t.Errorf("%d sessions in one request", l)
				}
				if each < seconds/3 || each > seconds/2.4 {
					t.Errorf("%.1f renewals of each in %d s, want one in 3 s, and a few more in shared batches", each,
						seconds)
				}
			}, "n1", "n2", "n3")
		})
	}
}

// A single session is renewed on time, by a request of its own.
func TestRenewBatch_SingleSession(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, fc *fakeCluster) {
		fc.withRoles()
		c := fc.client("n1")
		defer c.Close()
		mustSession(t, c, SessionConfig{TTL: 3 * time.Second})
		begun := time.Now()
		for n := 1; n <= 30; n++ {
			for one, _ := fc.renewRequests(); one < n; one, _ = fc.renewRequests() {
				time.Sleep(10 * time.Millisecond)
			}
			within(t, begun, 900*time.Millisecond, 1010*time.Millisecond)
			begun = time.Now()
		}
		if one, many := fc.renewRequests(); one != 30 || many != 0 {
			t.Errorf("%d requests for one, %d for many", one, many)
		}
	}, "n1")
}

// Each session's lease counts from when the request was sent, by its own clock, however late the response is.
func TestRenewBatch_CountsFromSendTime(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, fc *fakeCluster) {
		f := fc.withRoles()
		c := fc.client("n1")
		defer c.Close()
		f.reject = func(r *http.Request) error {
			if len(renewed(r)) > 0 {
				_ = pause(r.Context(), 1500*time.Millisecond)
			}
			return nil
		}
		all := startSessions(t, c, 20, 9*time.Second, 0)
		ahead := newClock()
		ahead.jump(time.Hour)
		all = append(all, mustSession(t, c, SessionConfig{TTL: 9 * time.Second, Clock: ahead.now}))
		time.Sleep(9 * time.Second)
		shortest, longest := time.Hour, time.Duration(0)
		for range 3000 {
			time.Sleep(10 * time.Millisecond)
			for _, s := range all {
				shortest, longest = min(shortest, s.ValidFor()), max(longest, s.ValidFor())
			}
		}
		if longest > 6600*time.Millisecond {
			t.Errorf("valid for %v after a response that took 1.5 s, want 8.1 s from the request", longest)
		}
		if shortest < 3500*time.Millisecond {
			t.Errorf("valid for %v at least: the next renewal is due a third of the TTL after the sending of the last",
				shortest)
		}
		if _, many := fc.renewRequests(); many == 0 {
			t.Error("they were not renewed together")
		}
	}, "n1")
}

// Only the session that the response lists as ended ends, and only the session listed as revoked loses its role.
func TestRenewBatch_AffectsOnlyNamedSessions(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, fc *fakeCluster) {
		f := fc.withRoles()
		f.reject = func(r *http.Request) error {
			if r.Method == http.MethodGet && strings.HasPrefix(r.URL.Path, apiv1.PathRoles) {
				return fail(cluster.CodeInternal) // so that a renewal reports it
			}
			return nil
		}
		c := fc.client("n1")
		defer c.Close()
		all := startSessions(t, c, 10, 9*time.Second, 0)
		tenures := make([]*Leadership, len(all))
		for i, s := range all {
			var err error
			if tenures[i], err = s.campaign(t.Context(), CandidateConfig{Role: fmt.Sprint("r", i)}); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Second)
		_ = f.end(all[7].ID(), "expired")
		f.evict("r8")
		select {
		case <-all[7].Done():
		case <-time.After(3 * time.Second): // its next renewal
			t.Fatal("role loss not reported")
		}
		var revoked *cluster.Error
		if err := all[7].Err(); !errors.Is(err, ErrSessionEnded) ||
			!errors.As(err, &revoked) || !strings.Contains(err.Error(), all[7].ID()) {
			t.Error(err)
		}
		start := time.Now()
		<-tenures[8].Done()
		within(t, start, 0, 10*time.Millisecond) // renewed in one batch
		if !errors.Is(tenures[8].Cause(), ErrRoleLost) {
			t.Error(tenures[8].Cause())
		}
		_, err := all[8].campaign(t.Context(), CandidateConfig{Role: "other"}) // the session continues
		if err != nil {
			t.Error(err)
		}
		all[8].markReleased(t.Context(), "r8")
		time.Sleep(20 * time.Second)
		for i, s := range all {
			if i == 7 {
				continue
			}
			if s.Err() != nil || s.ValidFor() == 0 || (tenures[i].Cause() != nil) != (i == 8) {
				t.Errorf("session %d: %v, valid for %v, tenure %v", i, s.Err(), s.ValidFor(), tenures[i].Cause())
			}
		}
	}, "n1")
}

// A request for many sessions gets a response meant for one: it ends no session. A session that the response does
// not mention counts as not renewed.
func TestRenewBatch_RequestErrorEndsNoSession(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]func(w http.ResponseWriter){
		"ended":  func(w http.ResponseWriter) { problem(w, fail(cluster.CodeSessionEnded)) },
		"fenced": func(w http.ResponseWriter) { problem(w, fail(cluster.CodeFenced)) },
		"empty":  func(w http.ResponseWriter) { reply(w, apiv1.RenewedMany{}) },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, fc *fakeCluster) {
				fc.withRoles()
				n := fc.nodes["n1"]
				usual := n.handle
				var once atomic.Bool
				n.handle = func(w http.ResponseWriter, r *http.Request) {
					if strings.HasSuffix(r.URL.Path, "/renew") && !once.Swap(true) {
						answer(w)
						return
					}
					usual(w, r)
				}
				c := fc.client("n1")
				defer c.Close()
				all := startSessions(t, c, 3, 3*time.Second, 0)
				n.requireBatches(t)
				time.Sleep(500 * time.Millisecond)
				for _, s := range all {
					if left := s.ValidFor(); s.Err() != nil || left < time.Second {
						t.Errorf("%v, valid for %v", s.Err(), left)
					}
				}
			}, "n1")
		})
	}
}

func (n *fakeNode) requireBatches(t *testing.T) {
	t.Helper()
	for range 400 {
		if _, many := n.fc.renewRequests(); many > 0 {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatal("no batch was sent")
}

// A hung request delays no session outside its batch.
func TestRenew_SlowBatchDoesNotDelayOthers(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, fc *fakeCluster) {
		f := fc.withRoles()
		c := fc.client("n1", "n2", "n3")
		defer c.Close()
		var stuck atomic.Value
		stuck.Store("")
		f.stall(func(id string) bool { return id == stuck.Load() })
		all := startSessions(t, c, 100, 9*time.Second, 30*time.Millisecond)
		time.Sleep(9 * time.Second)
		stuck.Store(all[0].ID())
		time.Sleep(20 * time.Second)
		lapsed := 0
		for range 300 {
			time.Sleep(100 * time.Millisecond)
			n := 0
			for _, s := range all {
				if s.ValidFor() == 0 {
					n++
				}
			}
			lapsed = max(lapsed, n)
		}
		// A batch has about a tenth of the sessions, and the requests that hang are two or three.
		if lapsed < 1 || lapsed > 40 {
			t.Errorf("%d of 100 sessions have lapsed, want only those in the batches that hang", lapsed)
		}
	}, "n1", "n2", "n3")
}

// A session with a short TTL is renewed and given up at its own time, independently of sessions with longer TTLs.
func TestRenewBatch_ShortTTLNotDelayed(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, fc *fakeCluster) {
		f := fc.withRoles()
		c := fc.client("n1", "n2", "n3")
		defer c.Close()
		long := map[string]bool{}
		var stuck atomic.Bool
		f.stall(func(id string) bool { return stuck.Load() && long[id] })
		for _, ttl := range []time.Duration{1010 * time.Millisecond, 5 * time.Second, time.Minute} {
			for range 5 {
				long[mustSession(t, c, SessionConfig{TTL: ttl}).ID()] = true
			}
		}
		short := mustSession(t, c, SessionConfig{TTL: 500 * time.Millisecond})
		time.Sleep(5 * time.Second)
		stuck.Store(true)
		for range 6000 {
			time.Sleep(10 * time.Millisecond)
			if left := short.ValidFor(); left < 250*time.Millisecond {
				t.Fatalf("valid for %v", left)
			}
		}
	}, "n1", "n2", "n3")
}

// Without responses, each tenure ends at its own time and closes its gate.
func TestRenew_LateRenewalsCloseGates(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, fc *fakeCluster) {
		fc.withRoles()
		c := fc.client("n1", "n2")
		defer c.Close()
		clocks, gates := make([]*clock, 100), make([]Gate, 100)
		all := make([]*Session, len(gates))
		for i := range all {
			clocks[i] = newClock()
			all[i] = mustSession(t, c, SessionConfig{TTL: 9 * time.Second, Clock: clocks[i].now})
			l, err := all[i].campaign(t.Context(), CandidateConfig{Role: fmt.Sprint("r", i)})
			if err != nil {
				t.Fatal(err)
			}
			gates[i].Bind(l)
			time.Sleep(20 * time.Millisecond)
		}
		time.Sleep(20 * time.Second)
		clocks[3].jump(8100 * time.Millisecond) // as if this process had been suspended
		ends := make([]time.Time, len(all))
		for i, s := range all {
			if err := gates[i].Require(); (err != nil) != (i == 3) {
				t.Fatalf("gate %d: %v", i, err)
			}
			ends[i] = time.Now().Add(s.ValidFor())
		}
		fc.hang("n1")
		fc.hang("n2")
		for range 820 {
			for i := range gates {
				if err := gates[i].Require(); (err == nil) != time.Now().Before(ends[i]) {
					t.Fatalf("gate %d, %v after the end of its lease: %v", i, time.Since(ends[i]), err)
				}
			}
			time.Sleep(10 * time.Millisecond)
		}
	}, "n1", "n2")
}

// The renewer runs while there are sessions, and starts again with the next one.
func TestRenewer_StopsWithLastSession(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, fc *fakeCluster) {
		f := fc.withRoles()
		c := fc.client("n1")
		defer c.Close()
		var hangs atomic.Bool
		var stuck atomic.Int64
		f.reject = func(r *http.Request) error {
			if !hangs.Load() || len(renewed(r)) == 0 {
				return nil
			}
			stuck.Add(1)
			defer stuck.Add(-1)
			<-r.Context().Done()
			return r.Context().Err()
		}
		runs := func() bool {
			synctest.Wait()
			c.renewer.mu.Lock()
			defer c.renewer.mu.Unlock()
			return c.renewer.running
		}
		for range 3 {
			if runs() {
				t.Fatal("runs without a session")
			}
			a, b := mustSession(t, c, SessionConfig{}), mustSession(t, c, SessionConfig{})
			time.Sleep(time.Minute)
			if err := a.Close(t.Context()); err != nil || !runs() {
				t.Fatalf("%v; runs: %v", err, runs())
			}
			hangs.Store(true)
			for stuck.Load() == 0 {
				time.Sleep(100 * time.Millisecond)
			}
			if err := b.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
			if runs() || stuck.Load() != 0 {
				t.Fatalf("runs: %v, %d requests go on", runs(), stuck.Load())
			}
			hangs.Store(false)
		}
	}, "n1")
}

// Closing a session does not wait for a renewal request in flight.
func TestSessionClose_DoesNotWaitForRenewal(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, fc *fakeCluster) {
		f := fc.withRoles()
		c := fc.client("n1")
		defer c.Close()
		f.stall(func(string) bool { return true })
		all := startSessions(t, c, 10, 9*time.Second, 0)
		fc.nodes["n1"].requireBatches(t)
		start := time.Now()
		if err := all[0].Close(t.Context()); err != nil {
			t.Error(err)
		}
		within(t, start, 0, 10*time.Millisecond)
	}, "n1")
}

// If a batch is rejected, each session is renewed by a request of its own.
func TestRenewBatch_Refused(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, fc *fakeCluster) {
		f := fc.withRoles()
		f.reject = func(r *http.Request) error {
			if r.URL.Path == apiv1.PathRenew {
				return notFound()
			}
			return nil
		}
		c := fc.client("n1", "n2")
		defer c.Close()
		all := startSessions(t, c, 50, 9*time.Second, 0)
		for range 60 {
			time.Sleep(time.Second)
			for _, s := range all {
				if s.ValidFor() < 3*time.Second {
					t.Fatalf("%s is valid for %v", s.ID(), s.ValidFor())
				}
			}
		}
	}, "n1", "n2")
}

// However many sessions are renewed individually, the number of requests in flight is limited.
func TestRenew_ConcurrencyIsBounded(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, fc *fakeCluster) {
		f := fc.withRoles()
		var mu sync.Mutex
		inFlight, maxInFlightSeen := 0, 0
		f.reject = func(r *http.Request) error {
			switch len(renewed(r)) {
			case 0:
				return nil
			case 1:
			default:
				return notFound()
			}
			mu.Lock()
			inFlight++
			maxInFlightSeen = max(maxInFlightSeen, inFlight)
			mu.Unlock()
			time.Sleep(50 * time.Millisecond)
			mu.Lock()
			inFlight--
			mu.Unlock()
			return nil
		}
		c := fc.client("n1")
		defer time.Sleep(50 * time.Millisecond) // for requests in flight at the end
		defer c.Close()
		all := startSessions(t, c, 3*maxRenewRequests, 9*time.Second, 0)
		time.Sleep(15 * time.Second)
		for _, s := range all {
			if s.ValidFor() < 3*time.Second {
				t.Fatalf("%s is valid for %v", s.ID(), s.ValidFor())
			}
		}
		mu.Lock()
		defer mu.Unlock()
		if maxInFlightSeen != maxRenewRequests {
			t.Errorf("%d requests at the same time, want %d", maxInFlightSeen, maxRenewRequests)
		}
	}, "n1")
}

// Which sessions are renewed now, and in which batches.
func TestPlanBatches(t *testing.T) {
	t.Parallel()
	now := time.Now()
	names := map[*Session]string{}
	at := func(name string, ttl, due time.Duration, last renewResult) *renewalEntry {
		s := &Session{ttl: ttl}
		names[s] = name
		return &renewalEntry{s: s, due: now.Add(due), lastResult: last}
	}
	const s, ms = time.Second, time.Millisecond
	for name, tt := range map[string]struct {
		maxBatches int
		idle       []*renewalEntry
		want       string
	}{
		"none is due": {9, []*renewalEntry{at("a", 30*s, ms, 0), at("b", 30*s, ms, 0)}, ""},
		"those nearly due": {
			9, []*renewalEntry{at("a", 30*s, 0, 0), at("b", 30*s, s, 0), at("c", 30*s, s+ms, 0)}, "ab",
		},
		"the latest first": {9, []*renewalEntry{at("a", 30*s, -ms, 0), at("b", 30*s, -s, 0)}, "ba"},
		"the shortest first": {
			9, []*renewalEntry{at("a", 30*s, -s, 0), at("b", 31*s, -s, 0), at("c", 20*s, -ms, 0)}, "cab",
		},
		"not with shorter ones": {9, []*renewalEntry{at("a", 30*s, 0, 0), at("b", 29*s, ms, 0)}, "a"},
		"not with far longer": {
			9,
			[]*renewalEntry{at("a", 30*s, 0, 0), at("b", 60*s, s, 0), at("c", 61*s, s, 0)},
			"ab",
		},
		"by standing": {9, []*renewalEntry{
			at("a", 30*s, 0, renewSucceeded), at("b", 30*s, ms, renewFailed),
			at("c", 30*s, ms,
				renewSucceeded), at("d", 30*s, 2*ms, renewAlone),
		}, "ac"},
		"the failed together": {9, []*renewalEntry{
			at("a", 30*s, 0, renewFailed), at("b", 30*s, ms, renewFailed), at("c", 30*s, ms, renewSucceeded),
		}, "ab"},
		"each alone": {9, []*renewalEntry{at("a", 30*s, 0, renewAlone), at("b", 30*s, 0, renewAlone)}, "a b"},
		"no more than there may": {2, []*renewalEntry{
			at("a", 30*s, -3, renewAlone), at("b", 30*s, -2, renewAlone), at("c", 30*s, -1, renewAlone),
		}, "a b"},
		"none": {0, []*renewalEntry{at("a", 30*s, 0, 0)}, ""},
	} {
		var got []string
		for _, batch := range planBatches(tt.idle, now, tt.maxBatches) {
			line := ""
			for _, x := range batch {
				line += names[x.s]
			}
			got = append(got, line)
		}
		if strings.Join(got, " ") != tt.want {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
	var many []*renewalEntry
	for range 2500 {
		many = append(many, at("x", 30*s, 0, 0))
	}
	batches := planBatches(many, now, 9)
	if len(batches) != 3 || len(batches[0]) != apiv1.MaxRenewals || len(batches[2]) != 500 {
		t.Errorf("%d batches", len(batches))
	}
}
