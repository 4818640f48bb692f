package client

import (
	"context"
	"errors"
	"fmt"
	"time"

	"northstar/api/apiv1"
)

// A role that an operator takes from a session is not given to another before the
// session has acknowledged that, or has ended; until then it is not renewed. The
// cluster cannot know when what the holder had under way is over: here that is
// known when its owner campaigns again, or closes the session, and at the latest
// when the lease has lapsed, which no tenure outlasts.

// roleStatus is what a session knows of a role that it campaigns for.
type roleStatus struct {
	last       *Leadership // nil: none yet
	released   bool        // whoever acted for it has said that it does no more
	ackedToken uint64      // tokens up to this one were acknowledged as lost: they begin no tenure
}

// trackCampaign notes that the session campaigns for a role.
func (s *Session) trackCampaign(role string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.roles[role] == nil {
		s.roles[role] = &roleStatus{}
	}
}

// errRevokedBeforeStart is why a tenure does not begin.
var errRevokedBeforeStart = fmt.Errorf("%w before it began here", ErrRoleLost)

// beginTenure starts the tenure of an elected session, unless the session has given
// it back meanwhile.
func (s *Session) beginTenure(h Holder) (*Leadership, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.roles[h.Role]
	if h.Token <= r.ackedToken {
		return nil, errRevokedBeforeStart
	}
	l, err := s.deadline.Begin(h, s.Close)
	if err == nil {
		r.last, r.released = l, false
	}
	return l, err
}

// released notes that the owner of a tenure that is over campaigns again: what it
// did as holder has ended. Where the role was taken, the next one waits for that.
func (s *Session) markReleased(ctx context.Context, role string) {
	s.mu.Lock()
	r := s.roles[role]
	if r == nil || r.last == nil || r.last.Cause() == nil {
		s.mu.Unlock()
		return
	}
	r.released = true
	lost := r.last
	s.mu.Unlock()
	if errors.Is(lost.Cause(), ErrRoleLost) {
		s.ackRevocation(ctx, role, lost.Token) // else the next renewal says that it is waited for
	}
}

// handleRevocation is what follows a renewal that was refused because a role was taken from
// the session: the tenure ends here, and that is acknowledged once nobody acts for
// it any more. It gives the time until the next renewal.
func (s *Session) handleRevocation(ctx context.Context) time.Duration {
	limit, cancel := context.WithTimeout(ctx, s.renewTimeout())
	defer cancel()
	got, err := s.c.GetSession(limit, s.id)
	if err != nil {
		return s.retryDelay()
	}
	waits := false
	for _, taken := range got.RevokedRoles {
		if !s.endRevokedTenure(taken) {
			waits = true
			continue
		}
		s.ackRevocation(limit, taken.Role, taken.Token)
	}
	if left := s.deadline.ValidFor(); waits && left > 0 {
		return min(s.retryDelay(), left)
	}
	return min(s.retryDelay(), 10*time.Millisecond)
}

// endRevokedTenure ends a tenure that was taken, and says whether nobody acts for it any more.
func (s *Session) endRevokedTenure(taken apiv1.Revocation) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.roles[taken.Role]
	switch {
	case r == nil: // it was not this session's Campaign that won it: who did knows best
		return false
	case r.last == nil || r.last.Token < taken.Token: // it has not begun here, and will not
	default:
		r.last.End(fmt.Errorf("%w: an operator has taken it", ErrRoleLost))
		if !r.released && s.deadline.ValidFor() > 0 {
			return false
		}
	}
	r.ackedToken = max(r.ackedToken, taken.Token)
	return true
}

// ackRevocation tells the cluster that the session knows of the loss of a tenure and
// acts for it no more. Should that fail, the next renewal is refused again.
func (s *Session) ackRevocation(ctx context.Context, role string, token uint64) {
	ctx, cancel := context.WithTimeout(ctx, s.renewTimeout())
	defer cancel()
	_ = s.c.AcknowledgeRevocation(ctx, role, s.id, token)
}
