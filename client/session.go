package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"northstar/api/apiv1"
	"northstar/cluster"
)

// DefaultSessionTTL is the TTL of a session if its configuration has none.
const DefaultSessionTTL = apiv1.DefaultSessionTTLMS * time.Millisecond

const (
	minSessionTTL   = 500 * time.Millisecond
	maxRenewTimeout = 5 * time.Second // of one renewal
)

// errSessionClosed is the cause of a session's end after Close.
var errSessionClosed = fmt.Errorf("%w: closed by its owner", ErrSessionEnded)

// SessionConfig configures a new session.
type SessionConfig struct {
	// Name is shown as the holder of a role. "": the session's ID.
	Name string
	// TTL is how long the session lives without a renewal. 0: DefaultSessionTTL; at least 500 ms.
	TTL time.Duration
	// Meta is shown with the session.
	Meta map[string]string
	// Attach also ties the session to a connection, so that it ends as soon as this process does. The failure of a
	// node does not end the session. A network failure that breaks the connection ends it, perhaps before this
	// process knows: usually it learns of it within milliseconds, otherwise at its next renewal that is answered, and
	// no later than at its own deadline. Gates are shut from then until the session is attached again. If two
	// processes must never believe that they hold a role at the same time, set Grace or leave Attach off.
	Attach bool
	// Grace is how long the session outlives that connection, unless it is renewed or attached again meanwhile. If
	// it is shorter than the TTL, the session's own deadline counts from it. 0, or at least 500 ms.
	Grace time.Duration
	// Clock is the clock of the session's own deadline: the time since any fixed moment. Nil: CLOCK_BOOTTIME on
	// Linux and CLOCK_MONOTONIC_RAW on macOS, which advance while the machine sleeps; Go's monotonic clock elsewhere.
	Clock func() time.Duration
}

func (cfg SessionConfig) check() (SessionConfig, error) {
	cfg.TTL = cmp.Or(cfg.TTL, DefaultSessionTTL)
	var errs []error
	if cfg.TTL < minSessionTTL {
		errs = append(errs, fmt.Errorf("TTL: must be at least %v (got %v)", minSessionTTL, cfg.TTL))
	}
	if cfg.Grace != 0 && (cfg.Grace < minSessionTTL || !cfg.Attach) {
		errs = append(errs, fmt.Errorf("grace: must be 0, or with Attach at least %v (got %v)", minSessionTTL,
			cfg.Grace))
	}
	return cfg, errors.Join(errs...)
}

// Session proves to the cluster that this process is alive. It renews itself until it is closed or has ended. What it
// holds (roles, keys, the registration of a node) ends with it. Its methods are safe for concurrent use.
type Session struct {
	c        *Client
	cfg      SessionConfig
	id       string
	ttl      time.Duration
	deadline *Deadline

	stop  context.CancelFunc
	ended chan struct{} // closed when all goroutines have returned

	mu    sync.Mutex
	roles map[string]*roleStatus // roles that it has campaigned for
}

// confirmedTTL returns how long the session certainly lives after a renewal.
func (s *Session) confirmedTTL() time.Duration {
	if s.cfg.Grace > 0 {
		return min(s.ttl, s.cfg.Grace)
	}
	return s.ttl
}

// lifetime returns the part of confirmedTTL that the session relies on: clocks may drift by a tenth.
func (s *Session) lifetime() time.Duration { return s.confirmedTTL() - s.confirmedTTL()/10 }

