package client

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"northstar/api/apiv1"
	"northstar/cluster"
)

// If the connection breaks after sending, the outcome of a write is unknown without a key. With a key the write is
// retried.
func TestRetry_ConnectionLostAfterSending(t *testing.T) {
	t.Parallel()
	for _, bare := range []bool{true, false} {
		bubble(t, func(t *testing.T, fc *fakeCluster) {
			c := fc.client("n1")
			defer c.Close()
			calls := 0
			fc.nodes["n1"].handle = func(w http.ResponseWriter, _ *http.Request) {
				if calls++; calls == 1 {
					panic(http.ErrAbortHandler)
				}
				reply(w, apiv1.PutResult{Revision: 5})
			}
			_, err := c.Put(t.Context(), "k", nil, WriteOptions{NoIdempotencyKey: bare})
			if bare && (!errors.Is(err, ErrOutcomeUnknown) || !cluster.IsCode(err, cluster.CodeOutcomeUnknown) ||
				calls != 1) {
				t.Errorf("error %v after %d calls, want an unknown outcome after 1", err, calls)
			}
			if !bare && err != nil {
				t.Errorf("error %v, want none: the write has a key", err)
			}
		}, "n1")
	}
}

// The key of a write with an unknown outcome can be repeated, also after later writes: none of them tells the cluster
// that the result is no longer needed.
func TestRetry_UnknownOutcomeKeepsItsNumber(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, fc *fakeCluster) {
		c := fc.client("n1")
		defer c.Close()
		var hangs atomic.Bool
		hangs.Store(true)
		lowestOf := map[string]uint64{}
		fc.nodes["n1"].handle = func(w http.ResponseWriter, r *http.Request) {
			if hangs.Load() {
				<-r.Context().Done()
				return
			}
			sender, number, lowest, _ := apiv1.ParseNumberedKey(r.Header.Get(apiv1.HeaderIdempotencyKey))
			if number < lowestOf[sender] {
				problem(w, cluster.Errorf(cluster.CodeOutcomeUnknown, "forgotten"))
				return
			}
			lowestOf[sender] = max(lowestOf[sender], lowest)
			reply(w, apiv1.PutResult{Revision: 5})
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := c.Put(ctx, "k", nil, WriteOptions{})
		var e *Error
		if !errors.Is(err, ErrOutcomeUnknown) || !errors.As(err, &e) {
			t.Fatal(err)
		}
		hangs.Store(false)
		for range 3 {
			if _, err := c.Put(t.Context(), "other", nil, WriteOptions{}); err != nil {
				t.Error(err)
			}
		}
		ctx, cancel = context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := c.Put(ctx, "k", nil, WriteOptions{IdempotencyKey: e.IdempotencyKey}); err != nil {
			t.Error(err)
		}
		if first, _, _, _ := apiv1.ParseNumberedKey(e.IdempotencyKey); len(lowestOf) != 2 || lowestOf[first] != 1 {
			t.Errorf("lowest numbers %v, want those of two senders", lowestOf)
		}
	}, "n1")
}

// At the deadline, the outcome of a write is unknown if some attempt may have arrived, and only then.
func TestRetry_OutcomeAtDeadline(t *testing.T) {
	t.Parallel()
	hung := func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
	says := func(code cluster.Code) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { problem(w, cluster.Errorf(code, "test")) }
	}
	for name, tc := range map[string]struct {
		endpoint string
		handle   http.HandlerFunc
		want     error
	}{
		"hung":           {"n1", hung, ErrOutcomeUnknown},
		"unknown":        {"n1", says(cluster.CodeOutcomeUnknown), ErrOutcomeUnknown},
		"no leader":      {"n1", says(cluster.CodeNoLeader), ErrNoLeader},
		"unreachable":    {"down", nil, context.DeadlineExceeded},
		"dial is silent": {"blackhole", nil, context.DeadlineExceeded},
		"proxy in the way": {
			"n1", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(502) },
			ErrOutcomeUnknown,
		},
	} {
		for _, bare := range []bool{true, false} {
			t.Run(name, func(t *testing.T) {
				bubble(t, func(t *testing.T, fc *fakeCluster) {
					c := fc.client(tc.endpoint)
					defer c.Close()
					fc.nodes["n1"].handle = tc.handle
					ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
					defer cancel()
					start := time.Now()
					_, err := c.Put(ctx, "k", nil, WriteOptions{NoIdempotencyKey: bare})
					if !errors.Is(err, tc.want) || errors.Is(err, ErrOutcomeUnknown) != (tc.want == ErrOutcomeUnknown) {
						t.Errorf("bare %v: error %v, want %v", bare, err, tc.want)
					}
					within(t, start, 0, 3005*time.Millisecond)
				}, "n1")
			})
		}
	}
}

