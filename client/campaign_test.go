package client

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"northstar/chaos/testenv"
	"northstar/cluster"
)

func TestCampaign(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, fc *fakeCluster) {
		fc.withRoles()
		c := fc.client("n1", "n2")
		defer c.Close()
		a, b := mustSession(t, c, SessionConfig{Name: "a"}), mustSession(t, c, SessionConfig{Name: "b"})
		first, err := a.campaign(t.Context(), CandidateConfig{Role: "r"})
		if err != nil ||
			first.Token == 0 || first.Session != a.ID() || first.ValidFor() < 8*time.Second ||
			first.ValidFor() > 9*time.Second {
			t.Fatalf("%+v, %v", first, err)
		}
		again, err := a.campaign(t.Context(), CandidateConfig{Role: "r"})
		if err != nil || again.Token != first.Token || first.Cause() != nil {
			t.Fatalf("%+v, %v: want the tenure again", again, err)
		}
		elected := make(chan *Leadership)
		go func() {
			l, err := b.campaign(t.Context(), CandidateConfig{Role: "r"})
			if err != nil {
				t.Error(err)
			}
			elected <- l
		}()
		time.Sleep(time.Minute)
		if err := first.Resign(t.Context()); err != nil || !errors.Is(first.Cause(), ErrResigned) {
			t.Fatalf("%v, %v", err, first.Cause())
		}
		if next := <-elected; next.Token <= first.Token || next.Session != b.ID() {
			t.Fatalf("%+v", next)
		}
		synctest.Wait()
		if !errors.Is(again.Cause(), ErrNotLeader) {
			t.Errorf("the same tenure is not over: %v", again.Cause())
		}
		if err := first.Resign(t.Context()); err != nil {
			t.Errorf("second Resign: %v", err)
		}
	}, "n1", "n2")
}

// A holder that campaigns again and again has one tenure, with one watch.
func TestCampaign_SameTenure(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, fc *fakeCluster) {
		fc.withRoles()
		c := fc.client("n1")
		defer c.Close()
		k := candidate(t, c, 3*time.Second)
		first, err := k.Campaign(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for range 20 {
			if again, err := k.Campaign(t.Context()); err != nil || again != first {
				t.Errorf("%+v, %v, want the first tenure, %+v", again, err, first)
			}
		}
		synctest.Wait()
		watches := 0
		for _, r := range fc.requests("n1") {
			if strings.HasSuffix(r.URL.Path, "/watch") {
				watches++
			}
		}
		if watches != 1 {
			t.Errorf("%d watches of one tenure", watches)
		}
	}, "n1")
}

// The place in the queue survives failed nodes, leader changes and waits longer than one request. The client sends
// few requests meanwhile.
func TestCampaign_KeepsQueuePlace(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, fc *fakeCluster) {
		f := fc.withRoles()
		c := fc.client("n1", "n2", "n3")
		defer c.Close()
		holder := mustSession(t, c, SessionConfig{})
		l, err := holder.campaign(t.Context(), CandidateConfig{Role: "r"})
		if err != nil {
			t.Fatal(err)
		}
		order := make(chan string, 2)
		var waiting []*Session
		for range 2 {
			s := mustSession(t, c, SessionConfig{})
			waiting = append(waiting, s)
			go func() {
				if _, err := s.campaign(t.Context(), CandidateConfig{Role: "r"}); err != nil {
					t.Error(err)
				}
				order <- s.ID()
			}()
			time.Sleep(time.Second)
		}
		want := []string{waiting[0].ID(), waiting[1].ID()}
		inQueue := func(when string) {
			t.Helper()
			f.mu.Lock()
			defer f.mu.Unlock()
			if !slices.Equal(f.queues["r"], want) {
				t.Errorf("%s: the queue is %v, want %v", when, f.queues["r"], want)
			}
		}
		for range 20 * 60 {
			time.Sleep(time.Second)
			inQueue("after a while")
		}
		probes := fc.background()
		time.Sleep(time.Minute)
		if n := fc.background() - probes; n > 200 { // two campaigns and a watch poll their nodes every two seconds
			t.Errorf("%d questions in a minute", n)
		}
		fc.kill("n1")
		fc.elect("n2")
		time.Sleep(time.Second)
		inQueue("after a crash of the leader")
		if l.Cause() != nil {
			t.Fatal(l.Cause())
		}
		if err := l.Resign(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := <-order; got != want[0] {
			t.Errorf("%s was elected, want %s", got, want[0])
		}
		_ = waiting[0].Close(t.Context())
		if got := <-order; got != want[1] {
			t.Errorf("%s was elected, want %s", got, want[1])
		}
	}, "n1", "n2", "n3")
}

