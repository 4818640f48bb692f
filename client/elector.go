package client

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"
)

// Holder is who holds a role, or that nobody does.
type Holder struct {
	Role       string
	Name       string // of the session, or process
	Session    string // "" where nobody holds the role
	Token      uint64 // fencing token: greater at every new tenure, for ever; 0 where nobody holds the role
	Value      string // that the candidate gave
	AcquiredAt time.Time
	// Cause is why the last tenure ended, where nobody holds the role and that is
	// known: expired, disconnected, resigned, evicted and so on.
	Cause string
}

// Held says whether somebody holds the role.
func (h Holder) Held() bool { return h.Token != 0 }

// Elector is one candidate for one role. Candidate is the one of NorthStar; others
// may grant the role from elsewhere. Methods may be called by any goroutine.
type Elector interface {
	// Campaign returns when this candidate holds the role, with a tenure that was
	// proven a moment ago, or when ctx ends. It rides through failures. Called by
	// the holder it gives its tenure again, with the same token; a candidate that
	// has lost it stands for election again, and says by that that what it did as
	// holder has ended: call it after that. Until then, or the end of the lease,
	// nobody else is elected.
	Campaign(ctx context.Context) (*Leadership, error)
	// Observe yields who holds the role, then each change, once and in order, until
	// ctx ends, whose error is the last thing that it yields.
	Observe(ctx context.Context) iter.Seq2[Holder, error]
	// Close gives back what the candidate holds or waits for, and returns when that
	// is known. With an error it ends by itself, after the TTL at the latest.
	Close(ctx context.Context) error
}

// releaseTimeout is how long giving a role back may take once its holder has stopped.
const releaseTimeout = 5 * time.Second

// RunAsLeader campaigns, runs lead while this process holds the role, and campaigns
// again when it was lost, until ctx ends, lead returns by itself, or the campaign
// meets an error that will not pass. The context of lead ends when the tenure is
// over, and before the lease could lapse: by early, when that is more than nothing
// (see Leadership.Context), which is the time that lead has to stop. There are
// never two of it, since RunAsLeader waits for it: one that does not return keeps
// nobody from being elected elsewhere, and only a Gate or the fencing token holds
// up what it does then.
//
// What lead returns is returned, unless its context had ended and it says nothing
// else. The role is given back when lead has returned, not before.
func RunAsLeader(ctx context.Context, e Elector, early time.Duration, lead func(ctx context.Context, l *Leadership) error) error {
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

// tenure runs lead for one tenure. over says that it is not to be run again.
func tenure(ctx context.Context, l *Leadership, early time.Duration, lead func(ctx context.Context, l *Leadership) error) (over bool, err error) {
	within, cancel := l.Context(ctx, early)
	defer cancel()
	err = lead(within, l)
	stopped := within.Err() != nil
	if stopped && (errors.Is(err, context.Canceled) || errors.Is(err, context.Cause(within))) {
		err = nil
	}
	if stopped && ctx.Err() == nil && err == nil {
		return false, nil
	}
	leave, done := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
	defer done()
	if e := l.Resign(leave); e != nil && err == nil && ctx.Err() == nil {
		return true, fmt.Errorf("give role %s back: %w", l.Role, e)
	}
	if err == nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return true, err
}

// Leave is the graceful end of a process that serves under a gate: it takes no more
// work, waits for what is in flight, gives the role back and ends the session, which
// takes the process out of the registry of nodes too. When ctx ends with work still
// in flight, the role is kept, lest another begins beside it, and the error says so:
// call it again, or give up and let the lease run out.
func Leave(ctx context.Context, g *Gate, e Elector) error {
	if err := g.Drain(ctx); err != nil {
		return err
	}
	return e.Close(ctx)
}
