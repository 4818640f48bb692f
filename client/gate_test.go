package client

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// newTenure returns a deadline of ten seconds, a tenure under it, and its clock.
func newTenure(t *testing.T) (*Deadline, *Leadership, *clock) {
	t.Helper()
	clock := newClock()
	d := NewDeadline(clock.now)
	if _, err := d.Begin(Holder{Token: 7}, nil); !errors.Is(err, ErrLeaseLapsed) {
		t.Fatalf("a tenure begins without a lease: %v", err)
	}
	d.Extend(0, 10*time.Second)
	l, err := d.Begin(Holder{Role: "r", Token: 7}, func(context.Context) error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	return d, l, clock
}

func TestGate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var g Gate
		if err := g.Require(); !errors.Is(err, ErrNotLeader) {
			t.Errorf("the gate is open before anything: %v", err)
		}
		d, l, _ := newTenure(t)
		g.Bind(l)
		time.Sleep(10*time.Second - 1)
		if g.Require() != nil || g.Check(7) != nil || !errors.Is(g.Check(6), ErrNotLeader) || l.ValidFor() != 1 {
			t.Errorf("%v, %v, %v, %v", g.Require(), g.Check(7), g.Check(6), l.ValidFor())
		}
		d.Extend(5*time.Second, 10*time.Second) // sent five seconds ago
		time.Sleep(5 * time.Second)
		if err := g.Require(); err != nil {
			t.Errorf("renewed, and shut: %v", err)
		}
		time.Sleep(time.Nanosecond)
		if err := g.Require(); !errors.Is(err, ErrLeaseLapsed) {
			t.Errorf("renewals are late, and the gate is open: %v", err)
		}
		d.Extend(d.Now(), 10*time.Second)
		if err := g.Require(); !errors.Is(err, ErrLeaseLapsed) {
			t.Errorf("a tenure that was over goes on: %v", err)
		}
		// the cluster has confirmed that it still holds the role
		again, err := d.Begin(Holder{Role: "r", Token: 7}, nil)
		if err != nil {
			t.Fatal(err)
		}
		g.Bind(again)
		if err := g.Require(); err != nil {
			t.Errorf("proven again, and shut: %v", err)
		}
		d.End(ErrSessionEnded)
		if err := g.Require(); !errors.Is(err, ErrNotLeader) || !errors.Is(err, ErrSessionEnded) {
			t.Errorf("the session has ended: %v", err)
		}
		d.Extend(d.Now(), 10*time.Second)
		if d.ValidFor() != 0 {
			t.Error("extended after its end")
		}
	})
}

func TestGate_CountsRefusals(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d, l, _ := newTenure(t)
		var g Gate
		work := func(context.Context, uint64) error { return errors.New("its own error is no refusal") }
		_ = g.Require() // refused
		g.Bind(l)
		_ = g.Require()
		_ = g.Check(7)
		_ = g.Check(6) // refused
		_ = g.Do(t.Context(), work)
		d.End(ErrSessionEnded)
		_ = g.Do(t.Context(), work) // refused
		if got := g.Refused(); got != 3 {
			t.Errorf("%d calls were refused, want 3", got)
		}
	})
}

func TestExtendTo(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d, l, _ := newTenure(t)
		time.Sleep(5 * time.Second)
		d.ExtendTo(12*time.Second, 10*time.Second)
		if got := l.ValidFor(); got != 7*time.Second {
			t.Errorf("valid for %v", got)
		}
		if got := d.renewalTimes(); got.Count != 1 { // that of newTenure
			t.Errorf("counted as a renewal: %+v", got)
		}
	})
}

// A suspended process finds the gate closed when it resumes, before any timer or goroutine has run. So does a
// process on a suspended machine, where Go's own clock stood still.
func TestGate_ClosedAfterSuspend(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d, l, clock := newTenure(t)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go d.Run(ctx)
		var g Gate
		g.Bind(l)
		within, end := l.Context(ctx, 0)
		defer end()
		synctest.Wait()
		sent := d.Now() // a renewal whose response arrives only after the pause
		clock.jump(11 * time.Second)
		if err := g.Require(); !errors.Is(err, ErrLeaseLapsed) {
			t.Errorf("open after a pause: %v", err)
		}
		d.Extend(sent, 10*time.Second)
		if err := g.Require(); !errors.Is(err, ErrLeaseLapsed) || d.ValidFor() != 0 {
			t.Errorf("open by a renewal from before the pause: %v", err)
		}
		if err := g.Do(ctx,
			func(context.Context, uint64) error { t.Error("work was done"); return nil }); !errors.Is(err,
			ErrLeaseLapsed) {
			t.Error(err)
		}
		time.Sleep(suspendPollInterval) // timers have missed the suspended time
		synctest.Wait()
		if !errors.Is(context.Cause(within), ErrLeaseLapsed) {
			t.Errorf("the context goes on: %v", context.Cause(within))
		}
		select {
		case <-l.Done():
		default:
			t.Error("Done is not closed")
		}
	})
}

