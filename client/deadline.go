package client

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// suspendPollInterval is the longest sleep on a timer. Timers stop while the machine is suspended; the lease does
// not.
const suspendPollInterval = 250 * time.Millisecond

// Deadline is the end of a lease as its holder computes it: the holder may act until then without a renewal. It
// uses a clock that advances while the machine is suspended. It counts from when the successful renewal was sent,
// so it always ends before the granting side frees the role.
//
// Users of roles see a Deadline only through Leadership and Session. It is exported for implementations of Elector.
// Its methods are safe for concurrent use.
type Deadline struct {
	clock func() time.Duration
	done  chan struct{} // closed by End

	mu       sync.Mutex
	until    time.Duration // on clock; the lease has lapsed from then on
	validity time.Duration // validity of the last grant, from when its request was sent
	renewals DurationHistogram
	cause    error // cause of its end; nil: it may be extended
	tenures  map[*Leadership]struct{}
	changed  chan struct{} // closed when until or tenures change
	unproven chan struct{} // closed by prove; nil: no doubt
}

// NewDeadline returns a Deadline that has passed. clock returns the time since any fixed moment; nil:
// CLOCK_BOOTTIME on Linux, CLOCK_MONOTONIC_RAW on macOS, Go's monotonic clock elsewhere.
func NewDeadline(clock func() time.Duration) *Deadline {
	if clock == nil {
		clock = sinceBoot
	}
	return &Deadline{
		clock: clock, done: make(chan struct{}), tenures: map[*Leadership]struct{}{}, changed: make(chan struct{}),
	}
}

// Now reads the lease's clock.
func (d *Deadline) Now() time.Duration { return d.clock() }

// Extend records that the lease was granted. sent is when the request was sent, on the lease's clock; valid is how
// long it lasts after that, less the clock drift. If the lease has lapsed meanwhile, its tenures stay ended:
// callers may know that already.
func (d *Deadline) Extend(sent, valid time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.renewals.observe(max(0, d.clock()-sent))
	d.extend(sent+valid, valid)
}

// ExtendTo is Extend for a lease that follows from others: it lasts until a moment on the lease's clock. valid is how
// long it lasts at most, as in Extend. It does not count as a renewal.
func (d *Deadline) ExtendTo(until, valid time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.extend(until, valid)
}

// extend extends the lease. The caller holds mu.
func (d *Deadline) extend(until, valid time.Duration) {
	d.expire()
	if d.cause != nil || until <= d.until {
		return
	}
	d.until, d.validity = until, valid
	d.wake()
}

// renewalTimes returns how long the renewals took, from when they were sent.
func (d *Deadline) renewalTimes() DurationHistogram {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.renewals
}

// End ends the lease permanently, and with it all tenures. Only the first cause counts.
func (d *Deadline) End(cause error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.cause != nil {
		return
	}
	d.cause = cause
	for l := range d.tenures {
		d.endTenure(l, fmt.Errorf("%w: %w", ErrNotLeader, cause))
	}
	close(d.done)
	d.wake()
}

// Done returns a channel that is closed when the lease has ended permanently.
func (d *Deadline) Done() <-chan struct{} { return d.done }

// Err returns why the lease ended; nil before.
func (d *Deadline) Err() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.cause
}

// ValidFor returns how long the lease lasts if it is not extended; 0 if it has lapsed.
func (d *Deadline) ValidFor() time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.remaining()
}

// Begin starts a tenure under the lease. resign releases the role; it may be called more than once, and concurrently.
// Begin returns ErrLeaseLapsed if the lease has lapsed, or the cause if it has ended.
func (d *Deadline) Begin(h Holder, resign func(ctx context.Context) error) (*Leadership, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.cause != nil:
		return nil, fmt.Errorf("%w: %w", ErrNotLeader, d.cause)
	case d.remaining() == 0:
		return nil, ErrLeaseLapsed
	}
	l := &Leadership{Holder: h, deadline: d, resign: resign, done: make(chan struct{})}
	d.tenures[l] = struct{}{}
	d.wake()
	return l, nil
}

// WaitHalfLease waits until at least half of the lease is left. The error is the cause of the lease's end or of
// ctx.
func (d *Deadline) WaitHalfLease(ctx context.Context) error {
	for {
		d.mu.Lock()
		left, valid, cause, changed := d.remaining(), d.validity, d.cause, d.changed
		d.mu.Unlock()
		switch {
		case cause != nil:
			return cause
		case left > 0 && left >= valid/2:
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// doubt records that the lease may have ended before its time: gates are shut until prove. It has no effect once
// replaced is set, which is before the prove of a newer connection.
func (d *Deadline) doubt(replaced *atomic.Bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.unproven == nil && !replaced.Load() {
		d.unproven = make(chan struct{})
	}
}

// prove records that the lease has not ended before its time.
func (d *Deadline) prove() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.unproven != nil {
		close(d.unproven)
		d.unproven = nil
	}
}

// Run ends tenures when the lease lapses, until ctx or the lease ends. Without Run, tenures still count as ended at
// that moment, but their Done is not closed.
func (d *Deadline) Run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		d.mu.Lock()
		next, changed := min(d.remaining(), suspendPollInterval), d.changed
		if len(d.tenures) == 0 {
			next = time.Hour // no tenure to end
		}
		d.mu.Unlock()
		timer.Reset(next)
		select {
		case <-timer.C:
		case <-changed:
		case <-d.done:
			return
		case <-ctx.Done():
			return
		}
	}
}

// remaining returns how much of the lease is left. If nothing is left, it ends the tenures. The caller holds mu.
func (d *Deadline) remaining() time.Duration {
	d.expire()
	if d.cause != nil {
		return 0
	}
	return max(0, d.until-d.clock())
}

// expire ends the tenures if the lease was not extended in time. The caller holds mu.
func (d *Deadline) expire() {
	if d.clock() < d.until {
		return
	}
	for l := range d.tenures {
		d.endTenure(l, ErrLeaseLapsed)
	}
}

// endTenure ends one tenure. The caller holds mu.
func (d *Deadline) endTenure(l *Leadership, cause error) {
	if l.cause == nil {
		l.cause = cause
		close(l.done)
		delete(d.tenures, l)
	}
}

// wake wakes Run. The caller holds mu.
func (d *Deadline) wake() {
	close(d.changed)
	d.changed = make(chan struct{})
}