// After an attempt that may have arrived, a refusal by one node alone is not the outcome. A refusal by the
// replicated state is.
func TestRetry_RefusalAfterUncertainAttempt(t *testing.T) {
	t.Parallel()
	for code, want := range map[cluster.Code]error{
		cluster.CodeForbidden:       ErrOutcomeUnknown,
		cluster.CodeConditionFailed: ErrConditionFailed,
	} {
		bubble(t, func(t *testing.T, fc *fakeCluster) {
			c := fc.client("n1")
			defer c.Close()
			calls := 0
			fc.nodes["n1"].handle = func(w http.ResponseWriter, _ *http.Request) {
				if calls++; calls == 1 {
					panic(http.ErrAbortHandler)
				}
				problem(w, cluster.Errorf(code, "test"))
			}
			_, err := c.Put(t.Context(), "k", nil, WriteOptions{IdempotencyKey: "mine"})
			if !errors.Is(err, want) {
				t.Errorf("error %v, want %v", err, want)
			}
			var e *Error
			if !errors.As(err, &e) || e.IdempotencyKey != "mine" {
				t.Errorf("error %#v does not carry the idempotency key", err)
			}
		}, "n1")
	}
}

// Without a leader, a change of the cluster certainly had no effect. Its request is not aborted half sent at the
// deadline.
func TestAdmin_NoLeaderUntilDeadline(t *testing.T) {
	t.Parallel()
	for _, nodes := range [][]string{{"n1"}, {"n1", "down"}} {
		bubble(t, func(t *testing.T, fc *fakeCluster) {
			c := fc.client(nodes...)
			defer c.Close()
			fc.nodes["n1"].handle = func(w http.ResponseWriter, r *http.Request) {
				select {
				case <-time.After(600 * time.Millisecond):
					problem(w, cluster.Errorf(cluster.CodeNoLeader, "held"))
				case <-r.Context().Done():
				}
			}
			for limit := 1900 * time.Millisecond; limit < 4*time.Second; limit += 170 * time.Millisecond {
				ctx, cancel := context.WithTimeout(t.Context(), limit)
				if _, err := c.AddMember(ctx, apiv1.MemberAdd{ID: "n4"}); !errors.Is(err, ErrNoLeader) ||
					errors.Is(err, ErrOutcomeUnknown) {
					t.Errorf("after %v: %v, want no leader", limit, err)
				}
				cancel()
			}
		}, "n1")
	}
}

// TestUnknownOutcome_IsSaidOnce: a node that has said so itself is quoted, and not wrapped in the same sentence again.
func TestUnknownOutcome_IsSaidOnce(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, fc *fakeCluster) {
		c := fc.client("n1")
		defer c.Close()
		fc.nodes["n1"].handle = func(w http.ResponseWriter, _ *http.Request) {
			problem(w, cluster.Errorf(cluster.CodeOutcomeUnknown, "leadership lost while committing"))
		}
		_, err := c.Drain(t.Context(), "n1", apiv1.Drain{})
		if !errors.Is(err, ErrOutcomeUnknown) || strings.Count(err.Error(), "ERR_OUTCOME_UNKNOWN") != 1 ||
			!strings.Contains(err.Error(), "leadership lost while committing") {
			t.Error(err)
		}
	}, "n1")
}

