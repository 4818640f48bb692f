package client

import (
	"context"
	"errors"
	"fmt"
	"time"

	"northstar/api/apiv1"
)

// campaignParams is what a session campaigns for.
type campaignParams struct {
	Role, Value   string
	TakeoverDelay time.Duration
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
func (s *Session) campaign(ctx context.Context, c campaignParams) (*Leadership, error) {
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

type pollResult struct {
	role apiv1.Role
	err  error
}

// poll waits in the queue with overlapping requests, so that the session keeps its place.
func (s *Session) poll(ctx context.Context, c campaignParams) (apiv1.Role, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	results := make(chan pollResult, 2) // a third request starts only after the first has ended
	send := func() bool {
		return s.c.spawn(func() {
			role, err := s.c.CampaignRole(ctx, c.Role, apiv1.Campaign{
				SessionID: s.id, Value: c.Value, WaitMS: campaignPollTime.Milliseconds(),
				TakeoverDelayMS: c.TakeoverDelay.Milliseconds(),
			})
			results <- pollResult{role, err}
		})
	}
	if !send() {
		return apiv1.Role{}, ErrClosed
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
			return apiv1.Role{}, s.Err()
		}
	}
}

// begin starts the tenure of an elected session once its lease is fresh. If the session is alive after that, it
// held the role all the time.
func (s *Session) begin(ctx context.Context, r apiv1.Role) (*Leadership, error) {
	h := holderOf(r)
	for {
		if err := s.deadline.waitHalfLease(ctx); err != nil {
			return nil, fmt.Errorf("campaign for role %s: %w", r.Role, err)
		}
		l, err := s.beginTenure(h)
		if errors.Is(err, ErrLeaseLapsed) {
			continue
		}
		if err == nil && !s.c.spawn(func() { s.watchTenure(l) }) {
			l.End(ErrClosed)
			return nil, ErrClosed
		}
		return l, err
	}
}

// watchTenure ends a tenure here when the cluster has ended it but not the session: on resignation, eviction or
// transfer. The watch is faster than the next renewal, which would report it too.
func (s *Session) watchTenure(l *Leadership) {
	ctx, cancel := l.Context(s.c.ctx, 0)
	defer cancel()
	for h, err := range s.c.Observe(ctx, l.Role) {
		switch {
		case err != nil:
			return // the lease still bounds the tenure
		case h.Token != l.Token && h.Cause != "":
			l.End(fmt.Errorf("%w: %s", ErrRoleLost, h.Cause))
			return
		case h.Token != l.Token:
			l.End(ErrRoleLost)
			return
		}
	}
}
