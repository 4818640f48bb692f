package client

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"northstar/api/apiv1"
	"northstar/cluster"
)

// bubble runs f against a fake cluster in virtual time. A goroutine that is left at the end fails the test.
func bubble(t *testing.T, f func(t *testing.T, fc *fakeCluster), names ...string) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		fc := newFakeCluster(t, names...)
		f(t, fc)
		fc.close()
	})
}

func within(t *testing.T, start time.Time, lo, hi time.Duration) {
	t.Helper()
	if d := time.Since(start); d < lo || d > hi {
		t.Errorf("took %v, want %v to %v", d, lo, hi)
	}
}

// warmUp makes sure that the client knows the leader and all nodes.
func warmUp(t *testing.T, c *Client) {
	t.Helper()
	if _, err := c.Put(t.Context(), "first", nil, WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	synctest.Wait()
	if leader, _ := c.finder.leader(); leader == "" {
		t.Fatal("the leader is not known after a call")
	}
}

func TestRetry_DeadNodes(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, fc *fakeCluster) {
		c := fc.client("gone1", "gone2", "n1", "gone3")
		defer c.Close()
		start := time.Now()
		if _, err := c.Put(t.Context(), "k", []byte("v"), WriteOptions{}); err != nil {
			t.Fatal(err)
		}
		if e, err := c.Get(t.Context(), "k", ""); err != nil || string(e.Value) != "v" {
			t.Fatalf("Get = %+v, %v", e, err)
		}
		within(t, start, 0, 0)
	}, "n1", "n2", "n3")
}

// A call with a late deadline goes on however long no node is reachable, and so does a campaign: its session may live,
// and hold the role.
func TestRetry_LongOutage(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, fc *fakeCluster) {
		fc.withRoles()
		other := fc.client("n1")
		defer other.Close()
		s := mustSession(t, other, SessionConfig{})
		back := time.Now().Add(3 * time.Minute)
		c, err := New(Config{
			Endpoints: []string{"n1:1", "n2:1", "n3:1"},
			Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
				if time.Now().Before(back) {
					address = "away:1"
				}
				return fc.net.dial(ctx, network, address)
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		role, err := c.CampaignRole(t.Context(), "r", Campaign{SessionID: s.ID(), WaitMS: apiv1.MaxWaitMS})
		if err != nil || role.SessionID != s.ID() {
			t.Errorf("%+v, %v", role, err)
		}
		within(t, back, 0, time.Second)
	}, "n1", "n2", "n3")
}

func TestRetry_SilentDial(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, fc *fakeCluster) {
		c := fc.client("blackhole1", "blackhole2", "n1")
		defer c.Close()
		start := time.Now()
		if _, err := c.Put(t.Context(), "k", nil, WriteOptions{}); err != nil {
			t.Fatal(err)
		}
		within(t, start, 0, 200*time.Millisecond)
	}, "n1")
}

// The leader crashes during a write. Another node holds the write and applies it when the new leader is elected.
func TestLeaderCrash(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, fc *fakeCluster) {
		c := fc.client("n1", "n2", "n3")
		defer c.Close()
		warmUp(t, c)
		crash := make(chan struct{})
		fc.nodes["n1"].handle = func(_ http.ResponseWriter, r *http.Request) { close(crash); <-r.Context().Done() }
		go func() {
			<-crash
			fc.kill("n1")
			time.Sleep(7 * time.Millisecond) // the server's own failover time
			fc.elect("n2")
		}()
		start := time.Now()
		res, err := c.Put(t.Context(), "k", []byte("v"), WriteOptions{})
		if err != nil || res.Revision != 2 || fc.applied != 2 {
			t.Fatalf("Put = %+v, %v, %d applied", res, err, fc.applied)
		}
		within(t, start, 7*time.Millisecond, 9*time.Millisecond)
		first := fc.requests("n1")[len(fc.requests("n1"))-1].Header.Get(apiv1.HeaderIdempotencyKey)
		for _, name := range []string{"n2", "n3"} {
			for _, r := range fc.requests(name) {
				if got := r.Header.Get(apiv1.HeaderIdempotencyKey); r.URL.Path == "/v1/kv/k" &&
					(got != first || got == "") {
					t.Errorf("attempt at %s has key %q, the first had %q", name, got, first)
				}
			}
		}
	}, "n1", "n2", "n3")
}

