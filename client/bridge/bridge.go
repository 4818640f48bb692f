// Package bridge moves a fleet of processes from another lock to a role of NorthStar while they run. In between, a
// process acts only while it holds both. docs/moving.md describes the steps, and decision 044 has the reasons.
//
// The lock is a PostgreSQL advisory lock (postgres.AdvisoryLock), an election in etcd (adapters/etcdlock), a Lease of
// Kubernetes (adapters/client-go), or any other that implements Lock.
package bridge

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"northstar/client"
)

// Lock is one candidate for the lock from which a fleet moves. An Elector calls Acquire again only after it has
// released the last hold.
type Lock interface {
	// Acquire waits while another process holds the lock. It returns an error if ctx ends, or if it cannot ask for the
	// lock: then the Elector gives the role to others before it tries again.
	//
	// ctx bounds the wait only, not the hold. held is how long this process certainly holds the lock. Acquire extends
	// it in the background until the lock is released, and ends it when the lock is lost. It should end before another
	// process can get the lock.
	//
	// The Elector calls release once, also if the lock is lost. release returns when the lock is free. An error means
	// that it is free only later.
	Acquire(ctx context.Context) (held *client.Deadline, release func(ctx context.Context) error, err error)
}

// Config configures an Elector.
type Config struct {
	Phase Phase
	Role  string // its name, as tenures and logs show it
	// Elector is a candidate for the role. Not needed in phase old. Its session has a Grace, or is not attached: gates
	// of the bridge's tenures do not see ErrUnproven.
	Elector client.Elector
	// Lock is a candidate for the lock. Not needed in phase new.
	Lock Lock
	// TakeoverDelay is how long this process waits after it got the lock before it acts. Set it to how long a process
	// of today acts on without noticing that it has lost the lock.
	TakeoverDelay time.Duration
	// Clock is the clock of a tenure's deadline: the time since any fixed moment. Nil: CLOCK_BOOTTIME on Linux,
	// CLOCK_MONOTONIC_RAW on macOS, Go's monotonic clock elsewhere.
	Clock func() time.Duration
	// Logger receives what this process holds and waits for. Nil: nothing is logged.
	Logger *slog.Logger
}

func (c Config) check() error {
	var errs []error
	if !c.Phase.valid() {
		errs = append(errs, fmt.Errorf("Phase: must be old, both or new (got %v)", c.Phase))
	}
	if c.Role == "" {
		errs = append(errs, errors.New("role: empty"))
	}
	if c.Phase.needsRole() && c.Elector == nil {
		errs = append(errs, fmt.Errorf("Elector: needed in phase %v", c.Phase))
	}
	if c.Phase.needsLock() && c.Lock == nil {
		errs = append(errs, fmt.Errorf("Lock: needed in phase %v", c.Phase))
	}
	if c.TakeoverDelay < 0 {
		errs = append(errs, fmt.Errorf("TakeoverDelay: must be 0 or more (got %v)", c.TakeoverDelay))
	}
	return errors.Join(errs...)
}

// New returns the elector of a phase. In phase new that is cfg.Elector itself. In the others it is an Elector.
func New(cfg Config) (client.Elector, error) {
	if err := cfg.check(); err != nil {
		return nil, fmt.Errorf("bridge configuration: %w", err)
	}
	if cfg.Phase == PhaseNew {
		return cfg.Elector, nil
	}
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler)).With("role", cfg.Role, "phase", cfg.Phase.String())
	e := &Elector{cfg: cfg, campaigning: make(chan struct{}, 1)}
	e.closed, e.close = context.WithCancel(context.Background())
	return e, nil
}

const (
	releaseTimeout = 5 * time.Second // of releases after a lost or abandoned tenure
	maxBackoff     = 5 * time.Second // between two attempts
)

// ErrLockLost is the cause of a tenure's end when the lock was lost.
var ErrLockLost = fmt.Errorf("%w: the lock of the other system was lost", client.ErrRoleLost)

var (
	// errNoLock: the lock cannot be asked for.
	errNoLock = errors.New("cannot acquire the lock of the other system")
	// errClosed: Config.Elector was closed, and is not elected again.
	errClosed = errors.New("the elector of the role is closed")
)

// Elector implements client.Elector in the phases old and both. In phase old its tenures have no fencing token: Token
// is 0.
type Elector struct {
	cfg Config

	campaigning chan struct{}   // capacity 1: held during Campaign
	closed      context.Context // ended by Close
	close       context.CancelFunc
	released    chan struct{} // of the last attempt: closed when it holds nothing; Campaign's own, nil: none

	mu     sync.Mutex
	latest *tenure // nil: none yet
}

