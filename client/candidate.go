package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"os"
	"sync"
	"time"

	"northstar/api/apiv1"
)

// CandidateConfig configures a Candidate. Only Role is required.
type CandidateConfig struct {
	Role  string
	Value string // shown with the role while it is held, at most 4096 bytes
	// TakeoverDelay is how long this candidate waits after a holder crashed or lost its session, so that the
	// holder's work in progress can finish.
	TakeoverDelay time.Duration
	// Required asks for an alert while no process holds the role: it is work that must not stop. Without it, a vacant
	// role is a finished job. All candidates of a role should agree.
	Required bool
	// Eligible returns nil while this process may be elected. It is called before each campaign, and about every
	// second during a campaign; an error ends the campaign and the candidate's place in the queue until Eligible
	// returns nil. A call that does not return within DefaultCheckTimeout counts as an error. A holder keeps its role:
	// see ElectorConfig.Healthy for that. Nil: always eligible.
	Eligible func(ctx context.Context) error
	Session  SessionConfig
}

// Candidate is the Elector of a NorthStar cluster: one candidate for one role. It has its own session, and replaces a
// lost one. Releasing the role ends the session, so that late requests have no effect.
type Candidate struct {
	c   *Client
	cfg CandidateConfig

	campaigning chan struct{}   // capacity 1: held during Campaign
	closed      context.Context // ended by Close
	close       context.CancelFunc

	mu      sync.Mutex
	session *Session // nil: none yet
}

var _ Elector = (*Candidate)(nil)

// NewCandidate checks the configuration. It sends nothing; Campaign does.
func (c *Client) NewCandidate(cfg CandidateConfig) (*Candidate, error) {
	session, err := cfg.Session.check()
	if err != nil {
		return nil, fmt.Errorf("session configuration: %w", err)
	}
	cfg.Session = session
	if cfg.Role == "" {
		return nil, errors.New("candidate configuration: Role: empty")
	}
	k := &Candidate{c: c, cfg: cfg, campaigning: make(chan struct{}, 1)}
	k.closed, k.close = context.WithCancel(context.Background())
	return k, nil
}

// Session returns the current session of the candidate; nil if there is none. Its ID can be shared, to tie keys and
// nodes to it.
func (k *Candidate) Session() *Session {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.session
}

// Campaign implements Elector. Concurrent calls wait for each other. If ctx ends first, the session is ended in the
// background, and with it the place in the queue.
func (k *Candidate) Campaign(ctx context.Context) (*Leadership, error) {
	select {
	case k.campaigning <- struct{}{}:
	case <-ctx.Done():
		return nil, fmt.Errorf("campaign for role %s: %w", k.cfg.Role, context.Cause(ctx))
	}
	defer func() { <-k.campaigning }()
	return UntilClosed(ctx, k.closed, func(ctx context.Context) (*Leadership, error) {
		if k.cfg.Eligible == nil {
			return k.campaign(ctx)
		}
		return WhileEligible(ctx, k.eligible, k.withdraw, k.campaign)
	})
}

// eligible returns nil while a tenure of this candidate lasts, and otherwise the result of Eligible.
func (k *Candidate) eligible(ctx context.Context) error {
	if k.holdsRole() {
		return nil
	}
	return k.cfg.Eligible(ctx)
}

// holdsRole reports whether a tenure of this candidate lasts.
func (k *Candidate) holdsRole() bool {
	s := k.Session()
	if s == nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.roles[k.cfg.Role]
	return r != nil && r.last != nil && r.last.Cause() == nil
}

// withdraw ends the session of an ineligible candidate: it may still hold a place in the queue, or a role whose tenure
// has ended here.
func (k *Candidate) withdraw() {
	if s := k.Session(); s != nil && s.Err() == nil {
		s.closeAsync()
	}
}

// campaign campaigns until this candidate is elected, ctx ends, or the error is permanent.
func (k *Candidate) campaign(ctx context.Context) (*Leadership, error) {
	for n := 0; ; n++ {
		l, err := k.campaignOnce(ctx)
		if err == nil {
			return l, nil
		}
		if ctx.Err() != nil || isPermanent(err) {
			if s := k.Session(); s != nil {
				s.closeAsync()
			}
			return nil, err
		}
		if pauseErr := pause(ctx, backoff(n, 0)); pauseErr != nil {
			return nil, fmt.Errorf("campaign for role %s: %w (%w)", k.cfg.Role, err, pauseErr)
		}
	}
}

// campaignOnce campaigns with the current session, or a new one.
func (k *Candidate) campaignOnce(ctx context.Context) (*Leadership, error) {
	s := k.Session()
	if s == nil || s.Err() != nil {
		var err error
		if s, err = k.c.NewSession(ctx, k.cfg.Session); err != nil {
			return nil, err
		}
		k.mu.Lock()
		k.session = s
		k.mu.Unlock()
	}
	s.markReleased(ctx, k.cfg.Role)
	return s.campaign(ctx, k.cfg)
}

// Observe implements Elector.
func (k *Candidate) Observe(ctx context.Context) iter.Seq2[Holder, error] {
	return k.c.Observe(ctx, k.cfg.Role)
}

