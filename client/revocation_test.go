package client

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"northstar/api/apiv1"
	"northstar/cluster"
)

// next campaigns with its own session, and returns a channel that receives the time of its election.
func (fc *fakeCluster) next(t *testing.T) (elected <-chan time.Time, done func()) {
	t.Helper()
	c := fc.client("n1")
	s := mustSession(t, c, SessionConfig{Name: "next"})
	at := make(chan time.Time, 1)
	var waiting sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	waiting.Go(func() {
		if _, err := s.campaign(ctx, CandidateConfig{Role: "r"}); err == nil {
			at <- time.Now()
		}
	})
	return at, func() { cancel(); waiting.Wait(); c.Close() }
}

// A holder whose role is revoked gets the time to stop. The next one is elected as soon as it has, also if only a
// renewal reports the revocation.
func TestRevocation_NextHolderWaitsForRelease(t *testing.T) {
	t.Parallel()
	var asked atomic.Bool
	once := func() bool { return !asked.Swap(true) }
	for name, tt := range map[string]struct {
		refuse  func(*http.Request) bool
		maxWait time.Duration
	}{
		"reported by its watch": {func(*http.Request) bool { return false }, 2100 * time.Millisecond},
		"reported by a renewal": {
			func(r *http.Request) bool { return strings.HasSuffix(r.URL.Path, "/watch") }, 6 * time.Second,
		},
		"acknowledgement lost": {
			func(r *http.Request) bool { return r.URL.Query().Has("token") && once() },
			6 * time.Second,
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, fc *fakeCluster) {
				f := fc.withRoles()
				f.reject = func(r *http.Request) error {
					if tt.refuse(r) {
						return fail(cluster.CodeInternal)
					}
					return nil
				}
				c := fc.client("n1")
				defer c.Close()
				k := candidate(t, c, 10*time.Second)
				ctx, stop := context.WithCancel(t.Context())
				var stopped time.Time
				var candidates sync.WaitGroup
				candidates.Go(func() {
					_ = RunAsLeader(ctx, k, 0, func(ctx context.Context, l *Leadership) error {
						<-ctx.Done()
						if !errors.Is(context.Cause(ctx), ErrRoleLost) &&
							!errors.Is(context.Cause(ctx), context.Canceled) {
							t.Error(context.Cause(ctx))
						}
						time.Sleep(2 * time.Second)
						stopped = time.Now()
						return ctx.Err()
					})
				})
				synctest.Wait()
				session := k.Session()
				elected, done := fc.next(t)
				time.Sleep(time.Second)
				f.evict("r")
				evicted := time.Now()
				at := <-elected
				if at.Before(stopped) {
					t.Errorf("elected %v before the last one had stopped", stopped.Sub(at))
				}
				if took := at.Sub(evicted); took > tt.maxWait {
					t.Errorf("elected after %v", took)
				}
				time.Sleep(time.Minute)
				if session.Err() != nil {
					t.Error(session.Err())
				}
				stop()
				candidates.Wait()
				done()
			}, "n1")
		})
	}
}

// If the holder does not stop, the next one waits for the end of its lease, and no longer. Its session lives on.
func TestSession_NextHolderWaitsForLease(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, fc *fakeCluster) {
		f := fc.withRoles()
		c := fc.client("n1")
		defer c.Close()
		k := candidate(t, c, 10*time.Second)
		l, err := k.Campaign(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		elected, done := fc.next(t)
		defer done()
		time.Sleep(time.Second)
		lease := time.Now().Add(k.Session().ValidFor())
		f.evict("r")
		at := <-elected
		if at.Before(lease) || at.Sub(lease) > 500*time.Millisecond {
			t.Errorf("elected %v after the end of the lease", at.Sub(lease))
		}
		if !errors.Is(l.Cause(), ErrRoleLost) {
			t.Error(l.Cause())
		}
		time.Sleep(time.Minute)
		if err := k.Session().Err(); err != nil {
			t.Error(err)
		}
	}, "n1")
}

