package client

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Why a tenure is over, to test for with errors.Is: the causes of a Leadership,
// and what a Gate answers.
var (
	// ErrNotLeader: this process may not act: it does not hold the role, or cannot
	// prove that it does. The other errors here are of this kind.
	ErrNotLeader = errors.New("not the leader")
	// ErrLeaseLapsed: renewals were late. The role may still be held: campaigning
	// again tells, and gives the same tenure then.
	ErrLeaseLapsed = fmt.Errorf("%w: the lease was not renewed in time", ErrNotLeader)
	// ErrRoleLost: the role was taken away, or handed to another.
	ErrRoleLost = fmt.Errorf("%w: the role was lost", ErrNotLeader)
	// ErrResigned: this process gave the role back.
	ErrResigned = fmt.Errorf("%w: resigned", ErrNotLeader)
)

// Leadership is one tenure as its holder knows it: it lasts as long as the holder
// can prove it, and never begins again. Methods may be called by any goroutine.
type Leadership struct {
	Holder // this process

	deadline *Deadline
	resign   func(ctx context.Context) error
	done     chan struct{}
	cause    error // guarded by deadline.mu; set before done is closed
}

// Done is closed when the tenure is over, as Cause then says.
func (t *Leadership) Done() <-chan struct{} { return t.done }

// ValidFor is for how long this process may act as holder from now on, should it
// hear nothing more. 0: no more. It looks at the clock itself, so that it tells
// the truth also to a process that was stopped until a moment ago.
func (t *Leadership) ValidFor() time.Duration {
	t.deadline.mu.Lock()
	defer t.deadline.mu.Unlock()
	left := t.deadline.remaining()
	if t.cause != nil {
		return 0
	}
	return left
}

// Cause is why the tenure is over, ErrNotLeader or one of its kind; nil while it
// lasts.
func (t *Leadership) Cause() error {
	t.deadline.mu.Lock()
	defer t.deadline.mu.Unlock()
	t.deadline.expire()
	return t.cause
}

// End ends the tenure here, without telling anybody. The first cause counts.
func (t *Leadership) End(cause error) {
	t.deadline.mu.Lock()
	defer t.deadline.mu.Unlock()
	t.deadline.endTenure(t, cause)
}

// Resign gives the role back. From the call on this process counts as holder no
// more, whatever the error: which says that the role may be free only when the
// session ends.
func (t *Leadership) Resign(ctx context.Context) error {
	t.End(ErrResigned)
	return t.resign(ctx)
}

// Context gives a context that ends with ctx, with the tenure, or when early is left
// of its lease, so that there is time to stop; its cause says which. At most a third
// of the lease can be asked for. The caller must call the cancel function.
func (t *Leadership) Context(ctx context.Context, early time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	if left := t.timeUntilEarlyStop(early); left <= 0 {
		cancel(t.causeOrDefault(ErrLeaseLapsed))
	}
	go func() {
		timer := time.NewTimer(0)
		defer timer.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-t.done:
				cancel(t.Cause())
				return
			case <-timer.C:
			}
			left := t.timeUntilEarlyStop(early)
			if left <= 0 {
				cancel(t.causeOrDefault(ErrLeaseLapsed))
				return
			}
			timer.Reset(min(left, suspendPollInterval))
		}
	}()
	return ctx, func() { cancel(context.Canceled) }
}

// timeUntilEarlyStop is what is left before early before the end of the lease.
func (t *Leadership) timeUntilEarlyStop(early time.Duration) time.Duration {
	t.deadline.mu.Lock()
	valid := t.deadline.validity
	t.deadline.mu.Unlock()
	return t.ValidFor() - max(0, min(early, valid/3))
}

func (t *Leadership) causeOrDefault(otherwise error) error {
	if err := t.Cause(); err != nil {
		return err
	}
	return otherwise
}
