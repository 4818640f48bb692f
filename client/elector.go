package client

import (
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
	// is free after the TTL at the latest.
	Close(ctx context.Context) error
}

// releaseTimeout bounds the release of a role after its holder has stopped.
const releaseTimeout = 5 * time.Second

// RunAsLeader campaigns, runs lead while this process holds the role, and campaigns again when the role was lost.
// It returns when ctx ends, when lead returns before its context ends, or on a permanent error of the campaign.
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
		if err != nil {
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
		return false, nil
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
	if err := g.Drain(ctx); err != nil {
		return err
	}
	return e.Close(ctx)
}
