package client

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"northstar/api/apiv1"
	"northstar/cluster"
)

// Watches and waiting campaigns take no connection from renewals, however many there are.
func TestSession_RenewedBesideStreams(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, fc *fakeCluster) {
		fc.withRoles()
		c, err := New(Config{Endpoints: []string{"n1:1"}, ConnsPerNode: 2, Dial: fc.net.dial})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		held := mustSession(t, c, SessionConfig{TTL: 3 * time.Second, Attach: true})
		if _, err := held.campaign(t.Context(), CandidateConfig{Role: "r"}); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var busy sync.WaitGroup
		for range 3 {
			waiting := mustSession(t, c, SessionConfig{TTL: 3 * time.Second})
			busy.Go(func() { _, _ = waiting.campaign(ctx, CandidateConfig{Role: "r"}) })
			busy.Go(func() {
				for range c.WatchRole(ctx, "r", WatchOptions{}) {
				}
			})
		}
		time.Sleep(time.Minute)
		if held.Err() != nil || held.ValidFor() == 0 {
			t.Errorf("valid for %v: %v", held.ValidFor(), held.Err())
		}
		cancel()
		busy.Wait()
	}, "n1")
}

// Calls that take all connections keep no renewal waiting.
func TestSession_RenewedBesideCalls(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, fc *fakeCluster) {
		fc.withRoles()
		roles := fc.nodes["n1"].handle
		fc.nodes["n1"].handle = func(w http.ResponseWriter, r *http.Request) {
			if strings.HasPrefix(r.URL.Path, apiv1.PathKV) {
				<-r.Context().Done()
				return
			}
			roles(w, r)
		}
		c, err := New(Config{Endpoints: []string{"n1:1"}, ConnsPerNode: 2, Dial: fc.net.dial})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		s := mustSession(t, c, SessionConfig{TTL: 3 * time.Second})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		var busy sync.WaitGroup
		for range 8 {
			busy.Go(func() { _, _ = c.Put(ctx, "k", nil, WriteOptions{NoIdempotencyKey: true}) })
		}
		busy.Wait()
		if s.Err() != nil || s.ValidFor() == 0 {
			t.Errorf("valid for %v: %v", s.ValidFor(), s.Err())
		}
	}, "n1")
}

func TestSessionRenewsItself(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, fc *fakeCluster) {
		f := fc.withRoles()
		c := fc.client("n1", "n2", "n3")
		defer c.Close()
		s := mustSession(t, c, SessionConfig{TTL: 3 * time.Second})
		for range 600 {
			time.Sleep(100 * time.Millisecond)
			if left := s.ValidFor(); left < 1600*time.Millisecond || left > 2700*time.Millisecond {
				t.Fatalf("valid for %v", left)
			}
		}
		synctest.Wait()
		if f.renewals < 58 || f.renewals > 70 {
			t.Errorf("%d renewals in a minute, want about one a second", f.renewals)
		}
		err := s.Close(t.Context())
		synctest.Wait()
		if err != nil || len(f.sessions) != 0 || s.ValidFor() != 0 || !errors.Is(s.Err(), ErrSessionEnded) {
			t.Errorf("Close: %v; %d sessions, %v", err, len(f.sessions), s.Err())
		}
		<-s.Done()
		if err := s.Close(t.Context()); err != nil {
			t.Errorf("second Close: %v", err)
		}
	}, "n1", "n2", "n3")
}

// The session survives any failure of nodes, unless the whole cluster is unavailable for longer than the lease.
func TestSession_SurvivesNodeFailures(t *testing.T) {
	t.Parallel()
	for name, harm := range map[string]func(fc *fakeCluster){
		"leader crash": func(fc *fakeCluster) { fc.kill("n1"); time.Sleep(10 * time.Millisecond); fc.elect("n2") },
		"leader hangs": func(fc *fakeCluster) { fc.hang("n1"); time.Sleep(300 * time.Millisecond); fc.elect("n2") },
		"no leader":    func(fc *fakeCluster) { fc.depose(); time.Sleep(700 * time.Millisecond); fc.elect("n3") },
		"two crash": func(fc *fakeCluster) {
			fc.kill("n1")
			fc.kill("n2")
			time.Sleep(300 * time.Millisecond)
			fc.elect("n3")
		},
	} {
		for _, attach := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				bubble(t, func(t *testing.T, fc *fakeCluster) {
					fc.withRoles()
					c := fc.client("n1", "n2", "n3")
					defer c.Close()
					s := mustSession(t, c, SessionConfig{TTL: 2 * time.Second, Attach: attach})
					l, err := s.campaign(t.Context(), CandidateConfig{Role: "r"})
					if err != nil {
						t.Fatal(err)
					}
					for range 5 {
						time.Sleep(time.Second)
					}
					harm(fc)
					for range 500 {
						time.Sleep(10 * time.Millisecond)
						if s.ValidFor() == 0 || l.Cause() != nil {
							t.Fatalf("valid for %v, %v", s.ValidFor(), l.Cause())
						}
					}
					if err := l.Resign(t.Context()); err != nil {
						t.Error(err)
					}
				}, "n1", "n2", "n3")
			})
		}
	}
}