// Close implements Elector.
func (k *Candidate) Close(ctx context.Context) error {
	k.close()
	if s := k.Session(); s != nil {
		s.deadline.End(errSessionClosed) // its tenure ends before the wait for a campaign
	}
	var err error
	select {
	case k.campaigning <- struct{}{}:
		defer func() { <-k.campaigning }()
	case <-ctx.Done(): // a campaign in progress ends its session itself
		err = fmt.Errorf("release role %s: %w", k.cfg.Role, context.Cause(ctx))
	}
	if s := k.Session(); s != nil {
		err = cmp.Or(s.Close(ctx), err)
	}
	return err
}

// RunAsLeader calls RunAsLeader with a candidate that has the default configuration and the name of this process.
func (c *Client) RunAsLeader(
	ctx context.Context, role string, lead func(ctx context.Context, l *Leadership) error,
) error {
	k, err := c.NewCandidate(CandidateConfig{Role: role, Session: SessionConfig{Name: ProcessName(), Attach: true}})
	if err != nil {
		return err
	}
	return RunAsLeader(ctx, k, 0, lead)
}

// ProcessName returns the name of this process: host/pid.
func ProcessName() string {
	host, _ := os.Hostname() // without a host name, the process ID is enough
	return fmt.Sprintf("%s/%d", host, os.Getpid())
}

const (
	campaignPollTime = apiv1.MaxWaitMS * time.Millisecond // wait of one request
	// The next request starts before the previous one ends, so that the session keeps its place in the queue.
	campaignRenewAfter = campaignPollTime - 30*time.Second
)

// campaign waits in the queue until this session holds the role with a freshly renewed lease. It ends early with
// ctx, with the session, or on a permanent error. It survives the failure of nodes and keeps its place. If the
// session already holds the role, the result is the same tenure.
//
// After giving up or resigning, the caller must end the session: a late request could still make it a candidate or
// a holder.
func (s *Session) campaign(ctx context.Context, c CandidateConfig) (*Leadership, error) {
	s.mu.Lock()
	if s.roles[c.Role] == nil {
		s.roles[c.Role] = &roleStatus{}
	}
	s.mu.Unlock()
	for n := 0; ; n++ {
		role, err := s.poll(ctx, c)
		if err == nil {
			var l *Leadership
			if l, err = s.begin(ctx, role); err == nil {
				return l, nil
			}
		}
		switch {
		case errors.Is(err, ErrSessionEnded):
			s.markEnded(err)
			return nil, err
		case s.Err() != nil:
			return nil, s.Err()
		case ctx.Err() != nil:
			return nil, fmt.Errorf("campaign for role %s: %w", c.Role, context.Cause(ctx))
		case isPermanent(err):
			return nil, err
		}
		if err := pause(ctx, backoff(n, 0)); err != nil {
			return nil, fmt.Errorf("campaign for role %s: %w", c.Role, err)
		}
	}
}

// poll waits in the queue with overlapping requests, so that the session keeps its place.
func (s *Session) poll(ctx context.Context, c CandidateConfig) (Role, error) {
	type pollResult struct {
		role Role
		err  error
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	results := make(chan pollResult, 2) // a third request starts only after the first has ended
	send := func() bool {
		return s.c.spawn(func() {
			role, err := s.c.CampaignRole(ctx, c.Role, Campaign{
				SessionID: s.id, Value: c.Value, WaitMS: campaignPollTime.Milliseconds(),
				TakeoverDelayMS: c.TakeoverDelay.Milliseconds(), Required: c.Required,
			})
			results <- pollResult{role, err}
		})
	}
	if !send() {
		return Role{}, ErrClosed
	}
	next := time.NewTicker(campaignRenewAfter)
	defer next.Stop()
	for inFlight := 1; ; {
		select {
		case r := <-results:
			inFlight--
			if r.err == nil || inFlight == 0 || errors.Is(r.err, ErrSessionEnded) {
				return r.role, r.err
			}
		case <-next.C:
			if inFlight < cap(results) && send() {
				inFlight++
			}
		case <-s.Done():
			return Role{}, s.Err()
		}
	}
}

// begin starts the tenure of an elected session once its lease is fresh. If the session is alive after that, it
// held the role all the time.
func (s *Session) begin(ctx context.Context, r Role) (*Leadership, error) {
	h := holderOf(r)
	for {
		if err := s.deadline.WaitHalfLease(ctx); err != nil {
			return nil, fmt.Errorf("campaign for role %s: %w", r.Role, err)
		}
		l, began, err := s.beginTenure(h)
		if errors.Is(err, ErrLeaseLapsed) {
			continue
		}
		if began && !s.c.spawn(func() { s.watchTenure(l) }) {
			l.End(ErrClosed)
			return nil, ErrClosed
		}
		return l, err
	}
}

// watchTenure ends a tenure here when the cluster has ended it but not the session: on resignation, eviction or
// transfer. No renewal reports a resignation by another process, so the watch goes on after every error, also after
// refused credentials: others may be in use by then.
func (s *Session) watchTenure(l *Leadership) {
	ctx, cancel := l.Context(s.c.ctx, 0)
	defer cancel()
	for {
		for h, err := range s.c.Observe(ctx, l.Role) {
			switch {
			case err != nil: // the last value
			case h.Token != l.Token && h.Cause != "":
				l.End(fmt.Errorf("%w: %s", ErrRoleLost, h.Cause))
				return
			case h.Token != l.Token:
				l.End(ErrRoleLost)
				return
			}
		}
		if pause(ctx, checkInterval*3/4+rand.N(checkInterval/2)) != nil {
			return
		}
	}
}
