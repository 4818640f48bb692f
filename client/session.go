package client

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"northstar/api/apiv1"
	"northstar/cluster"
)

// DefaultSessionTTL is what a session has whose configuration says nothing.
const DefaultSessionTTL = apiv1.DefaultSessionTTLMS * time.Millisecond

const (
	minSessionTTL   = 500 * time.Millisecond
	maxRenewTimeout = 5 * time.Second // of one renewal
)

// errSessionClosed is why a session ends that Close has ended.
var errSessionClosed = fmt.Errorf("%w: closed by its owner", ErrSessionEnded)

// SessionConfig says what session to start.
type SessionConfig struct {
	// Name is what others see of the holder of a role. "": the session's ID.
	Name string
	// TTL is how long the session lives without a renewal. 0: DefaultSessionTTL;
	// at least 500 ms.
	TTL time.Duration
	// Meta is shown with the session.
	Meta map[string]string
	// Attach ties the session to a connection besides, so that it ends at once when
	// this process does. A node that dies costs nothing. A network that breaks the
	// connection costs the session, and may do so before this process knows: it is
	// told within milliseconds as a rule, and no later than by its next renewal.
	// Where no two holders may ever believe in themselves at once, give a Grace, or
	// leave Attach.
	Attach bool
	// Grace is how long the session outlives that connection, unless it is renewed
	// or attached again meanwhile. The session's own deadline is counted from it
	// where it is less than the TTL. 0, or at least 500 ms.
	Grace time.Duration
	// Clock counts the session's own deadline, from any fixed moment. Nil:
	// CLOCK_BOOTTIME on Linux, Go's monotonic clock elsewhere.
	Clock func() time.Duration
}

func (cfg SessionConfig) check() (SessionConfig, error) {
	if cfg.TTL == 0 {
		cfg.TTL = DefaultSessionTTL
	}
	var errs []error
	if cfg.TTL < minSessionTTL {
		errs = append(errs, fmt.Errorf("TTL: want at least %v, got %v", minSessionTTL, cfg.TTL))
	}
	if cfg.Grace != 0 && (cfg.Grace < minSessionTTL || !cfg.Attach) {
		errs = append(errs, fmt.Errorf("grace: want 0, or with Attach at least %v, got %v", minSessionTTL, cfg.Grace))
	}
	return cfg, errors.Join(errs...)
}

// Session is the liveness of this process in the cluster: it renews itself through
// any node until it is closed, or found to have ended. What it holds (roles, keys,
// the registration of a node) ends with it. Methods may be called by any goroutine.
type Session struct {
	c        *Client
	cfg      SessionConfig
	id       string
	ttl      time.Duration
	deadline *Deadline

	stop  context.CancelFunc
	ended chan struct{} // closed when all goroutines have returned

	mu    sync.Mutex
	roles map[string]*roleStatus // that it has campaigned for
}

// confirmedTTL is for how long after a renewal the session lives for certain.
func (s *Session) confirmedTTL() time.Duration {
	if s.cfg.Grace > 0 {
		return min(s.ttl, s.cfg.Grace)
	}
	return s.ttl
}

// lifetime is what of that the session counts on: clocks drift by up to a tenth.
func (s *Session) lifetime() time.Duration { return s.confirmedTTL() - s.confirmedTTL()/10 }

// NewSession starts a session and keeps it until Close. With Attach, it is attached
// when this returns.
func (c *Client) NewSession(ctx context.Context, cfg SessionConfig) (*Session, error) {
	cfg, err := cfg.check()
	if err != nil {
		return nil, fmt.Errorf("session configuration: %w", err)
	}
	ctx, cancel := c.callContext(ctx)
	defer cancel()
	s := &Session{c: c, cfg: cfg, deadline: NewDeadline(cfg.Clock), ended: make(chan struct{}), roles: map[string]*roleStatus{}}
	sent, ttl := s.deadline.Now(), cfg.TTL.Milliseconds()
	made, err := c.CreateSession(ctx, apiv1.SessionCreate{Name: cfg.Name, TTLMS: &ttl, Meta: cfg.Meta})
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

// ID is the session's ID.
func (s *Session) ID() string { return s.id }

// TTL is how long the session lives without a renewal.
func (s *Session) TTL() time.Duration { return s.ttl }

// Done is closed when the session is known to have ended.
func (s *Session) Done() <-chan struct{} { return s.deadline.Done() }

// Err is why it has: ErrSessionEnded, or ErrClosed; nil before.
func (s *Session) Err() error { return s.deadline.Err() }

// ValidFor is for how long it is certain, from now on, that the session lives,
// should no renewal succeed. 0: it may have ended, or not: renewals go on until
// that is known.
func (s *Session) ValidFor() time.Duration { return s.deadline.ValidFor() }

// Close ends the session and frees what it holds. Tenures are over from the call
// on. It returns when the session is known to have ended; with an error it ends
// after its TTL at the latest.
func (s *Session) Close(ctx context.Context) error {
	s.deadline.End(errSessionClosed)
	err := s.endWithRetry(ctx)
	s.stop()
	<-s.ended
	return err
}

// noResponseAttempts ends what is left of a session that the cluster has ended.
func (s *Session) markEnded(err error) {
	s.deadline.End(err)
	s.stop()
}

// closeAsync ends the session without waiting for that.
func (s *Session) closeAsync() {
	s.deadline.End(errSessionClosed)
	s.c.spawn(func() {
		ctx, cancel := context.WithTimeout(s.c.ctx, s.ttl)
		defer cancel()
		_ = s.endWithRetry(ctx) // it ends by itself then
		s.stop()
	})
}

// endWithRetry repeats the end of the session until that is known to be so.
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

// isPermanent says whether an error will not pass by itself.
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

// run is the session's life: it is renewed as long as its deadline can be extended.
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
	s.deadline.End(ErrClosed) // else it has ended before
}

// jitter takes up to a tenth off.
func jitter(d time.Duration) time.Duration { return d - rand.N(d/10+1) }
