package roles

import (
	"context"
	"time"

	"northstar/cluster"
	"northstar/state"
)

// Renew renews sessions. Live sessions then live for their TTL, counted from the call. The result holds for the whole
// cluster: Renew proves after the call that this node leads. Otherwise it returns CodeNoLeader and nothing was
// renewed: a caller must not count on the sessions. Concurrent callers share one proof.
//
// A session does not expire while its renewal waits for the proof. If its expiry was already proposed, Renew waits
// for the result, and renews the session only if it lives on. A session with a revoked role is not renewed until it
// has acknowledged the revocation. Its own deadline therefore passes before it expires here and the role moves on.
func (k *SessionManager) Renew(ctx context.Context, ids []string) (state.Renewed, error) {
	list := make([]cluster.Attachment, len(ids))
	for i, id := range ids {
		list[i].Session = id
	}
	return k.RenewAttached(ctx, list)
}

// RenewAttached is Renew for attached sessions. Without an error, this leadership has recorded the connections that
// name a stream. In the report window of a new leader they must be reported again. A passive connection renews nothing.
func (k *SessionManager) RenewAttached(ctx context.Context, list []cluster.Attachment) (state.Renewed, error) {
	a := k.beginRenewal(list)
	if err := k.deps.Consensus.ReadBarrier(ctx); err != nil {
		k.mu.Lock()
		defer k.mu.Unlock()
		a.release()
		a.postpone(list, k.deps.Consensus.View())
		return state.Renewed{}, err
	}
	out, late, noted := k.finishRenewal(a, list)
	switch {
	case len(late) == 0 && noted:
		return out, nil
	case len(late) == 0:
		return state.Renewed{}, noLeader("node is not ready as leader yet, or lost leadership")
	}
	for _, end := range late {
		if err := end.wait(ctx); err != nil {
			return state.Renewed{}, noLeader("the end of a session that was renewed late is on its way: %w", err)
		}
	}
	// The results of the expirations are known now. Sessions that live on are renewed from the start.
	return k.RenewAttached(ctx, list)
}

// wait returns once the result of the expiry is known.
func (e *pendingExpiry) wait(ctx context.Context) error {
	select {
	case <-e.done:
	case <-ctx.Done():
		return ctx.Err()
	}
	if e.leadershipLost {
		return errLeadershipLost
	}
	return nil
}

// pendingRenewal is a renewal request that waits for the barrier. SessionManager.mu guards the timers.
type pendingRenewal struct {
	leaderState *leaderState // nil: this node did not lead
	arrivedAt   time.Duration
	timers      []*sessionTimer // one of each session; nil: it was not known when the renewal arrived
}

// beginRenewal records that renewals have arrived, which holds off the expiry of their sessions until release.
func (k *SessionManager) beginRenewal(list []cluster.Attachment) pendingRenewal {
	k.mu.Lock()
	defer k.mu.Unlock()
	a := pendingRenewal{leaderState: k.leaderState}
	if a.leaderState == nil {
		return a
	}
	a.arrivedAt = a.leaderState.clock.read(k.deps.Clock())
	a.timers = make([]*sessionTimer, len(list))
	for i := range list {
		if e := a.leaderState.sessions[list[i].Session]; e != nil {
			e.pendingRenewals++
			a.timers[i] = e
		}
	}
	return a
}

func (a pendingRenewal) release() {
	for _, e := range a.timers {
		if e != nil {
			e.pendingRenewals--
		}
	}
}

// postpone counts the TTLs from the arrival of renewals whose proof has failed. If this node still leads, the fault was
// its own: it could not apply its log in time, for instance, and the clients live. If it does not, it ends no session.
// A revoked session gains no time, as in finishRenewal. The caller holds the lock.
func (a pendingRenewal) postpone(list []cluster.Attachment, view *state.View) {
	for i, e := range a.timers {
		if e != nil && e.expiry == nil && !list[i].Passive && len(view.Revocations(e.id)) == 0 {
			e.renew(a.arrivedAt)
		}
	}
}

// finishRenewal finishes renewals after the barrier. It returns the expirations in flight, whose results the caller
// must await, and whether this leadership has recorded the connections. It looks up everything under the lock: a
// renewal that comes after collectExpired sees what that has seen.
//
// If leadership has changed since the renewal arrived, the TTL counts from now, or from the start of the next leader.
func (k *SessionManager) finishRenewal(a pendingRenewal, list []cluster.Attachment) (out state.Renewed,
	late []*pendingExpiry, noted bool,
) {
	k.mu.Lock()
	defer k.mu.Unlock()
	a.release()
	view, r, at := k.deps.Consensus.View(), k.leaderState, a.arrivedAt
	if r != nil && r != a.leaderState {
		a.timers, at = make([]*sessionTimer, len(list)), r.clock.read(k.deps.Clock())
	}
	noted = true
	for i := range list {
		c := &list[i]
		s, lives := view.Session(c.Session)
		if !lives {
			out.Ended = append(out.Ended, c.Session)
			continue
		}
		var revoked []state.Revocation
		if !c.Passive {
			revoked = view.Revocations(c.Session)
		}
		if r == nil {
			noted = noted && c.Stream == ""
		} else if end := r.renew(s, a.timers[i], c, at, len(revoked) > 0); end != nil {
			late = append(late, end)
			continue
		}
		if len(revoked) > 0 {
			out.Revoked = append(out.Revoked, revoked[0])
		} else {
			out.Alive = append(out.Alive, s)
		}
	}
	return out, late, noted
}

// renew renews a session that has no revoked role and is not expiring, and records its connection. e is its timer, nil
// if the renewal has arrived before that was known.
func (r *leaderState) renew(
	s *state.Session, e *sessionTimer, c *cluster.Attachment, at time.Duration, revoked bool,
) *pendingExpiry {
	if e == nil {
		e = r.sessions[s.ID]
	}
	if e == nil { // its timer has not started yet
		e = r.addSession(s, at)
	}
	if e.expiry != nil || revoked {
		return e.expiry
	}
	if !c.Passive {
		e.renew(at)
	}
	if c.Stream != "" {
		e.attach(c.Stream, at)
	}
	return nil
}

// renew counts the TTL from at.
func (e *sessionTimer) renew(at time.Duration) {
	if d := at + e.ttl + e.grace + pauseSlack; d > e.deadline {
		e.deadline, e.cause = d, state.CauseExpired
	}
}

// Remaining returns how long a session has left without another renewal; its TTL if this node does not know.
func (k *SessionManager) Remaining(s *state.Session) time.Duration {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.leaderState == nil || k.leaderState.sessions[s.ID] == nil {
		return s.TTL
	}
	e := k.leaderState.sessions[s.ID]
	return max(0, e.deadline-e.grace-pauseSlack-k.leaderState.clock.read(k.deps.Clock()))
}

func noLeader(format string, args ...any) *cluster.Error {
	err := cluster.Errorf(cluster.CodeNoLeader, format, args...)
	err.RetryAfter = 50 * time.Millisecond
	return err
}