// The leader hangs with open connections; the followers elect another one.
func TestLeaderHangs(t *testing.T) {
	t.Parallel()
	for name, call := range map[string]func(context.Context, *Client) error{
		"put": func(ctx context.Context, c *Client) error {
			_, err := c.Put(ctx, "k", []byte("v"), WriteOptions{})
			return err
		},
		"get": func(ctx context.Context, c *Client) error { _, err := c.Get(ctx, "first", ""); return err },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, fc *fakeCluster) {
				c := fc.client("n1", "n2", "n3")
				defer c.Close()
				warmUp(t, c)
				fc.hang("n1")
				time.AfterFunc(320*time.Millisecond, func() { fc.elect("n3") })
				start := time.Now()
				if err := call(t.Context(), c); err != nil {
					t.Fatal(err)
				}
				within(t, start, 320*time.Millisecond, 400*time.Millisecond)
				start = time.Now()
				if err := call(t.Context(), c); err != nil { // the next call is not delayed at all
					t.Fatal(err)
				}
				within(t, start, 0, time.Millisecond)
			}, "n1", "n2", "n3")
		})
	}
}

// The hung node no longer leads when the call starts, but the client does not know that.
func TestHungFormerLeader(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, fc *fakeCluster) {
		c := fc.client("n1", "n2", "n3")
		defer c.Close()
		warmUp(t, c)
		fc.hang("n1")
		fc.elect("n2")
		start := time.Now()
		if _, err := c.Put(t.Context(), "k", nil, WriteOptions{}); err != nil {
			t.Fatal(err)
		}
		within(t, start, 0, 200*time.Millisecond)
	}, "n1", "n2", "n3")
}

func TestHedge_SlowLeaderGetsNoCopies(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, fc *fakeCluster) {
		c := fc.client("n1", "n2", "n3")
		defer c.Close()
		warmUp(t, c)
		fc.nodes["n1"].handle = func(w http.ResponseWriter, _ *http.Request) {
			time.Sleep(1500 * time.Millisecond)
			reply(w, apiv1.PutResult{Revision: 9})
		}
		if res, err := c.Put(t.Context(), "k", nil, WriteOptions{}); err != nil || res.Revision != 9 {
			t.Fatalf("Put = %+v, %v", res, err)
		}
		sent := 0
		for name := range fc.nodes {
			for _, r := range fc.requests(name) {
				if r.URL.Path == "/v1/kv/k" {
					sent++
				}
			}
		}
		if sent != 1 {
			t.Errorf("%d requests were sent, want 1", sent)
		}
	}, "n1", "n2", "n3")
}

// Nor does a leader with more calls than connections.
func TestHedge_BusyLeaderGetsNoCopies(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, fc *fakeCluster) {
		c, err := New(Config{Endpoints: []string{"n1:1", "n2:1", "n3:1"}, ConnsPerNode: 2, Dial: fc.net.dial})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		warmUp(t, c)
		fc.nodes["n1"].handle = func(w http.ResponseWriter, _ *http.Request) {
			time.Sleep(300 * time.Millisecond)
			reply(w, apiv1.PutResult{Revision: 9})
		}
		var writers sync.WaitGroup
		for range 8 {
			writers.Go(func() {
				if _, err := c.Put(t.Context(), "k", nil, WriteOptions{}); err != nil {
					t.Error(err)
				}
			})
		}
		writers.Wait()
		for _, name := range []string{"n2", "n3"} {
			for _, r := range fc.requests(name) {
				if r.URL.Path == "/v1/kv/k" {
					t.Errorf("%s has got a copy", name)
				}
			}
		}
	}, "n1", "n2", "n3")
}

