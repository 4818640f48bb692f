package client

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func lockConfig(role string) CandidateConfig {
	return CandidateConfig{Role: role, Session: SessionConfig{Clock: newClock().now}}
}

func TestLock(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, fc *fakeCluster) {
		f := fc.withRoles()
		c := fc.client("n1")
		defer c.Close()
		first, err := c.Lock(t.Context(), lockConfig("r"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.TryLock(t.Context(), lockConfig("r")); !errors.Is(err, ErrRoleHeld) {
			t.Errorf("TryLock of a held role: %v", err)
		}
		next := make(chan *Lock)
		go func() {
			l, err := c.Lock(t.Context(), lockConfig("r"))
			if err != nil {
				t.Error(err)
			}
			next <- l
		}()
		time.Sleep(time.Minute)
		select {
		case <-next:
			t.Fatal("two locks of one role in one process")
		default:
		}
		if err := first.Unlock(t.Context()); err != nil || first.Cause() == nil {
			t.Fatalf("%v, %v", err, first.Cause())
		}
		second := <-next
		if second.Token <= first.Token || *second.Fence() != (Fence{Role: "r", Token: second.Token}) {
			t.Errorf("tokens %d, then %d; fence %+v", first.Token, second.Token, second.Fence())
		}
		if err := second.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		if l, err := c.TryLock(t.Context(), lockConfig("r")); err != nil {
			t.Error(err)
		} else if err := l.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if len(f.sessions) > 0 {
			t.Errorf("%d sessions are left", len(f.sessions))
		}
	}, "n1")
}

// Without a wait, a lock asks Eligible too, and marks a required role.
func TestTryLock_EligibleAndRequired(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, fc *fakeCluster) {
		f := fc.withRoles()
		c := fc.client("n1")
		defer c.Close()
		ill := errors.New("ill")
		cfg := lockConfig("r")
		cfg.Required, cfg.Eligible = true, func(context.Context) error { return ill }
		if _, err := c.TryLock(t.Context(), cfg); !errors.Is(err, ill) {
			t.Errorf("TryLock of an ineligible process: %v", err)
		}
		if _, err := c.TryAcquire(t.Context(), cfg, 2); !errors.Is(err, ill) {
			t.Errorf("TryAcquire of an ineligible process: %v", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		if _, err := c.Acquire(ctx, cfg, 2); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Acquire of an ineligible process: %v", err)
		}
		if len(f.sessions) > 0 {
			t.Errorf("%d sessions of an ineligible process", len(f.sessions))
		}
		cfg.Eligible = func(context.Context) error { return nil }
		for _, lock := range []func() (*Lock, error){
			func() (*Lock, error) { return c.TryLock(t.Context(), cfg) },
			func() (*Lock, error) { return c.Acquire(t.Context(), cfg, 2) },
		} {
			l, err := lock()
			if err != nil {
				t.Fatal(err)
			}
			if f.mu.Lock(); !f.required[l.Role] {
				t.Errorf("the campaign for %s does not say that the role is required", l.Role)
			}
			f.mu.Unlock()
			if err := l.Unlock(t.Context()); err != nil {
				t.Error(err)
			}
		}
	}, "n1")
}

// A candidate that stops waiting leaves the queue, so that it does not become the holder later.
func TestLock_GivesUp(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, fc *fakeCluster) {
		f := fc.withRoles()
		c := fc.client("n1")
		defer c.Close()
		l, err := c.Lock(t.Context(), lockConfig("r"))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := c.Lock(ctx, lockConfig("r")); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		time.Sleep(time.Second)
		f.mu.Lock()
		if q := f.queues["r"]; len(q) > 0 || len(f.sessions) != 1 {
			t.Errorf("queue %v, %d sessions", q, len(f.sessions))
		}
		f.mu.Unlock()
		if err := l.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
	}, "n1")
}

func TestSemaphore(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, fc *fakeCluster) {
		f := fc.withRoles()
		c := fc.client("n1")
		defer c.Close()
		const permits, users = 3, 12
		var mu sync.Mutex
		held, most := map[string]bool{}, 0
		var all sync.WaitGroup
		for range users {
			all.Go(func() {
				l, err := c.Acquire(t.Context(), lockConfig("s"), permits)
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				if held[l.Role] {
					t.Errorf("permit %s twice", l.Role)
				}
				held[l.Role] = true
				full := len(held) == permits
				most = max(most, len(held))
				mu.Unlock()
				if full {
					if _, err := c.TryAcquire(t.Context(), lockConfig("s"), permits); !errors.Is(err, ErrRoleHeld) {
						t.Errorf("TryAcquire without a free permit: %v", err)
					}
				}
				time.Sleep(time.Minute)
				mu.Lock()
				delete(held, l.Role)
				mu.Unlock()
				if err := l.Unlock(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		if most != permits {
			t.Errorf("at most %d permits were held, want %d", most, permits)
		}
		time.Sleep(time.Minute)
		if len(f.sessions) > 0 {
			t.Errorf("%d sessions are left", len(f.sessions))
		}
		if _, err := c.Acquire(t.Context(), lockConfig("s"), 0); err == nil {
			t.Error("no permits are accepted")
		}
	}, "n1")
}

// A process that waits for a permit goes on through an outage, whenever that begins.
func TestAcquire_OutlastsAnOutage(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, fc *fakeCluster) {
		fc.withRoles()
		c := fc.client("n1")
		defer c.Close()
		fc.depose()
		time.AfterFunc(time.Minute, func() { fc.elect("n1") })
		l, err := c.Acquire(t.Context(), lockConfig("s"), 2)
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
	}, "n1")
}
