package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"time"
)

// Holder describes the holder of a role, or a vacant role.
type Holder struct {
	Role       string
	Name       string // of the session or process
	Session    string // "" if the role is vacant
	Token      uint64 // fencing token: increases with every tenure; 0 if the role is vacant
	Value      string // set by the candidate
	AcquiredAt time.Time
	// Cause is why the last tenure ended, if the role is vacant and that is known: expired, disconnected, resigned,
	// evicted and so on.
	Cause string
}

// Held reports whether the role is held.
func (h Holder) Held() bool { return h.Token != 0 }

// Elector is one candidate for one role. Candidate implements it for NorthStar; other implementations may grant the
// role from elsewhere. Methods are safe for concurrent use.
type Elector interface {
	// Campaign returns when this candidate holds the role, with a tenure that was just proven, or when ctx ends. It
	// survives failures. If the candidate holds the role already, it returns the same tenure with the same token.
	// Campaign after a lost tenure starts a new election. It also declares that the work of the lost tenure has
	// stopped, so call it after that. Until then, or until the lease ends, no other candidate is elected.
	Campaign(ctx context.Context) (*Leadership, error)
	// Observe yields the current holder, then each change, once and in order, until ctx ends. The error of ctx is
	// the last value.
	Observe(ctx context.Context) iter.Seq2[Holder, error]
	// Close releases the role or the place in the queue, and returns when that is known. After an error, the role
	// is free after the TTL at the latest. The candidate is not elected again: a Campaign in progress and each later
	// one return ErrResigned.
	Close(ctx context.Context) error
}

// releaseTimeout bounds the release of a role after its holder has stopped.
const releaseTimeout = 5 * time.Second

// RunAsLeader campaigns, runs lead while this process holds the role, and campaigns again when the role was lost.
// It returns when ctx ends, when lead returns before its context ends, when this process releases the role (Leave,
// Close or Resign), or on a permanent error of the campaign.
//
// The context of lead ends when the tenure is over, and earlier than the lease by early (see Leadership.Context),
// so that lead has time to stop. RunAsLeader waits for lead, so lead never runs twice here. If lead does not
// return, another process can still be elected; only a Gate or the fencing token then stops the effects of lead.
//
// RunAsLeader returns the error of lead, unless lead only reports the end of its context. It releases the role
// after lead has returned.
func RunAsLeader(
	ctx context.Context, e Elector, early time.Duration, lead func(ctx context.Context, l *Leadership) error,
) error {
	for {
		l, err := e.Campaign(ctx)
		switch {
		case errors.Is(err, ErrResigned):
			return nil // Leave or Close: the last tenure may have ended before
		case err != nil:
			return err
		}
		over, err := tenure(ctx, l, early, lead)
		if over {
			return err
		}
	}
}

// tenure runs lead for one tenure. over reports that lead must not run again.
func tenure(
	ctx context.Context, l *Leadership, early time.Duration, lead func(ctx context.Context, l *Leadership) error,
) (over bool, err error) {
	leading, cancel := l.Context(ctx, early)
	defer cancel()
	err = lead(leading, l)
	stopped := leading.Err() != nil
	if stopped && (errors.Is(err, context.Canceled) || errors.Is(err, context.Cause(leading))) {
		err = nil
	}
	if stopped && ctx.Err() == nil && err == nil {
		return lossCause(l.Cause()) == LossResigned, nil
	}
	releaseCtx, done := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
	defer done()
	if e := l.Resign(releaseCtx); e != nil && err == nil && ctx.Err() == nil {
		return true, fmt.Errorf("release role %s: %w", l.Role, e)
	}
	if err == nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return true, err
}

// Leave gracefully stops a process that serves under a gate. It accepts no new work, waits for work in flight,
// releases the role and ends the session, which also removes the process from the node registry. If ctx ends with
// work in flight, the role is kept, so that no other holder starts beside it. Leave then returns an error: call it
// again, or let the lease run out.
func Leave(ctx context.Context, g *Gate, e Elector) error {
	err := g.Drain(ctx)
	for errors.Is(err, errReopened) {
		err = g.Drain(ctx)
	}
	if err != nil {
		return err
	}
	return e.Close(ctx)
}

// UntilClosed campaigns until closed ends, which the elector's Close does first. Then it releases what campaign has won
// meanwhile, and returns ErrResigned. It is exported for implementations of Elector.
func UntilClosed(
	ctx, closed context.Context, campaign func(ctx context.Context) (*Leadership, error),
) (*Leadership, error) {
	if closed.Err() != nil {
		return nil, ErrResigned
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(closed, func() { cancel(ErrResigned) })()
	l, err := campaign(ctx)
	if closed.Err() == nil {
		return l, err
	}
	if err == nil {
		release, done := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
		defer done()
		_ = l.Resign(release) // Close reports it
	}
	return nil, ErrResigned
}

// Why a tenure has ended: the causes of a Leadership, and the errors of a Gate. Test for them with errors.Is.
var (
	// ErrNotLeader: this process may not act, because it does not hold the role or cannot prove it. The other
	// errors here wrap it.
	ErrNotLeader = errors.New("not the leader")
	// ErrLeaseLapsed: renewals were late. The role may still be held. In that case, the next Campaign returns the
	// same tenure.
	ErrLeaseLapsed = fmt.Errorf("%w: the lease was not renewed in time", ErrNotLeader)
	// ErrUnproven: the connection that the session depends on has broken, so that the role may have another holder. A
	// Gate returns it until the session is attached again. The tenure goes on meanwhile.
	ErrUnproven = fmt.Errorf("%w: the connection of the session has broken, and is made again", ErrNotLeader)
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

// proven returns nil if nothing speaks against the tenure. After ErrUnproven, again is closed when it is proven.
func (l *Leadership) proven() (again <-chan struct{}, err error) {
	l.deadline.mu.Lock()
	defer l.deadline.mu.Unlock()
	l.deadline.expire()
	switch {
	case l.cause != nil:
		return nil, l.cause
	case l.deadline.unproven != nil:
		return l.deadline.unproven, ErrUnproven
	}
	return nil, nil
}

// waitProven is proven, except that it waits while there is a doubt, until ctx ends.
func (l *Leadership) waitProven(ctx context.Context) error {
	for {
		again, err := l.proven()
		if again == nil {
			return err
		}
		select {
		case <-again:
		case <-l.done:
		case <-ctx.Done():
			return err
		}
	}
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

// Fence returns the condition that this tenure is the role's current one, for writes to the same cluster. It stays the
// same when the tenure has ended: such writes then fail with ErrFenced once the role has another holder.
func (l *Leadership) Fence() *Fence { return &Fence{Role: l.Role, Token: l.Token} }

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