// A late renewal succeeds, and nothing read the clock since the end of the lease. The tenure stays ended, because
// callers may know that.
func TestExtend_LateRenewalDoesNotReviveTenure(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d, l, clock := newTenure(t)
		clock.jump(10 * time.Second)
		d.Extend(d.Now(), 10*time.Second)
		if d.ValidFor() != 10*time.Second || !errors.Is(l.Cause(), ErrLeaseLapsed) || l.ValidFor() != 0 {
			t.Errorf("%v, %v, %v", d.ValidFor(), l.Cause(), l.ValidFor())
		}
	})
}

func TestLeadership_DoneClosesOnTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d, l, _ := newTenure(t)
		go d.Run(t.Context())
		start := time.Now()
		early, cancel := l.Context(t.Context(), 2*time.Second)
		defer cancel()
		third, cancelThird := l.Context(t.Context(), time.Minute) // early is limited to a third of the lease
		defer cancelThird()
		<-third.Done()
		within(t, start, 6666*time.Millisecond, 6667*time.Millisecond)
		<-early.Done()
		within(t, start, 8*time.Second, 8*time.Second)
		<-l.Done()
		within(t, start, 10*time.Second, 10*time.Second)
	})
}

func TestGate_DoAndDrain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d, l, _ := newTenure(t)
		go d.Run(t.Context())
		var g Gate
		g.Bind(l)
		finish, results := make(chan struct{}), make(chan error, 2)
		work := func(_ context.Context, token uint64) error {
			if token != 7 {
				t.Errorf("token %d", token)
			}
			<-finish
			return g.Check(token) // while the gate drains
		}
		go func() { results <- g.Do(t.Context(), work) }()
		synctest.Wait()
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := Leave(short, &g, nil); !errors.Is(err, context.DeadlineExceeded) || g.InFlight() != 1 {
			t.Errorf("left with work in flight: %v", err)
		}
		if err := g.Do(t.Context(), work); !errors.Is(err, ErrDraining) || !errors.Is(g.Require(), ErrDraining) {
			t.Errorf("takes work while it drains: %v", err)
		}
		if err := g.Check(6); !errors.Is(err, ErrNotLeader) || errors.Is(err, ErrDraining) {
			t.Errorf("work of an earlier tenure goes on while it drains: %v", err)
		}
		drained := make(chan error)
		go func() { drained <- g.Drain(t.Context()) }()
		synctest.Wait()
		close(finish)
		if err := <-results; err != nil {
			t.Error(err)
		}
		if err := <-drained; err != nil || g.InFlight() != 0 {
			t.Error(err)
		}
		g.Bind(l)
		err := g.Do(t.Context(), func(ctx context.Context, _ uint64) error { <-ctx.Done(); return nil })
		if !errors.Is(err, ErrLeaseLapsed) {
			t.Errorf("work that outlasted the tenure is a success: %v", err)
		}
	})
}

// Bind ends a Drain: the gate stays open for the new tenure. Leave drains again.
func TestGate_BindEndsADrain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, l, _ := newTenure(t)
		var g Gate
		g.Bind(l)
		finish, worked := make(chan struct{}), make(chan error, 1)
		go func() {
			worked <- g.Do(t.Context(), func(context.Context, uint64) error { <-finish; return nil })
		}()
		synctest.Wait()
		drained, left := make(chan error, 1), make(chan error, 1)
		go func() { drained <- g.Drain(t.Context()) }()
		synctest.Wait()
		g.Bind(l)
		if err := <-drained; err == nil || g.Require() != nil || g.InFlight() != 1 {
			t.Errorf("a Drain that Bind has ended: %v; the gate: %v", err, g.Require())
		}
		go func() { left <- Leave(t.Context(), &g, closer{}) }()
		synctest.Wait()
		g.Bind(l)
		synctest.Wait()
		if err := g.Require(); !errors.Is(err, ErrDraining) || len(left) != 0 {
			t.Errorf("takes work after Leave: %v", err)
		}
		close(finish)
		if err := <-worked; err != nil {
			t.Error(err)
		}
		if err := <-left; err != nil {
			t.Error(err)
		}
	})
}

// closer is an elector that can only be closed.
type closer struct{ Elector }

func (closer) Close(context.Context) error { return nil }
