package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"
)

// Why a tenure has ended: the causes of a Leadership, and the errors of a Gate. Test for them with errors.Is.
var (
	// ErrNotLeader: this process may not act, because it does not hold the role or cannot prove it. The other
	// errors here wrap it.
	ErrNotLeader = errors.New("not the leader")
	// ErrLeaseLapsed: renewals were late. The role may still be held. In that case, the next Campaign returns the
	// same tenure.
	ErrLeaseLapsed = fmt.Errorf("%w: the lease was not renewed in time", ErrNotLeader)
	// ErrRoleLost: the role was revoked or transferred.
	ErrRoleLost = fmt.Errorf("%w: the role was lost", ErrNotLeader)
	// ErrResigned: this process released the role.
	ErrResigned = fmt.Errorf("%w: resigned", ErrNotLeader)
)

// Leadership is one tenure as its holder knows it. It lasts while the holder can prove it, and never resumes after
// its end. Its methods are safe for concurrent use.
type Leadership struct {
	Holder // this process

	deadline *Deadline
	resign   func(ctx context.Context) error
	done     chan struct{}
	cause    error // guarded by deadline.mu; set before done is closed
}

// Done returns a channel that is closed when the tenure has ended; Cause then returns why.
func (l *Leadership) Done() <-chan struct{} { return l.done }

// ValidFor returns how long this process may act as holder without a further renewal; 0 after the tenure's end. It
// reads the clock, so that it is correct even right after the process was suspended.
func (l *Leadership) ValidFor() time.Duration {
	l.deadline.mu.Lock()
	defer l.deadline.mu.Unlock()
	left := l.deadline.remaining()
	if l.cause != nil {
		return 0
	}
	return left
}

// Cause returns why the tenure has ended, ErrNotLeader or an error that wraps it; nil while it lasts.
func (l *Leadership) Cause() error {
	l.deadline.mu.Lock()
	defer l.deadline.mu.Unlock()
	l.deadline.expire()
	return l.cause
}

// End ends the tenure locally, without a request. Only the first cause counts.
func (l *Leadership) End(cause error) {
	l.deadline.mu.Lock()
	defer l.deadline.mu.Unlock()
	l.deadline.endTenure(l, cause)
}

// Resign releases the role. The tenure ends when Resign is called, even if it returns an error. After an error, the
// role may be free only when the session ends.
func (l *Leadership) Resign(ctx context.Context) error {
	l.End(ErrResigned)
	return l.resign(ctx)
}

// Context returns a context that ends with ctx, with the tenure, or when only early is left of the lease, so that
// there is time to stop. Its cause is which of them. early is limited to a third of the lease. The caller must call
// the cancel function.
func (l *Leadership) Context(ctx context.Context, early time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	wait := func() time.Duration {
		left := l.timeUntilEarlyStop(early)
		if left <= 0 {
			cancel(cmp.Or(l.Cause(), ErrLeaseLapsed))
		}
		return min(left, suspendPollInterval)
	}
	first := wait()
	go func() {
		for left := first; ctx.Err() == nil; left = wait() {
			select {
			case <-ctx.Done():
			case <-l.done:
				cancel(l.Cause())
			case <-time.After(left):
			}
		}
	}()
	return ctx, func() { cancel(context.Canceled) }
}

// timeUntilEarlyStop returns the time until only early is left of the lease.
func (l *Leadership) timeUntilEarlyStop(early time.Duration) time.Duration {
	l.deadline.mu.Lock()
	valid := l.deadline.validity
	l.deadline.mu.Unlock()
	return l.ValidFor() - max(0, min(early, valid/3))
}
