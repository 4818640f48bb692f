package client

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"os"
	"sync"
	"time"
)

// CandidateConfig configures a Candidate. Only Role is required.
type CandidateConfig struct {
	Role  string
	Value string // shown with the role while it is held, at most 4096 bytes
	// TakeoverDelay is how long this candidate waits after a holder crashed or lost its session, so that the
	// holder's work in progress can finish.
	TakeoverDelay time.Duration
	Session       SessionConfig
}

// Candidate is the Elector of a NorthStar cluster: one candidate for one role. It has its own session, which it
// starts when needed and replaces when it was lost. Releasing the role ends that session, so that late requests
// have no effect.
type Candidate struct {
	c   *Client
	cfg CandidateConfig

	campaigning chan struct{} // capacity 1: held during Campaign

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
	return &Candidate{c: c, cfg: cfg, campaigning: make(chan struct{}, 1)}, nil
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
	return s.campaign(ctx, campaignParams{k.cfg.Role, k.cfg.Value, k.cfg.TakeoverDelay})
}

// Observe implements Elector.
func (k *Candidate) Observe(ctx context.Context) iter.Seq2[Holder, error] {
	return k.c.Observe(ctx, k.cfg.Role)
}

// Close implements Elector. A campaign in progress goes on with a new session: end its context first.
func (k *Candidate) Close(ctx context.Context) error {
	s := k.Session()
	if s == nil {
		return nil
	}
	return s.Close(ctx)
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