// If the node of a long poll hangs, the client soon asks another one.
func TestCampaign_LeavesHungNode(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, fc *fakeCluster) {
		f := fc.withRoles()
		c, other := fc.client("n1", "n2"), fc.client("n2")
		defer c.Close()
		defer other.Close()
		holder, waiter := mustSession(t, other, SessionConfig{}), mustSession(t, c, SessionConfig{})
		synctest.Wait() // both know the leader
		l, err := holder.campaign(t.Context(), CandidateConfig{Role: "r"})
		if err != nil {
			t.Fatal(err)
		}
		elected := make(chan error, 1)
		go func() { _, err := waiter.campaign(t.Context(), CandidateConfig{Role: "r"}); elected <- err }()
		time.Sleep(time.Second)
		at := slices.ContainsFunc(fc.requests("n2"),
			func(r *http.Request) bool { return strings.HasSuffix(r.URL.Path, "/campaign") })
		synctest.Wait()
		if f.waiters["r "+waiter.ID()] != 1 || at {
			t.Fatal("the candidate does not wait at n1")
		}
		fc.hang("n1")
		fc.elect("n2")
		time.Sleep(15 * time.Second)
		start := time.Now()
		if err := l.Resign(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := <-elected; err != nil {
			t.Fatal(err)
		}
		within(t, start, 0, time.Second)
	}, "n1", "n2")
}

// A cancelled campaign leads to no later election, even if it was elected already or its requests are still in
// flight.
func TestCampaign_Cancelled(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, fc *fakeCluster) {
		f := fc.withRoles()
		c := fc.client("n1")
		defer c.Close()
		a := mustSession(t, c, SessionConfig{})
		if _, err := a.campaign(t.Context(), CandidateConfig{Role: "r"}); err != nil {
			t.Fatal(err)
		}
		b := candidate(t, c, 10*time.Second)
		try := func(d time.Duration) error {
			ctx, cancel := context.WithTimeout(t.Context(), d)
			defer cancel()
			l, err := b.Campaign(ctx)
			if err == nil {
				err = l.Resign(t.Context())
			}
			return err
		}
		if err := try(3 * time.Second); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		synctest.Wait()
		if len(f.queues["r"]) != 0 {
			t.Errorf("still in the queue: %v", f.queues["r"])
		}
		if err := a.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		slow := func(d time.Duration) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.maxDelay = d
		}
		for range 50 {
			slow(time.Second)
			_ = try(rand.N(5 * time.Second))
			slow(0)
			time.Sleep(20 * time.Second)
			f.mu.Lock()
			if _, held := f.holders["r"]; held || len(f.queues["r"]) != 0 || len(f.sessions) != 0 {
				t.Error("held by, or waited for by, who has given up")
			}
			f.mu.Unlock()
		}
		if err := try(time.Second); err != nil {
			t.Errorf("and campaigns again: %v", err)
		}
	}, "n1")
}

func TestCampaign_Rejected(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, fc *fakeCluster) {
		f := fc.withRoles()
		f.reject = func(r *http.Request) error {
			if strings.HasSuffix(r.URL.Path, "/campaign") {
				return cluster.Errorf(cluster.CodeBadRequest, "role: bad")
			}
			return nil
		}
		c := fc.client("n1")
		defer c.Close()
		k, err := c.NewCandidate(CandidateConfig{Role: "r", Session: SessionConfig{Clock: newClock().now}})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := k.Campaign(t.Context()); !cluster.IsCode(err, cluster.CodeBadRequest) {
			t.Error(err)
		}
		synctest.Wait()
		if len(f.sessions) != 0 {
			t.Error("the unused session was not ended")
		}
	}, "n1")
}

// When an operator revokes a role, the holder learns of it before its next campaign.
func TestEviction_NotifiesHolder(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, fc *fakeCluster) {
		f := fc.withRoles()
		c := fc.client("n1")
		defer c.Close()
		s := mustSession(t, c, SessionConfig{})
		l, err := s.campaign(t.Context(), CandidateConfig{Role: "r"})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		f.evict("r")
		synctest.Wait()
		if !errors.Is(l.Cause(), ErrRoleLost) || !strings.Contains(l.Cause().Error(), "evicted") || s.Err() != nil {
			t.Errorf("%v, %v", l.Cause(), s.Err())
		}
	}, "n1")
}

func TestObserve(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, fc *fakeCluster) {
		fc.withRoles()
		c := fc.client("n1", "n2", "n3")
		defer c.Close()
		var observed []string
		ctx, cancel := context.WithCancel(t.Context())
		var observer sync.WaitGroup
		observer.Go(func() {
			for h, err := range c.Observe(ctx, "r") {
				if err != nil {
					if !errors.Is(err, context.Canceled) {
						t.Error(err)
					}
					return
				}
				observed = append(observed, strings.TrimSpace(h.Session+" "+h.Cause))
			}
		})
		time.Sleep(time.Second)
		for i, name := range []string{"", "n1", "n2"} {
			if name != "" {
				fc.kill(name)
				fc.elect("n3")
			}
			s := mustSession(t, c, SessionConfig{})
			if _, err := s.campaign(t.Context(), CandidateConfig{Role: "r"}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
			if err := s.Close(t.Context()); err != nil {
				t.Fatal(i, err)
			}
		}
		time.Sleep(time.Second)
		cancel()
		observer.Wait()
		want := []string{"", "s1", "session_ended", "s2", "session_ended", "s3", "session_ended"}
		if !slices.Equal(observed, want) {
			t.Errorf("observed %q, want %q", observed, want)
		}
		for h, err := range c.Observe(t.Context(), "r") {
			if err != nil || h.Held() {
				t.Errorf("%+v, %v", h, err)
			}
			break
		}
	}, "n1", "n2", "n3")
}