// The role is revoked after the election, before the first renewal that could start the tenure. The tenure never
// starts.
func TestRevocation_BeforeTenureStarts(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, fc *fakeCluster) {
		f := fc.withRoles()
		var mu sync.Mutex
		cut := true
		f.reject = func(r *http.Request) error {
			mu.Lock()
			defer mu.Unlock()
			if cut && strings.HasSuffix(r.URL.Path, "/renew") {
				return cluster.Errorf(cluster.CodeReadOnly, "not now")
			}
			return nil
		}
		c := fc.client("n1")
		defer c.Close()
		k := candidate(t, c, 10*time.Second)
		first, err := k.Campaign(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(6 * time.Second) // too little of the lease is left to start a tenure
		first.End(ErrLeaseLapsed)
		won := make(chan *Leadership, 1)
		ctx, stop := context.WithCancel(t.Context())
		var campaigns sync.WaitGroup
		campaigns.Go(func() {
			if l, err := k.Campaign(ctx); err == nil {
				won <- l
			}
		})
		time.Sleep(time.Second)
		f.evict("r")
		mu.Lock()
		cut = false
		mu.Unlock()
		s := mustSession(t, c, SessionConfig{})
		next, err := s.campaign(t.Context(), CandidateConfig{Role: "r"})
		if err != nil {
			t.Fatal(err)
		}
		for range 100 {
			time.Sleep(100 * time.Millisecond)
			select {
			case l := <-won:
				t.Fatalf("%s begins a tenure with token %d beside that with %d", l.Session, l.Token, next.Token)
			default:
			}
		}
		stop()
		campaigns.Wait()
	}, "n1")
}

// The session does not acknowledge a revocation of a role that it did not win itself: the role may still be in use.
func TestRevocation_OfUnknownTenure(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, fc *fakeCluster) {
		f := fc.withRoles()
		c := fc.client("n1")
		defer c.Close()
		s := mustSession(t, c, SessionConfig{})
		f.mu.Lock()
		f.queues["r"] = []string{s.ID()}
		f.electNext("r")
		f.mu.Unlock()
		elected, done := fc.next(t)
		defer done()
		time.Sleep(time.Second)
		f.evict("r")
		evicted := time.Now()
		at := <-elected
		if took := at.Sub(evicted); took < 6*time.Second || took > 10*time.Second {
			t.Errorf("elected after %v", took)
		}
		time.Sleep(2 * time.Second)
		if !errors.Is(s.Err(), ErrSessionEnded) {
			t.Error(s.Err())
		}
	}, "n1")
}

// The answer about a revocation comes after the next election of the same session. That tenure goes on; the revoked
// one has ended.
func TestRevocation_LateAnswer(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, fc *fakeCluster) {
		f := fc.withRoles()
		asked, elected := make(chan struct{}, 10), make(chan struct{})
		inner := fc.nodes["n1"].handle
		fc.nodes["n1"].handle = func(w http.ResponseWriter, r *http.Request) {
			id := strings.TrimPrefix(r.URL.Path, apiv1.PathSessions+"/")
			if r.Method != http.MethodGet || f.revokedFrom(id) == 0 {
				inner(w, r)
				return
			}
			answer, _ := f.session(id)
			asked <- struct{}{}
			<-elected
			reply(w, answer)
		}
		f.reject = func(r *http.Request) error {
			if r.Method == http.MethodGet && strings.HasPrefix(r.URL.Path, apiv1.PathRoles) {
				return fail(cluster.CodeInternal)
			}
			return nil
		}
		c := fc.client("n1")
		defer c.Close()
		k := candidate(t, c, 10*time.Second)
		first, err := k.Campaign(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		f.evict("r")
		<-asked
		next, err := k.Campaign(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if !errors.Is(first.Cause(), ErrRoleLost) {
			t.Errorf("beside the next tenure, the revoked one has the cause %v", first.Cause())
		}
		close(elected)
		select {
		case <-next.Done():
			t.Errorf("the revocation of token %d ends the tenure with token %d: %v", first.Token, next.Token, next.Cause())
		case <-time.After(time.Minute):
		}
		if next.Token <= first.Token || f.holder("r") != next.Session {
			t.Errorf("token %d, then %d, held by %q", first.Token, next.Token, f.holder("r"))
		}
		if err := k.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}, "n1")
}

// revokedFrom returns the number of roles that were revoked from a session.
func (f *fakeRoles) revokedFrom(session string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.revokedRoles(session))
}
