package client

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func candidate(t *testing.T, c *Client, ttl time.Duration) *Candidate {
	t.Helper()
	k, err := c.NewCandidate(
		CandidateConfig{Role: "r", Session: SessionConfig{TTL: ttl, Clock: newClock().now, Attach: true}},
	)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func TestRunAsLeader_ReturnsErrorOfFunction(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, fc *fakeCluster) {
		f := fc.withRoles()
		c := fc.client("n1")
		defer c.Close()
		done := errors.New("done")
		for _, want := range []error{nil, done} {
			err := RunAsLeader(t.Context(), candidate(t, c, 3*time.Second), 0,
				func(ctx context.Context, l *Leadership) error {
					if l.Token == 0 || ctx.Err() != nil {
						t.Errorf("%+v, %v", l, ctx.Err())
					}
					return want
				})
			if !errors.Is(err, want) {
				t.Errorf("%v, want %v", err, want)
			}
			synctest.Wait()
			if len(f.sessions) != 0 || len(f.holders) != 0 {
				t.Error("the role was not given back")
			}
		}
	}, "n1")
}

// The function stops before the lease lapses. RunAsLeader then campaigns again, with the same session while that
// lives.
func TestRunAsLeader_StopsAndCampaignsAgain(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, fc *fakeCluster) {
		f := fc.withRoles()
		c := fc.client("n1")
		defer c.Close()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		k := candidate(t, c, 3*time.Second)
		tenures := make(chan *Leadership, 10)
		var runs sync.WaitGroup
		runs.Go(func() {
			running := false
			err := RunAsLeader(ctx, k, 500*time.Millisecond, func(ctx context.Context, l *Leadership) error {
				if running {
					t.Error("runs twice")
				}
				running = true
				tenures <- l
				<-ctx.Done()
				if l.Cause() == nil && l.ValidFor() < 499*time.Millisecond {
					t.Errorf("stopped with %v left", l.ValidFor())
				}
				time.Sleep(100 * time.Millisecond)
				running = false
				return ctx.Err()
			})
			if !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		})
		first := <-tenures
		f.mu.Lock()
		f.sessions[first.Session].timer.Stop() // a leader change renews the TTL
		f.mu.Unlock()
		fc.depose()
		time.Sleep(4 * time.Second)
		fc.elect("n1")
		second := <-tenures
		if second.Token != first.Token {
			t.Errorf("token %d, then %d, of a session that lived on", first.Token, second.Token)
		}
		_ = f.end(second.Session, "expired")
		third := <-tenures
		if third.Token <= second.Token || third.Session == second.Session {
			t.Errorf("%+v", third)
		}
		f.evict("r")
		fourth := <-tenures
		if fourth.Token <= third.Token || fourth.Session != third.Session {
			t.Errorf("%+v", fourth)
		}
		cancel()
		runs.Wait()
		synctest.Wait()
		if len(f.sessions) != 0 {
			t.Error("the role was not given back")
		}
	}, "n1")
}

func TestLeave(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, fc *fakeCluster) {
		f := fc.withRoles()
		c := fc.client("n1")
		defer c.Close()
		k := candidate(t, c, 3*time.Second)
		l, err := k.Campaign(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var g Gate
		g.Bind(l)
		if err := g.Do(t.Context(), func(context.Context, uint64) error { return nil }); err != nil {
			t.Fatal(err)
		}
		err = Leave(t.Context(), &g, k)
		synctest.Wait()
		if err != nil || len(f.sessions) != 0 || l.Cause() == nil {
			t.Errorf("%v, %d sessions", err, len(f.sessions))
		}
		if err := k.Close(t.Context()); err != nil {
			t.Errorf("second Close: %v", err)
		}
	}, "n1")
}

// A process that leaves does not campaign again: its work is over, and nothing would release the next tenure.
func TestLeave_EndsRunAsLeader(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, fc *fakeCluster) {
		f := fc.withRoles()
		c := fc.client("n1")
		defer c.Close()
		k := candidate(t, c, 3*time.Second)
		var g Gate
		tenures, returned := make(chan *Leadership, 10), make(chan error, 1)
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		go func() {
			returned <- RunAsLeader(ctx, k, 0, func(ctx context.Context, l *Leadership) error {
				g.Bind(l)
				tenures <- l
				<-ctx.Done()
				return g.Drain(context.WithoutCancel(ctx))
			})
		}()
		<-tenures
		if err := Leave(t.Context(), &g, k); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Second)
		if len(tenures) != 0 || f.sessionCount() != 0 || g.Require() == nil {
			t.Errorf("%d tenures and %d sessions after Leave; the gate: %v", len(tenures), f.sessionCount(), g.Require())
		}
		stop()
		if err := <-returned; err != nil {
			t.Error(err)
		}
	}, "n1")
}

// A process that leaves without the role, because it waits for it or has just lost it, is not elected again.
func TestLeave_WithoutTheRole(t *testing.T) {
	t.Parallel()
	for name, monitored := range map[string]bool{"candidate": false, "monitored": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(t *testing.T, fc *fakeCluster) {
				f := fc.withRoles()
				c := fc.client("n1")
				defer c.Close()
				var k Elector = candidate(t, c, 3*time.Second)
				if monitored {
					k = monitor(t, k, ElectorConfig{})
				}
				var g Gate
				tenures, lost := make(chan *Leadership, 10), make(chan struct{})
				left, returned := make(chan struct{}), make(chan error, 1)
				go func() {
					returned <- RunAsLeader(t.Context(), k, 0, func(ctx context.Context, l *Leadership) error {
						g.Bind(l)
						tenures <- l
						<-ctx.Done()
						close(lost)
						<-left // its work goes on
						return nil
					})
				}()
				l := <-tenures
				f.evict("r")
				<-lost
				if err := Leave(t.Context(), &g, k); err != nil || errors.Is(l.Cause(), ErrResigned) {
					t.Errorf("%v; the tenure: %v", err, l.Cause())
				}
				close(left)
				if err := <-returned; err != nil || len(tenures) != 0 || f.sessionCount() != 0 {
					t.Errorf("%v, %d tenures, %d sessions", err, len(tenures), f.sessionCount())
				}
				if _, err := k.Campaign(t.Context()); !errors.Is(err, ErrResigned) {
					t.Errorf("a later campaign: %v", err)
				}
			}, "n1")
		})
	}
}

// Close ends a campaign in progress, and the candidate's place in the queue.
func TestClose_EndsACampaign(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, fc *fakeCluster) {
		f := fc.withRoles()
		c := fc.client("n1")
		defer c.Close()
		if _, err := candidate(t, c, 3*time.Second).Campaign(t.Context()); err != nil {
			t.Fatal(err)
		}
		k := candidate(t, c, 3*time.Second)
		returned := make(chan error, 1)
		go func() {
			returned <- RunAsLeader(t.Context(), k, 0, func(context.Context, *Leadership) error { return errSick })
		}()
		time.Sleep(time.Second)
		if err := Leave(t.Context(), new(Gate), k); err != nil {
			t.Error(err)
		}
		if err := <-returned; err != nil || len(f.queues["r"]) != 0 || f.sessionCount() != 1 {
			t.Errorf("%v, queue %v, %d sessions", err, f.queues["r"], f.sessionCount())
		}
	}, "n1")
}
