package client

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// A late call counts once, as an error. Its result does not count, whenever it comes.
func TestHealthCheck_LateResult(t *testing.T) {
	t.Parallel()
	for name, took := range map[string]time.Duration{
		"between two runs": DefaultCheckTimeout + time.Second,
		"in the next run":  DefaultCheckTimeout + DefaultCheckInterval + time.Second,
	} {
		for _, result := range []error{nil, errSick} {
			t.Run(fmt.Sprintf("%s, %v", name, result), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					var calls atomic.Int64
					h := &healthCheck{timeout: DefaultCheckTimeout, healthy: func(context.Context) error {
						if calls.Add(1) > 1 {
							return nil
						}
						time.Sleep(took)
						return result
					}}
					if err := h.run(t.Context()); !errors.Is(err, errCheckTimeout) {
						t.Error(err)
					}
					time.Sleep(DefaultCheckInterval)
					if err := h.run(t.Context()); err != nil || calls.Load() != 2 {
						t.Errorf("%v after %d calls", err, calls.Load())
					}
				})
			})
		}
	}
}

// A call that hangs is not repeated.
func TestHealthCheck_Hangs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int64
		hung := make(chan struct{})
		h := &healthCheck{timeout: DefaultCheckTimeout, healthy: func(context.Context) error {
			calls.Add(1)
			<-hung
			return nil
		}}
		for range 3 {
			if err := h.run(t.Context()); !errors.Is(err, errCheckTimeout) || calls.Load() != 1 {
				t.Errorf("%v after %d calls", err, calls.Load())
			}
		}
		close(hung)
		if err := h.run(t.Context()); err != nil || calls.Load() != 2 {
			t.Errorf("%v after %d calls", err, calls.Load())
		}
	})
}

// One slow check ends no tenure. Checks that are always late do, though each passes in the end.
func TestMonitoredElector_LateChecks(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		isLate func(call int64) bool
		ends   bool
	}{
		"once":   {func(call int64) bool { return call == 2 }, false},
		"always": {func(int64) bool { return true }, true},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, fc *fakeCluster) {
				fc.withRoles()
				c := fc.client("n1")
				defer c.Close()
				var calls atomic.Int64
				m := monitor(t, candidate(t, c, 30*time.Second), ElectorConfig{
					Healthy: func(ctx context.Context) error {
						if !tc.isLate(calls.Add(1)) {
							return nil
						}
						<-ctx.Done()
						if tc.ends {
							time.Sleep(time.Second) // it ignores its context
							return nil
						}
						return ctx.Err()
					},
					CheckFailures: 2,
				})
				l, err := m.Campaign(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				select {
				case <-l.Done():
					if !tc.ends || !errors.Is(l.Cause(), errCheckTimeout) {
						t.Errorf("%v after %d calls: %+v", l.Cause(), calls.Load(), m.Stats())
					}
				case <-time.After(time.Minute):
					if tc.ends {
						t.Errorf("the tenure goes on: %+v", m.Stats())
					}
				}
				if err := m.Close(t.Context()); err != nil {
					t.Error(err)
				}
				time.Sleep(time.Second) // the last check returns
			}, "n1")
		})
	}
}