var _ client.Elector = (*Elector)(nil)

// Campaign implements client.Elector. Each tenure after a lost one has a new token, also after late renewals: another
// process may have held the lock in between.
func (e *Elector) Campaign(ctx context.Context) (*client.Leadership, error) {
	select {
	case e.campaigning <- struct{}{}:
	case <-ctx.Done():
		return nil, e.campaignError(context.Cause(ctx))
	}
	defer func() { <-e.campaigning }()
	return client.UntilClosed(ctx, e.closed, e.campaign)
}

func (e *Elector) campaign(ctx context.Context) (*client.Leadership, error) {
	if t := e.current(); t != nil {
		err := t.waitProven(ctx)
		if err == nil {
			return t.leadership, nil
		}
		if t.abandon(ctx); ctx.Err() != nil {
			return nil, e.campaignError(err)
		}
	}
	for n := 0; ; n++ {
		l, err := e.attempt(ctx)
		if err == nil {
			return l, nil
		}
		again := errors.Is(err, client.ErrNotLeader) || errors.Is(err, errNoLock)
		if ctx.Err() != nil || !again || errors.Is(err, errClosed) {
			return nil, e.campaignError(err)
		}
		e.cfg.Logger.Warn("the attempt to lead has failed", "error", err)
		if pauseErr := pause(ctx, backoff(n)); pauseErr != nil {
			return nil, e.campaignError(errors.Join(err, pauseErr))
		}
	}
}

func (e *Elector) campaignError(err error) error {
	return fmt.Errorf("campaign for role %s: %w", e.cfg.Role, err)
}

// attempt takes what the phase needs, step by step. The error is ErrNotLeader or errNoLock if another attempt may
// succeed.
func (e *Elector) attempt(ctx context.Context) (*client.Leadership, error) {
	if e.released != nil { // a late release would free what this attempt takes
		select {
		case <-e.released:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	t := &tenure{e: e, released: make(chan struct{})}
	e.released = t.released
	for {
		var err error
		switch e.cfg.Phase.next(t.state(false)) {
		case campaign:
			if t.role, err = e.cfg.Elector.Campaign(ctx); err == nil {
				t.noteLease(t.role.ValidFor())
				e.cfg.Logger.Info("holds the role, waits for the lock", "token", t.role.Token)
			} else if errors.Is(err, client.ErrResigned) {
				err = fmt.Errorf("%w: %w", errClosed, err)
			}
		case acquire:
			err = t.acquire(ctx)
		case lead:
			if err = t.begin(ctx); err == nil {
				e.mu.Lock()
				e.latest = t
				e.mu.Unlock()
				e.cfg.Logger.Info("leads", "token", t.leadership.Token)
				return t.leadership, nil
			}
		default:
			err = t.lostCause()
		}
		if err != nil {
			t.abandon(ctx)
			return nil, err
		}
	}
}

// current returns the latest tenure.
func (e *Elector) current() *tenure {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.latest
}

// Observe implements client.Elector: it observes the role. Processes in phase old do not appear there. A process in
// phase both appears when it holds the role, although it may still wait for the lock.
func (e *Elector) Observe(ctx context.Context) iter.Seq2[client.Holder, error] {
	if e.cfg.Elector == nil {
		return func(yield func(client.Holder, error) bool) {
			yield(client.Holder{}, fmt.Errorf("observe role %s in phase %v: %w", e.cfg.Role, e.cfg.Phase,
				errors.ErrUnsupported))
		}
	}
	return e.cfg.Elector.Observe(ctx)
}

// Close implements client.Elector.
func (e *Elector) Close(ctx context.Context) error {
	e.close()
	if t := e.current(); t != nil {
		t.leadership.End(client.ErrResigned) // before the wait for a campaign
	}
	var err error
	select {
	case e.campaigning <- struct{}{}:
		defer func() { <-e.campaigning }()
	case <-ctx.Done(): // a campaign in progress releases what it holds
		err = fmt.Errorf("release role %s: %w", e.cfg.Role, context.Cause(ctx))
	}
	if t := e.current(); t != nil {
		t.leadership.End(client.ErrResigned)
		err = cmp.Or(t.release(ctx), err)
	}
	if e.cfg.Phase.needsRole() {
		err = errors.Join(err, e.cfg.Elector.Close(ctx))
	}
	return err
}

// backoff returns the pause after n+1 failed attempts in a row.
func backoff(n int) time.Duration {
	return min(maxBackoff, 50*time.Millisecond<<min(n, 10)) - rand.N(20*time.Millisecond)
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
