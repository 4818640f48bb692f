package client

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
)

// MaxPermits is the maximum number of permits of a semaphore: a process that waits has a session for each of them.
const MaxPermits = 64

// Lock is a role that this process holds as a mutex, or a permit of a semaphore. It is a tenure like any other: it ends
// when the process cannot prove it any longer, so watch Done, or do the work under Context. Use Fence, or the token, at
// what the lock protects: a process that was suspended may act after its lock has ended.
type Lock struct {
	*Leadership
	candidate *Candidate
}

// Lock waits until this process holds a role, in the order of arrival, and returns it as a mutex. Each call is a
// candidate of its own, with its own session, so that calls of one process exclude each other too. At most one Lock
// of a role is valid by its own deadline at any time, also while a leader or a client fails. Session.Attach without
// Grace weakens that.
func (c *Client) Lock(ctx context.Context, cfg CandidateConfig) (*Lock, error) {
	k, err := c.NewCandidate(cfg)
	if err != nil {
		return nil, err
	}
	l, err := k.Campaign(ctx)
	if err != nil {
		return nil, err
	}
	return &Lock{l, k}, nil
}

// TryLock is Lock without a wait. ErrRoleHeld: another candidate holds the role, or comes first. An error of
// cfg.Eligible is returned too.
func (c *Client) TryLock(ctx context.Context, cfg CandidateConfig) (*Lock, error) {
	return c.tryLock(ctx, cfg, []string{cfg.Role})
}

// Unlock frees the role, and returns when that is known. The tenure ends when Unlock is called. After an error, the
// role is free after the session's TTL at the latest.
func (l *Lock) Unlock(ctx context.Context) error { return l.candidate.Close(ctx) }

// Acquire waits for one of the permits of a semaphore: the roles cfg.Role.1, cfg.Role.2 and so on. At most that many
// processes hold a permit at any time, each with its own role and token; so tokens of different permits have no order.
// All processes must give the same number of permits. A free permit is taken immediately. Others are not served
// strictly in the order of their arrival. Unlock returns the permit.
func (c *Client) Acquire(ctx context.Context, cfg CandidateConfig, permits int) (*Lock, error) {
	roles, err := permitRoles(cfg.Role, permits)
	if err != nil {
		return nil, err
	}
	if cfg.Eligible == nil || eligibility(cfg.Eligible).run(ctx) == nil {
		one := cfg
		one.Eligible = nil // it was asked
		if l, err := c.tryLock(ctx, one, roles); err == nil || ctx.Err() != nil || isPermanent(err) {
			return l, err
		}
	}
	type result struct {
		lock *Lock
		err  error
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	results := make(chan result, permits)
	for _, role := range roles {
		one := cfg
		one.Role = role
		go func() {
			l, err := c.Lock(ctx, one)
			results <- result{l, err}
		}()
	}
	var permit *Lock
	for range permits {
		switch r := <-results; {
		case r.err != nil:
			err = r.err
		case permit == nil:
			permit = r.lock
			cancel() // the others leave their queues
		default:
			r.lock.candidate.Session().closeAsync()
		}
	}
	if permit != nil {
		err = nil
	}
	return permit, err
}

// TryAcquire is Acquire without a wait. ErrRoleHeld: all permits are taken.
func (c *Client) TryAcquire(ctx context.Context, cfg CandidateConfig, permits int) (*Lock, error) {
	roles, err := permitRoles(cfg.Role, permits)
	if err != nil {
		return nil, err
	}
	return c.tryLock(ctx, cfg, roles)
}

// permitRoles returns the roles of a semaphore in random order.
func permitRoles(name string, permits int) ([]string, error) {
	if permits < 1 || permits > MaxPermits {
		return nil, fmt.Errorf("semaphore %s: permits: must be 1 to %d (got %d)", name, MaxPermits, permits)
	}
	roles := make([]string, permits)
	for i, n := range rand.Perm(permits) {
		roles[i] = fmt.Sprintf("%s.%d", name, n+1)
	}
	return roles, nil
}

// tryLock returns the first of the roles that is free, with a new session.
func (c *Client) tryLock(ctx context.Context, cfg CandidateConfig, roles []string) (*Lock, error) {
	k, err := c.NewCandidate(cfg)
	if err != nil {
		return nil, err
	}
	if cfg.Eligible != nil {
		if err := eligibility(cfg.Eligible).run(ctx); err != nil {
			return nil, fmt.Errorf("lock %s: this process is not eligible: %w", cfg.Role, err)
		}
	}
	if k.session, err = c.NewSession(ctx, k.cfg.Session); err != nil {
		return nil, err
	}
	for _, role := range roles {
		var l *Leadership
		k.cfg.Role = role
		if l, err = k.session.campaignNow(ctx, k.cfg); err == nil {
			return &Lock{l, k}, nil
		}
		if !errors.Is(err, ErrRoleHeld) {
			break // a request may still be on its way: the end of the session makes it void
		}
	}
	k.session.closeAsync()
	return nil, err
}

// campaignNow is campaign without a wait in the queue.
func (s *Session) campaignNow(ctx context.Context, cfg CandidateConfig) (*Leadership, error) {
	s.mu.Lock()
	s.roles[cfg.Role] = &roleStatus{}
	s.mu.Unlock()
	role, err := s.c.CampaignRole(ctx, cfg.Role, Campaign{
		SessionID: s.id, Value: cfg.Value, TakeoverDelayMS: cfg.TakeoverDelay.Milliseconds(),
		Required: cfg.Required,
	})
	if err != nil {
		return nil, err
	}
	return s.begin(ctx, role)
}