// No node responds for half of the TTL: there is time for a second renewal.
func TestSession_SurvivesUnresponsiveCluster(t *testing.T) {
	t.Parallel()
	names := []string{"n1", "n2", "n3"}
	bubble(t, func(t *testing.T, fc *fakeCluster) {
		fc.withRoles()
		c := fc.client(names...)
		defer c.Close()
		s := mustSession(t, c, SessionConfig{TTL: 2 * time.Second})
		l, err := s.campaign(t.Context(), CandidateConfig{Role: "r"})
		if err != nil {
			t.Fatal(err)
		}
		for range 30 {
			time.Sleep(3*time.Second + rand.N(time.Second))
			for _, name := range names {
				fc.hang(name)
			}
			time.Sleep(time.Second)
			for _, name := range names {
				fc.resume(name)
			}
			time.Sleep(500 * time.Millisecond)
			if l.Cause() != nil {
				t.Fatal(l.Cause())
			}
		}
	}, names...)
}

// The shortest TTL also tolerates a hung leader.
func TestSession_ShortTTLSurvivesHungLeader(t *testing.T) {
	t.Parallel()
	for range 20 {
		bubble(t, func(t *testing.T, fc *fakeCluster) {
			fc.withRoles()
			c := fc.client("n1", "n2", "n3")
			defer c.Close()
			s := mustSession(t, c, SessionConfig{TTL: 500 * time.Millisecond})
			time.Sleep(5*time.Second + rand.N(200*time.Millisecond))
			fc.hang("n1")
			time.Sleep(100 * time.Millisecond)
			fc.elect("n2")
			time.Sleep(3 * time.Second)
			if s.Err() != nil || s.ValidFor() == 0 {
				t.Errorf("%v, valid for %v", s.Err(), s.ValidFor())
			}
		}, "n1", "n2", "n3")
	}
}

func TestSession_DoneWhenLost(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, fc *fakeCluster) {
		f := fc.withRoles()
		c := fc.client("n1")
		defer c.Close()
		s := mustSession(t, c, SessionConfig{TTL: 3 * time.Second})
		l, err := s.campaign(t.Context(), CandidateConfig{Role: "r"})
		if err != nil {
			t.Fatal(err)
		}
		_ = f.end(s.ID(), "expired")
		select {
		case <-s.Done():
		case <-time.After(1001 * time.Millisecond): // its next renewal
			t.Fatal("role loss not reported")
		}
		<-l.Done()
		if !errors.Is(s.Err(), ErrSessionEnded) ||
			!errors.Is(l.Cause(), ErrNotLeader) || s.ValidFor() != 0 || l.ValidFor() != 0 {
			t.Errorf("%v, %v", s.Err(), l.Cause())
		}
		if _, err := s.campaign(t.Context(), CandidateConfig{Role: "r"}); !errors.Is(err, ErrSessionEnded) {
			t.Error(err)
		}
	}, "n1")
}

// A partitioned process: its lease lapses before its session ends. The lease is restored if the session still
// lives.
func TestSession_PartitionedProcess(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, fc *fakeCluster) {
		f := fc.withRoles()
		c := fc.client("n1")
		defer c.Close()
		s := mustSession(t, c, SessionConfig{TTL: 2 * time.Second})
		l, err := s.campaign(t.Context(), CandidateConfig{Role: "r"})
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		f.sessions[s.ID()].timer.Stop() // as after a leader change: every TTL starts again
		fc.depose()
		start := time.Now()
		<-l.Done()
		within(t, start, 1100*time.Millisecond, 1800*time.Millisecond)
		if !errors.Is(l.Cause(), ErrLeaseLapsed) || s.Err() != nil {
			t.Errorf("%v, %v", l.Cause(), s.Err())
		}
		fc.elect("n1")
		again, err := s.campaign(t.Context(), CandidateConfig{Role: "r"})
		if err != nil || again.Token != l.Token || again.ValidFor() == 0 || l.ValidFor() != 0 {
			t.Fatalf("%+v, %v: want the same tenure, proven again", again, err)
		}
	}, "n1")
}