// NewSession starts a session and renews it until Close. With Attach, the session is attached when NewSession
// returns.
func (c *Client) NewSession(ctx context.Context, cfg SessionConfig) (*Session, error) {
	cfg, err := cfg.check()
	if err != nil {
		return nil, fmt.Errorf("session configuration: %w", err)
	}
	ctx, cancel := c.callContext(ctx)
	defer cancel()
	s := &Session{
		c: c, cfg: cfg, deadline: NewDeadline(cfg.Clock), ended: make(chan struct{}), roles: map[string]*roleStatus{},
	}
	sent, ttl := s.deadline.Now(), cfg.TTL.Milliseconds()
	made, err := c.CreateSession(ctx, SessionCreate{Name: cfg.Name, TTLMS: &ttl, Meta: cfg.Meta})
	if err != nil {
		return nil, err
	}
	s.id, s.ttl = made.SessionID, time.Duration(made.TTLMS)*time.Millisecond
	s.deadline.Extend(sent, s.lifetime())
	run, stop := context.WithCancel(c.ctx)
	s.stop = stop
	attached := make(chan error, 1)
	if !c.spawn(func() { s.run(run, attached) }) {
		stop()
		return nil, ErrClosed
	}
	if !cfg.Attach {
		return s, nil
	}
	select {
	case err = <-attached:
	case <-ctx.Done():
		err = fmt.Errorf("attach session %s: %w", s.id, context.Cause(ctx))
	}
	if err != nil {
		s.closeAsync()
		return nil, err
	}
	return s, nil
}

// ID returns the session's ID.
func (s *Session) ID() string { return s.id }

// TTL returns how long the session lives without a renewal.
func (s *Session) TTL() time.Duration { return s.ttl }

// Done returns a channel that is closed when the session is known to have ended.
func (s *Session) Done() <-chan struct{} { return s.deadline.Done() }

// Err returns why the session ended: ErrSessionEnded or ErrClosed; nil before.
func (s *Session) Err() error { return s.deadline.Err() }

// ValidFor returns how long the session certainly lives if no further renewal succeeds. 0 means that it may have
// ended; renewals go on until that is known.
func (s *Session) ValidFor() time.Duration { return s.deadline.ValidFor() }

// Close ends the session and frees what it holds. Its tenures end when Close is called. Close returns when the
// session is known to have ended. After an error, the session ends after its TTL at the latest.
func (s *Session) Close(ctx context.Context) error {
	s.deadline.End(errSessionClosed)
	err := s.endWithRetry(ctx)
	s.stop()
	<-s.ended
	return err
}

// markEnded ends the local part of a session that the cluster has ended.
func (s *Session) markEnded(err error) {
	s.deadline.End(err)
	s.stop()
}

// closeAsync ends the session in the background.
func (s *Session) closeAsync() {
	s.deadline.End(errSessionClosed)
	s.c.spawn(func() {
		ctx, cancel := context.WithTimeout(s.c.ctx, s.ttl)
		defer cancel()
		_ = s.endWithRetry(ctx) // after an error, it ends after its TTL
		s.stop()
	})
}

// endWithRetry repeats the request to end the session until its end is known.
func (s *Session) endWithRetry(ctx context.Context) error {
	for n := 0; ; n++ {
		err := s.c.EndSession(ctx, s.id)
		switch {
		case err == nil, errors.Is(err, ErrSessionEnded):
			return nil
		case ctx.Err() != nil, isPermanent(err):
			return err
		}
		if pause(ctx, backoff(n, 0)) != nil {
			return err
		}
	}
}

// isPermanent reports whether a retry cannot succeed after this error.
func isPermanent(err error) bool {
	var e *Error
	if errors.Is(err, ErrClosed) {
		return true
	}
	if !errors.As(err, &e) || e.Retry || e.Problem.Code == cluster.CodeSessionEnded {
		return false
	}
	switch e.Problem.HTTPStatus() {
	case 400, 401, 403, 404, 405, 413, 415, 422:
		return true
	}
	return false
}

// run renews the session while its deadline can be extended.
func (s *Session) run(ctx context.Context, attached chan<- error) {
	defer close(s.ended)
	defer s.stop()
	var attach sync.WaitGroup
	if s.cfg.Attach {
		attach.Go(func() { s.attach(ctx, attached) })
	}
	s.c.renewer.add(s)
	s.deadline.Run(ctx)
	s.c.renewer.drop(s)
	attach.Wait()
	s.deadline.End(ErrClosed) // no effect if it ended before
}

// jitter shortens d by up to a tenth.
func jitter(d time.Duration) time.Duration { return d - rand.N(d/10+1) }