// The first dial of a machine that is switched off ends with a timeout. Calls whose answers come late are waited for as
// long as without it: an administrative call for its outcome, a campaign for its place in the queue.
func TestRetry_DialTimeoutShortensNoAttempt(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, fc *fakeCluster) {
		var calls atomic.Int64
		fc.nodes["n1"].handle = func(w http.ResponseWriter, r *http.Request) {
			calls.Add(1)
			select {
			case <-time.After(50 * time.Second):
				reply(w, RoleMove{Role: "r", Message: "moved"})
			case <-r.Context().Done():
			}
		}
		for name, send := range map[string]func(ctx context.Context, c *Client) error{
			"evict": func(ctx context.Context, c *Client) error {
				_, err := c.EvictRole(ctx, "r", RoleEvict{})
				return err
			},
			"campaign": func(ctx context.Context, c *Client) error {
				_, err := c.CampaignRole(ctx, "r", Campaign{SessionID: "s", WaitMS: apiv1.MaxWaitMS})
				return err
			},
		} {
			calls.Store(0)
			var dials atomic.Int64
			c, err := New(Config{Endpoints: []string{"n1:1"}, Dial: func(
				ctx context.Context, network, address string,
			) (net.Conn, error) {
				if dials.Add(1) == 1 {
					time.Sleep(dialTimeout)
					return nil, &net.OpError{Op: "dial", Net: "tcp", Err: context.DeadlineExceeded}
				}
				return fc.net.dial(ctx, network, address)
			}})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			if err := send(ctx, c); err != nil || calls.Load() != 1 {
				t.Errorf("%s: %v after %d requests, want one", name, err, calls.Load())
			}
			cancel()
			c.Close()
		}
	}, "n1")
}

// A proxy answers 200 with its own page. A call that can be repeated goes to another node; any other has an unknown
// outcome.
func TestRetry_PageOfAProxy(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, fc *fakeCluster) {
		var calls atomic.Int64
		fc.nodes["n1"].handle = func(w http.ResponseWriter, _ *http.Request) {
			calls.Add(1)
			fmt.Fprint(w, "<html>log in</html>")
		}
		c := fc.client("n1")
		defer c.Close()
		_, err := c.Put(t.Context(), "k", nil, WriteOptions{})
		if !errors.Is(err, ErrOutcomeUnknown) || !strings.Contains(err.Error(), "is it a NorthStar node?") {
			t.Errorf("put: %v", err)
		}
		if err := c.EndSession(t.Context(), "s"); !errors.Is(err, ErrOutcomeUnknown) {
			t.Errorf("end a session: %v", err)
		}
		if _, err := c.ListPage(t.Context(), "", ListOptions{}); err == nil || isPermanent(err) {
			t.Errorf("list: %v", err)
		}
		both := fc.client("n1", "n2")
		defer both.Close()
		if _, err := both.Leader(t.Context()); err != nil { // the first attempt goes to n1
			t.Error(err)
		}
		calls.Store(0)
		if err := both.EndSession(t.Context(), "s"); !errors.Is(err, ErrOutcomeUnknown) || calls.Load() != 1 ||
			len(fc.requests("n2")) > 0 {
			t.Errorf("%v after %d requests at n1 and %d at n2", err, calls.Load(), len(fc.requests("n2")))
		}
		if _, err := both.Put(t.Context(), "k", nil, WriteOptions{}); err != nil || calls.Load() != 2 {
			t.Errorf("put: %v after %d requests", err, calls.Load())
		}
		calls.Store(0)
		pages := fc.client("n1", "n2") // knows no node yet
		defer pages.Close()
		for calls.Load() == 0 { // until the first attempt goes to n1
			if _, err := pages.Get(t.Context(), "k", Stale); err != nil {
				t.Fatalf("get: %v after %d requests", err, calls.Load())
			}
		}
	}, "n1", "n2")
}