// The process is killed: its connections close, and the session ends.
func TestAttach_EndsWithProcess(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, fc *fakeCluster) {
		f := fc.withRoles()
		why := make(chan string, 1)
		f.ended = func(_, cause string) { why <- cause }
		c := fc.client("n1", "n2")
		s := mustSession(t, c, SessionConfig{TTL: time.Minute, Attach: true})
		synctest.Wait()
		if f.sessions[s.ID()].streams != 1 {
			t.Fatal("not attached when NewSession returned")
		}
		start := time.Now()
		c.Close()
		if cause := <-why; cause != "disconnected" {
			t.Error(cause)
		}
		within(t, start, 0, 10*time.Millisecond)
	}, "n1", "n2")
}

// It is closed properly, so that the next holder does not wait for a takeover delay.
func TestAttach_Close(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, fc *fakeCluster) {
		f := fc.withRoles()
		why := make(chan string, 1)
		f.ended = func(_, cause string) { why <- cause }
		f.maxDelay = 50 * time.Millisecond
		c := fc.client("n1", "n2")
		defer c.Close()
		s := mustSession(t, c, SessionConfig{TTL: time.Minute, Attach: true})
		if err := s.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if cause := <-why; cause != "session_ended" {
			t.Error(cause)
		}
	}, "n1", "n2")
}

// A node hangs with the connection open, or loses the leader: the client attaches to another node before it closes
// the old connection.
func TestAttach_MovesToAnotherNode(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, fc *fakeCluster) {
		f := fc.withRoles()
		c := fc.client("n1", "n2", "n3")
		defer c.Close()
		s := mustSession(t, c, SessionConfig{TTL: 3 * time.Second, Attach: true})
		for range 10 {
			time.Sleep(time.Second)
			var at string
			for _, name := range []string{"n1", "n2", "n3"} {
				for _, r := range fc.requests(name) {
					if strings.HasSuffix(r.URL.Path, "/attach") {
						at = name
					}
				}
			}
			if at != "n1" { // the leader stays
				fc.hang(at)
			}
			time.Sleep(5 * time.Second)
			fc.resume("n2")
			fc.resume("n3")
			if s.Err() != nil {
				t.Fatal(s.Err())
			}
			f.mu.Lock()
			streams := f.sessions[s.ID()].streams
			f.mu.Unlock()
			if streams < 1 {
				t.Fatal("not attached")
			}
		}
	}, "n1", "n2", "n3")
}

func TestSessionConfig_Check(t *testing.T) {
	t.Parallel()
	c, err := New(Config{Endpoints: []string{"127.0.0.1:1"}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for want, cfg := range map[string]SessionConfig{
		"TTL: must be at least 500ms": {TTL: time.Millisecond},
		"grace: must be 0, or with":   {Grace: time.Second},
	} {
		if _, err := c.NewSession(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
		if _, err := c.NewCandidate(CandidateConfig{Role: "r", Session: cfg}); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	if _, err := c.NewCandidate(CandidateConfig{}); err == nil {
		t.Error("a candidate without a role")
	}
}

func TestNewSession_Rejected(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, fc *fakeCluster) {
		f := fc.withRoles()
		f.reject = func(r *http.Request) error {
			if strings.HasSuffix(r.URL.Path, "/attach") {
				return cluster.Errorf(cluster.CodeForbidden, "no")
			}
			return nil
		}
		c := fc.client("n1")
		defer c.Close()
		if _, err := c.NewSession(t.Context(), SessionConfig{Attach: true}); !cluster.IsCode(err,
			cluster.CodeForbidden) {
			t.Error(err)
		}
		synctest.Wait()
		if len(f.sessions) != 0 {
			t.Error("the session was not ended")
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		fc.depose()
		if _, err := c.NewSession(ctx, SessionConfig{}); !errors.Is(err, context.DeadlineExceeded) &&
			!errors.Is(err, ErrOutcomeUnknown) {
			t.Error(err)
		}
	}, "n1")
}