// A write without idempotency key is never cut short: that would make its outcome unknown.
func TestRetry_SlowNonIdempotentWriteWaits(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, fc *fakeCluster) {
		c := fc.client("n1", "n2")
		defer c.Close()
		warmUp(t, c)
		fc.nodes["n1"].handle = func(w http.ResponseWriter, _ *http.Request) {
			time.Sleep(2 * firstAttemptTimeout)
			reply(w, apiv1.PutResult{Revision: 9})
		}
		if res, err := c.Put(t.Context(), "k", nil, WriteOptions{NoIdempotencyKey: true}); err != nil ||
			res.Revision != 9 {
			t.Errorf("Put = %+v, %v", res, err)
		}
	}, "n1", "n2")
}

// The leader search ends with the calls that need it.
func TestLeaderPolling_StopsWhenIdle(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, fc *fakeCluster) {
		c := fc.client("n1", "n2", "n3")
		defer c.Close()
		warmUp(t, c)
		fc.hang("n1")
		time.AfterFunc(300*time.Millisecond, func() { fc.elect("n3") })
		for range 3 {
			if _, err := c.Put(t.Context(), "k", nil, WriteOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Second)
		before := fc.background()
		time.Sleep(time.Minute)
		if after := fc.background(); after != before || before == 0 {
			t.Errorf("%d probes while no call was in progress, after %d", after-before, before)
		}
	}, "n1", "n2", "n3")
}

func TestRedirectIsFollowed(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, fc *fakeCluster) {
		c := fc.client("n1", "n2")
		defer c.Close()
		c.nodes.markDown("http://n1:1", time.Now()) // n2 is asked first
		fc.nodes["n2"].handle = func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://n1:1"+r.URL.Path, http.StatusTemporaryRedirect)
		}
		if _, err := c.Put(t.Context(), "k", nil, WriteOptions{}); err != nil {
			t.Fatal(err)
		}
		if fc.values["k"] != "" || fc.applied != 1 {
			t.Errorf("%d writes applied, want 1", fc.applied)
		}
		if len(fc.requests("n2")) == 0 {
			t.Error("it was not redirected")
		}
	}, "n1", "n2")
}

// A proxy redirects to its login page. That must not get the token: it is no node.
func TestRedirectElsewhereIsNotFollowed(t *testing.T) {
	t.Parallel()
	for name, endpoints := range map[string][]string{"only": {"n2"}, "beside a node": {"n1", "n2"}} {
		for _, status := range []int{http.StatusTemporaryRedirect, http.StatusPermanentRedirect} {
			t.Run(fmt.Sprint(name, status), func(t *testing.T) {
				t.Parallel()
				bubble(t, func(t *testing.T, fc *fakeCluster) {
					c := fc.client(endpoints...)
					defer c.Close()
					alone := len(endpoints) == 1
					if fc.elect("n2"); !alone {
						warmUp(t, c) // n2 is asked first
					}
					fc.nodes["n2"].handle = func(w http.ResponseWriter, r *http.Request) {
						http.Redirect(w, r, "http://login:1"+r.URL.Path, status)
					}
					login := fc.net.listen("login:1")
					defer login.Close()
					go http.Serve(login, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
						t.Errorf("%s %s at another host", r.Method, r.URL)
					}))
					_, err := c.Put(t.Context(), "k", nil, WriteOptions{})
					if alone != (err != nil) || errors.Is(err, ErrOutcomeUnknown) {
						t.Errorf("Put: %v", err)
					}
					if slices.Contains(c.nodes.urls(), "http://login:1") {
						t.Error("the host counts as a node")
					}
					if len(fc.requests("n2")) == 0 {
						t.Error("it was not redirected")
					}
				}, "n1", "n2")
			})
		}
	}
}

// A former leader forwards calls: the next call goes directly to the new leader. If that never helps, for example
// behind a load balancer, the client searches only occasionally.
func TestRetry_ForwardedResponseUpdatesLeader(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, fc *fakeCluster) {
		c := fc.client("n1", "n2")
		defer c.Close()
		warmUp(t, c)
		fc.elect("n2")
		warmUp(t, c)
		before := len(fc.requests("n1"))
		warmUp(t, c)
		if n := len(fc.requests("n1")); n != before {
			t.Error("request to the old leader")
		}
		fc.nodes["n2"].handle = func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set(apiv1.HeaderLeader, "somewhere:1")
			reply(w, apiv1.PutResult{Revision: 1})
		}
		probes := fc.background()
		for range 20 {
			warmUp(t, c)
		}
		if n := fc.background() - probes; n > 4 {
			t.Errorf("%d leader probes because of 20 forwarded responses", n)
		}
	}, "n1", "n2")
}

