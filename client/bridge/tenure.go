package bridge

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"northstar/client"
)

// extendInterval is the longest time between two looks at the deadlines of role and lock.
const extendInterval = 250 * time.Millisecond

// tenure is what a candidate holds, from its campaign to the release. One goroutine at a time changes it: attempt
// until the tenure has begun, and the first call of release.
type tenure struct {
	e           *Elector
	role        *client.Leadership // nil: not held
	lock        *client.Deadline   // nil: not held
	releaseLock func(ctx context.Context) error

	deadline   *client.Deadline // of both; nil: the tenure has not begun
	validity   time.Duration    // the shorter of both leases; 0: not known
	leadership *client.Leadership
	ended      sync.WaitGroup // run

	releasing  sync.Once
	released   chan struct{} // closed when release has done all that it can
	releaseErr error         // set before released is closed
}

// state returns what the candidate holds now.
func (t *tenure) state(acting bool) state {
	s := state{acting: acting}
	if t.role != nil {
		s.role = held
		if t.role.Cause() != nil {
			s.role = lost
		}
	}
	if t.lock != nil {
		s.lock = held
		if t.lock.ValidFor() == 0 {
			s.lock = lost
		}
	}
	return s
}

// lostCause returns why role or lock were lost.
func (t *tenure) lostCause() error {
	if t.role != nil && t.role.Cause() != nil {
		return t.role.Cause()
	}
	if err := t.lock.Err(); err != nil {
		return fmt.Errorf("%w: %w", ErrLockLost, err)
	}
	return fmt.Errorf("%w: the lock was not confirmed in time", client.ErrLeaseLapsed)
}

// acquire waits for the lock while the role is held, and then for the takeover delay.
func (t *tenure) acquire(ctx context.Context) error {
	waiting, cancel := ctx, context.CancelFunc(func() {})
	if t.role != nil {
		waiting, cancel = t.role.Context(ctx, 0)
	}
	defer cancel()
	var err error
	if t.lock, t.releaseLock, err = t.e.cfg.Lock.Acquire(waiting); err != nil {
		t.lock = nil
		if t.role != nil && t.role.Cause() != nil {
			return t.role.Cause()
		}
		return fmt.Errorf("%w: %w", errNoLock, err)
	}
	t.noteLease(t.lock.ValidFor())
	select {
	case <-time.After(t.e.cfg.TakeoverDelay):
	case <-t.lock.Done():
	case <-waiting.Done():
	}
	return ctx.Err()
}

// noteLease notes how long role or lock last that were just proven.
func (t *tenure) noteLease(valid time.Duration) {
	if t.validity == 0 || valid < t.validity {
		t.validity = valid
	}
}

// begin starts the tenure if role and lock last, and waits until both are proven.
func (t *tenure) begin(ctx context.Context) (err error) {
	t.deadline = client.NewDeadline(t.e.cfg.Clock)
	t.extend()
	h := client.Holder{Role: t.e.cfg.Role, Name: client.ProcessName(), AcquiredAt: time.Now()}
	if t.role != nil {
		h = t.role.Holder
	}
	if t.leadership, err = t.deadline.Begin(h, t.release); err != nil {
		return err
	}
	t.ended.Go(t.run)
	return t.waitProven(ctx)
}

// waitProven waits until renewals are not late: the context of a tenure that ends early could have ended already. It
// returns why the tenure has ended, or the cause of ctx.
func (t *tenure) waitProven(ctx context.Context) error {
	if cause := t.leadership.Cause(); cause != nil {
		return cause
	}
	if err := t.deadline.WaitHalfLease(ctx); err != nil {
		return err
	}
	return t.leadership.Cause()
}

// extend extends the deadline to what both role and lock allow.
func (t *tenure) extend() {
	now := t.deadline.Now() // before the deadlines are read: the result is never later than theirs
	valid := t.lock.ValidFor()
	if t.role != nil {
		valid = min(valid, t.role.ValidFor())
	}
	// The early stop of a Leadership counts from the whole lease, not from what is left of it.
	t.validity = max(t.validity, valid)
	t.deadline.ExtendTo(now+valid, t.validity)
}

// run extends the deadline until role or lock are lost, or the tenure ends. It releases nothing: the work may still
// run.
func (t *tenure) run() {
	ctx, cancel := context.WithCancel(context.Background())
	var expiry sync.WaitGroup
	expiry.Go(func() { t.deadline.Run(ctx) })
	defer expiry.Wait()
	defer cancel()
	var roleDone <-chan struct{}
	if t.role != nil {
		roleDone = t.role.Done()
	}
	for t.e.cfg.Phase.next(t.state(true)) == lead && t.leadership.Cause() == nil {
		t.extend()
		select {
		case <-roleDone:
		case <-t.lock.Done():
		case <-t.leadership.Done():
		case <-time.After(min(extendInterval, t.deadline.ValidFor()/4+time.Millisecond)):
		}
	}
	if t.leadership.Cause() == nil {
		t.deadline.End(t.lostCause())
	}
	t.e.cfg.Logger.Info("does not lead any longer", "token", t.leadership.Token, "cause", t.leadership.Cause())
	t.deadline.End(t.leadership.Cause()) // after a lapse it may not be extended
}

// abandon releases what a tenure without work holds, for as long as that is worth waiting for.
func (t *tenure) abandon(ctx context.Context) {
	if t.leadership != nil {
		t.leadership.End(client.ErrResigned)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
	defer cancel()
	if err := t.release(ctx); err != nil {
		t.e.cfg.Logger.Warn("cannot release role or lock: they are free when they expire", "error", err)
	}
}

// release releases lock and role. The work has stopped. Further calls return the result of the first.
func (t *tenure) release(ctx context.Context) error {
	t.releasing.Do(func() {
		go func() {
			defer close(t.released)
			t.releaseErr = t.releaseAll(ctx)
		}()
	})
	select {
	case <-t.released:
		return t.releaseErr
	case <-ctx.Done():
		return fmt.Errorf("release role %s: %w", t.e.cfg.Role, context.Cause(ctx))
	}
}

func (t *tenure) releaseAll(ctx context.Context) (err error) {
	t.ended.Wait()
	for {
		s := t.state(false)
		s.leaving = true
		switch t.e.cfg.Phase.next(s) {
		case releaseLock:
			err = errors.Join(err, t.releaseLock(ctx))
			t.lock = nil
		case resign:
			err = errors.Join(err, t.resign(ctx))
			t.role = nil
		default:
			return err
		}
	}
}

// resign releases the role. The release of the lock may have used up the time of ctx.
func (t *tenure) resign(ctx context.Context) error {
	if d, ok := ctx.Deadline(); ctx.Err() != nil || ok && time.Until(d) < releaseTimeout {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
		defer cancel()
	}
	return t.role.Resign(ctx)
}