// When the cluster ends a session, its holder has already stopped, however late requests and responses are. An
// ended tenure stays ended. A holder that resigns has stopped before.
func TestDeadline_EndsBeforeSession(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, fc *fakeCluster) {
		f := fc.withRoles()
		var mu sync.Mutex
		active := map[string]*Leadership{} // by session
		var ended, elected int
		f.ended = func(session, _ string) {
			mu.Lock()
			defer mu.Unlock()
			ended++
			if l := active[session]; l != nil && l.ValidFor() > 0 {
				t.Errorf("session %s has ended and its holder is valid for another %v", session, l.ValidFor())
			}
		}
		names := []string{"n1", "n2", "n3"}
		ctx, stop := context.WithCancel(t.Context())
		var all sync.WaitGroup
		for i := range 5 {
			c := fc.client(names...)
			defer c.Close()
			clock := newClock() // the clock of a process that runs 5% slow
			slow := func() time.Duration { return clock.now() * time.Duration(20-i%2) / 20 }
			all.Go(func() {
				k, err := c.NewCandidate(CandidateConfig{Role: "r", Session: SessionConfig{
					TTL:   2 * time.Second,
					Clock: slow,
				}})
				if err != nil {
					t.Error(err)
					return
				}
				last := uint64(0)
				for ctx.Err() == nil {
					l, err := k.Campaign(ctx)
					if err != nil {
						continue
					}
					mu.Lock()
					active[l.Session] = l
					elected++
					for session, o := range active {
						if session != l.Session && o.ValidFor() > 0 {
							t.Errorf("%s is elected while %s is valid for another %v", l.Session, session, o.ValidFor())
						}
					}
					mu.Unlock()
					if l.Token < last {
						t.Errorf("token %d after %d", l.Token, last)
					}
					last = l.Token
					select {
					case <-l.Done():
					case <-time.After(rand.N(20 * time.Second)):
						leave, cancel := context.WithTimeout(ctx, time.Second)
						_ = l.Resign(leave)
						cancel()
					}
				}
			})
		}
		for range testenv.Repeats(300) {
			time.Sleep(rand.N(time.Second))
			f.mu.Lock()
			f.maxDelay = rand.N(2500 * time.Millisecond)
			f.mu.Unlock()
			i := rand.N(3)
			switch rand.N(5) {
			case 0:
				fc.depose()
			case 2:
				f.evict("r")
			case 1:
				fc.hang(names[i])
				time.Sleep(rand.N(2 * time.Second))
				i = (i + 1) % 3
			}
			fc.elect(names[i])
			for _, name := range names {
				fc.resume(name)
			}
		}
		f.mu.Lock()
		f.maxDelay = 0
		f.mu.Unlock()
		time.Sleep(time.Minute)
		stop()
		all.Wait()
		mu.Lock()
		defer mu.Unlock()
		if elected < 8 || ended < 20 {
			t.Errorf("%d elections, %d sessions ended: nothing was tested", elected, ended)
		}
		t.Logf("%d elections, %d sessions ended", elected, ended)
	}, "n1", "n2", "n3")
}

// An Eligible that hangs delays neither an election nor the end of a campaign, and counts as an error.
func TestCandidate_EligibleHangs(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, fc *fakeCluster) {
		f := fc.withRoles()
		c := fc.client("n1")
		defer c.Close()
		holder, err := candidate(t, c, 3*time.Second).Campaign(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		hung := make(chan struct{})
		defer close(hung)
		var calls atomic.Int64
		k, err := c.NewCandidate(CandidateConfig{
			Role: "r", Session: SessionConfig{TTL: 3 * time.Second, Clock: newClock().now},
			Eligible: func(context.Context) error {
				if calls.Add(1) > 1 {
					<-hung
				}
				return nil
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		// It is called again after a second.
		time.AfterFunc(eligibleInterval*3/2, func() {
			if err := holder.Resign(t.Context()); err != nil {
				t.Error(err)
			}
		})
		l, err := k.Campaign(t.Context())
		if err != nil || l.ValidFor() == 0 {
			t.Fatalf("%+v, %v", l, err)
		}
		if err := l.Resign(t.Context()); err != nil {
			t.Error(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := k.Campaign(ctx); !errors.Is(err, context.DeadlineExceeded) || f.sessionCount() != 0 {
			t.Errorf("%v, %d sessions", err, f.sessionCount())
		}
	}, "n1")
}