// Another service at a member's address is skipped. As the only endpoint, it causes an error immediately.
func TestRetry_NotNorthStarServer(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, fc *fakeCluster) {
		fc.nodes["web"].handle = func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNotFound) }
		for range 10 {
			c := fc.client("n1", "web")
			if _, err := c.Put(t.Context(), "k", nil, WriteOptions{}); err != nil {
				t.Error(err)
			}
			c.Close()
		}
		c := fc.client("web")
		defer c.Close()
		c.refreshedAt.set(time.Now())
		start := time.Now()
		if _, err := c.Put(t.Context(), "k", nil, WriteOptions{}); !errors.Is(err, ErrNotFound) {
			t.Errorf("error %v, want the 404", err)
		}
		within(t, start, 0, 0)
	}, "n1", "web")
}

// A retryable error is retried for every class; other errors never.
func TestRetryable(t *testing.T) {
	t.Parallel()
	busy := cluster.Errorf(cluster.CodeBusy, "queue full")
	busy.RetryAfter = time.Second
	final := cluster.Errorf(cluster.CodeBusy, "queue full")
	final.NoRetry = true
	for name, tc := range map[string]struct {
		err   error
		calls int
		ok    bool
	}{
		"busy":             {busy, 3, true},
		"no leader":        {cluster.Errorf(cluster.CodeNoLeader, "none"), 3, true},
		"not retryable":    {final, 1, false},
		"condition failed": {cluster.Errorf(cluster.CodeConditionFailed, "revision is 7"), 1, false},
		"forbidden":        {cluster.Errorf(cluster.CodeForbidden, "observer"), 1, false},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, fc *fakeCluster) {
				c := fc.client("n1")
				defer c.Close()
				calls := 0
				fc.nodes["n1"].handle = func(w http.ResponseWriter, _ *http.Request) {
					if calls++; calls < 3 {
						problem(w, tc.err)
						return
					}
					reply(w, apiv1.PutResult{Revision: 5})
				}
				_, err := c.Put(t.Context(), "k", nil, WriteOptions{NoIdempotencyKey: true})
				var e *cluster.Error
				if ok := err == nil; ok != tc.ok || calls != tc.calls {
					t.Errorf("error %v after %d calls, want ok %v after %d", err, calls, tc.ok, tc.calls)
				}
				if !tc.ok && (!errors.As(err, &e) || e.Code != tc.err.(*cluster.Error).Code) {
					t.Errorf("error %v, want one that wraps %v", err, tc.err)
				}
			}, "n1")
		})
	}
}

func TestCloseEndsCalls(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, fc *fakeCluster) {
		c := fc.client("n1", "n2")
		warmUp(t, c)
		fc.hang("n1")
		fc.hang("n2")
		get, put := make(chan error, 1), make(chan error, 1)
		go func() { _, err := c.Get(t.Context(), "first", ""); get <- err }()
		go func() { _, err := c.Put(t.Context(), "first", nil, WriteOptions{}); put <- err }()
		time.Sleep(200 * time.Millisecond)
		start := time.Now()
		c.Close()
		c.Close()
		if err := <-get; !errors.Is(err, ErrClosed) {
			t.Errorf("Get: %v, want %v", err, ErrClosed)
		}
		if err := <-put; !errors.Is(err, ErrOutcomeUnknown) {
			t.Errorf("Put: %v, want %v", err, ErrOutcomeUnknown)
		}
		within(t, start, 0, time.Millisecond)
		if _, err := c.Get(t.Context(), "first", ""); !errors.Is(err, ErrClosed) {
			t.Errorf("Get after Close: %v, want %v", err, ErrClosed)
		}
	}, "n1", "n2")
}
