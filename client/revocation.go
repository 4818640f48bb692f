package client

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// When an operator revokes a role, the cluster elects the next holder only after the session has acknowledged that
// or has ended. Until then the session is not renewed. Only the holder knows when its work has stopped. Here that
// is when its owner campaigns again or closes the session, and at the latest when the lease has lapsed: no tenure
// outlasts the lease.

// roleStatus is what a session knows about a role that it campaigns for.
type roleStatus struct {
	last       *Leadership // nil: none yet
	released   bool        // the owner of the last tenure has stopped acting
	ackedToken uint64      // revocations up to this token are acknowledged: these tokens start no tenure
}

// errRevokedBeforeStart is the error if a role was revoked before its tenure started.
var errRevokedBeforeStart = fmt.Errorf("%w before the tenure started", ErrRoleLost)

// beginTenure starts the tenure of an elected session, unless its revocation is already acknowledged. If the tenure has
// begun and lasts, it is returned, and began is false.
func (s *Session) beginTenure(h Holder) (l *Leadership, began bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.roles[h.Role]
	if h.Token <= r.ackedToken {
		return nil, false, errRevokedBeforeStart
	}
	if r.last != nil && r.last.Token == h.Token && r.last.Cause() == nil {
		return r.last, false, nil
	}
	if l, err = s.deadline.Begin(h, s.Close); err != nil {
		return nil, false, err
	}
	if r.last != nil {
		r.last.End(ErrRoleLost) // perhaps nothing has reported its end
	}
	r.last, r.released = l, false
	return l, true, nil
}

// markReleased records that the owner of an ended tenure campaigns again: its work as holder has stopped. If the
// role was revoked, the next holder waits for this.
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
		s.ackRevocation(ctx, role, lost.Token) // if it fails, the next renewal is refused again
	}
}

// handleRevocation handles a renewal that was refused because a role was revoked. It ends the tenure here, and
// acknowledges the revocation when no one acts for the tenure. It returns the time until the next renewal.
func (s *Session) handleRevocation(ctx context.Context) time.Duration {
	limit, cancel := context.WithTimeout(ctx, s.renewTimeout())
	defer cancel()
	got, err := s.c.GetSession(limit, s.id)
	if err != nil {
		return s.retryDelay()
	}
	waiting := false
	for _, revoked := range got.RevokedRoles {
		if !s.endRevokedTenure(revoked) {
			waiting = true
			continue
		}
		s.ackRevocation(limit, revoked.Role, revoked.Token)
	}
	if left := s.deadline.ValidFor(); waiting && left > 0 {
		return min(s.retryDelay(), left)
	}
	return min(s.retryDelay(), 10*time.Millisecond)
}

// endRevokedTenure ends a revoked tenure. It reports whether the revocation may be acknowledged.
func (s *Session) endRevokedTenure(revoked Revocation) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.roles[revoked.Role]
	switch {
	case r == nil: // won with CampaignRole, not by this session: its caller must acknowledge
		return false
	case r.last == nil || r.last.Token != revoked.Token: // it has not started here and will not, or others came since
	default:
		r.last.End(fmt.Errorf("%w: revoked by an operator", ErrRoleLost))
		if !r.released && s.deadline.ValidFor() > 0 {
			return false
		}
	}
	r.ackedToken = max(r.ackedToken, revoked.Token)
	return true
}

// ackRevocation acknowledges a revocation. If that fails, the next renewal is refused again.
func (s *Session) ackRevocation(ctx context.Context, role string, token uint64) {
	ctx, cancel := context.WithTimeout(ctx, s.renewTimeout())
	defer cancel()
	_ = s.c.AcknowledgeRevocation(ctx, role, s.id, token)
}
