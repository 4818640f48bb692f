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
	campaignPollTime   = apiv1.MaxWaitMS * time.Millisecond // of one request
	campaignRenewAfter = campaignPollTime - 30*time.Second  // the next one is under way before the last gives up the place in the queue
)

// campaign waits in the queue for a role until this session holds it, with a lease
// that was renewed a moment ago, until ctx ends, the session does, or the cluster
// refuses for good. It goes on across failures of nodes, and keeps its place. A
// session that holds the role gets its tenure, with the same token.
//
// Who gives up must end the session: a request that is still on its way may make it
// a candidate, or a holder, later. The same holds for who resigns.
func (s *Session) campaign(ctx context.Context, c campaignParams) (*Leadership, error) {
	s.trackCampaign(c.Role)
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

// poll is one wait in the queue, through requests of which each begins before the
// last has ended, so that the place is kept.
func (s *Session) poll(ctx context.Context, c campaignParams) (apiv1.Role, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	results := make(chan pollResult, 2) // a third request begins when the first has ended long ago
	ask := func() bool {
		return s.c.spawn(func() {
			role, err := s.c.CampaignRole(ctx, c.Role, apiv1.Campaign{
				SessionID: s.id, Value: c.Value, WaitMS: campaignPollTime.Milliseconds(), TakeoverDelayMS: c.TakeoverDelay.Milliseconds(),
			})
			results <- pollResult{role, err}
		})
	}
	if !ask() {
		return apiv1.Role{}, ErrClosed
	}
	next := time.NewTicker(campaignRenewAfter)
	defer next.Stop()
	for flying := 1; ; {
		select {
		case r := <-results:
			flying--
			if r.err == nil || flying == 0 || errors.Is(r.err, ErrSessionEnded) {
				return r.role, r.err
			}
		case <-next.C:
			if flying < cap(results) && ask() {
				flying++
			}
		case <-s.Done():
			return apiv1.Role{}, s.Err()
		}
	}
}

// begin starts the tenure of an elected session, as soon as its lease is fresh: a
// session that lives after that has held the role all the while.
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

// watchTenure ends a tenure here when the cluster has ended it otherwise than with
// the session: the role was resigned, evicted or handed over. That is quicker than
// the next renewal, which tells it too.
func (s *Session) watchTenure(l *Leadership) {
	ctx, cancel := l.Context(s.c.ctx, 0)
	defer cancel()
	for h, err := range s.c.Observe(ctx, l.Role) {
		switch {
		case err != nil:
			return // the lease remains
		case h.Token != l.Token && h.Cause != "":
			l.End(fmt.Errorf("%w: %s", ErrRoleLost, h.Cause))
			return
		case h.Token != l.Token:
			l.End(ErrRoleLost)
			return
		}
	}
}
