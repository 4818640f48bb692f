package client

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// suspendPollInterval is how long a timer may be trusted: it does not run while the machine
// is suspended, and the lease does.
const suspendPollInterval = 250 * time.Millisecond

// Deadline is the end of a holder's lease as the holder counts it: until when it may
// act without hearing from whoever grants the role. It counts on a clock that runs on
// while the machine is suspended, from the moment at which the renewal that succeeded
// was sent, so that it always ends before the granting side frees the role.
//
// Those who use roles see a Deadline only through Leadership and Session; it is
// exported for implementations of Elector. Methods may be called by any goroutine.
type Deadline struct {
	clock func() time.Duration
	done  chan struct{} // closed by End

	mu       sync.Mutex
	until    time.Duration // of the clock; the lease has lapsed from there on
	validity time.Duration // from the sending, as last granted
	cause    error         // of its end; nil: it may be extended
	tenures  map[*Leadership]struct{}
	changed  chan struct{} // closed when until or held has changed
}

// NewDeadline makes one that has passed. clock tells the time since any fixed
// moment; nil: CLOCK_BOOTTIME on Linux, Go's monotonic clock elsewhere.
func NewDeadline(clock func() time.Duration) *Deadline {
	if clock == nil {
		clock = sinceBoot
	}
	return &Deadline{clock: clock, done: make(chan struct{}), tenures: map[*Leadership]struct{}{}, changed: make(chan struct{})}
}

// Now reads the lease's clock.
func (d *Deadline) Now() time.Duration { return d.clock() }

// Extend says that the lease was granted: sent is when the request for it was sent,
// of the lease's clock, and valid how long after that it lasts, the drift of clocks
// already taken off. Should it have lapsed meanwhile, the tenures under it are over
// all the same: somebody may have been told so.
func (d *Deadline) Extend(sent, valid time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.expire()
	if d.cause != nil || sent+valid <= d.until {
		return
	}
	d.until, d.validity = sent+valid, valid
	d.wake()
}

// End ends the lease for good, and with it all tenures. The first cause counts.
func (d *Deadline) End(cause error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.cause != nil {
		return
	}
	d.cause = cause
	for t := range d.tenures {
		d.endTenure(t, fmt.Errorf("%w: %w", ErrNotLeader, cause))
	}
	close(d.done)
	d.wake()
}

// Done is closed when the lease has ended for good.
func (d *Deadline) Done() <-chan struct{} { return d.done }

// Err is why it has; nil before.
func (d *Deadline) Err() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.cause
}

// ValidFor is how long the lease lasts if it is not extended; 0 when it has lapsed.
func (d *Deadline) ValidFor() time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.remaining()
}

// Begin starts a tenure under the lease. resign gives the role back; it is called at
// most once at a time. ErrLeaseLapsed, or an error with the cause of the lease's
// end, when there is nothing to stand on.
func (d *Deadline) Begin(h Holder, resign func(ctx context.Context) error) (*Leadership, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.cause != nil:
		return nil, fmt.Errorf("%w: %w", ErrNotLeader, d.cause)
	case d.remaining() == 0:
		return nil, ErrLeaseLapsed
	}
	t := &Leadership{Holder: h, deadline: d, resign: resign, done: make(chan struct{})}
	d.tenures[t] = struct{}{}
	d.wake()
	return t, nil
}

// hasUntried waits until at least half of the lease is left. The error is why it will
// not be, or that ctx ended.
func (d *Deadline) waitHalfLease(ctx context.Context) error {
	for {
		d.mu.Lock()
		left, valid, cause, moved := d.remaining(), d.validity, d.cause, d.changed
		d.mu.Unlock()
		switch {
		case cause != nil:
			return cause
		case left > 0 && left >= valid/2:
			return nil
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Run ends tenures when the lease lapses, until ctx ends or the lease does.
// Without it they still count as over from that moment on; it is what closes Done
// of each.
func (d *Deadline) Run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		d.mu.Lock()
		next, moved := min(d.remaining(), suspendPollInterval), d.changed
		if len(d.tenures) == 0 {
			next = time.Hour // until there is something to end
		}
		d.mu.Unlock()
		timer.Reset(next)
		select {
		case <-timer.C:
		case <-moved:
		case <-d.done:
			return
		case <-ctx.Done():
			return
		}
	}
}

// remaining is what is left of the lease. When that is nothing its tenures are over. The
// caller holds mu.
func (d *Deadline) remaining() time.Duration {
	d.expire()
	if d.cause != nil {
		return 0
	}
	return max(0, d.until-d.clock())
}

// expire ends the tenures of a lease that was not extended in time. The caller
// holds mu.
func (d *Deadline) expire() {
	if d.clock() < d.until {
		return
	}
	for t := range d.tenures {
		d.endTenure(t, ErrLeaseLapsed)
	}
}

// endTenure ends one tenure. The caller holds mu.
func (d *Deadline) endTenure(t *Leadership, cause error) {
	if t.cause == nil {
		t.cause = cause
		close(t.done)
		delete(d.tenures, t)
	}
}

// wake wakes Run. The caller holds mu.
func (d *Deadline) wake() {
	close(d.changed)
	d.changed = make(chan struct{})
}
