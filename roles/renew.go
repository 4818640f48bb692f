package roles

import (
	"context"
	"time"

	"northstar/cluster"
	"northstar/state"
)

// Renew renews sessions. Live sessions then live for their TTL, counted from the call. The result holds for the whole
// cluster: Renew proves after the call that this node leads. Otherwise it returns CodeNoLeader and nothing was
// renewed. Concurrent callers share one proof.
//
// A session does not expire while its renewal waits for the proof. If its expiry was already proposed, Renew waits
// for the result, and renews the session only if it lives on. A session with a revoked role is not renewed until it
// has acknowledged the revocation. Its own deadline therefore passes before it expires here and the role moves on.
func (k *SessionManager) Renew(ctx context.Context, ids []string) (state.Renewed, error) {
	list := make([]cluster.Attachment, len(ids))
	for i, id := range ids {
		list[i].Session = id
	}
	return k.renewAfterBarrier(ctx, list)
}

// renewAfterBarrier finds the live sessions and renews them as of the time of the call. It skips passive connections
// and sessions with a revoked role. It records attachments that name a stream.
func (k *SessionManager) renewAfterBarrier(ctx context.Context, list []cluster.Attachment) (out state.Renewed,
	err error,
) {
	a := k.beginRenewal(list)
	if err := k.deps.Consensus.ReadBarrier(ctx); err != nil {
		k.abortRenewal(a)
		return state.Renewed{}, err
	}
	var late []*pendingExpiry
	noted := true
	for i := range list {
		r := k.finishRenewal(a, i, &list[i])
		noted = noted && !r.unnoted
		switch {
		case r.end != nil:
			late = append(late, r.end)
		case r.session == nil:
			out.Ended = append(out.Ended, list[i].Session)
		case r.parted.Role != "":
			out.Revoked = append(out.Revoked, r.parted)
		default:
			out.Alive = append(out.Alive, r.session)
		}
	}
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
	return k.renewAfterBarrier(ctx, list)
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

// pendingRenewal is a renewal request that waits for the barrier.
type pendingRenewal struct {
	leaderState *leaderState // nil: this node did not lead
	arrivedAt   time.Duration
	timers      []*sessionTimer // one for each ID; nil: unknown when the renewal arrived
}

// beginRenewal records that renewals have arrived, which holds off the expiry of their sessions.
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

// abortRenewal undoes beginRenewal.
func (k *SessionManager) abortRenewal(a pendingRenewal) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, e := range a.timers {
		if e != nil {
			e.pendingRenewals--
		}
	}
}

// renewal is the result for one session.
type renewal struct {
	session *state.Session   // nil: the session does not exist
	parted  state.Revocation // the revoked role because of which it was not renewed
	end     *pendingExpiry   // expiry in flight, whose result the caller must await
	unnoted bool             // this leadership has not recorded the connection
}

// finishRenewal finishes renewal i of p after the barrier. It looks up everything under the lock, so that a renewal
// which comes after collectExpired sees what that has seen.
//
// If leadership has changed since the renewal arrived, the TTL counts from now. If this node no longer leads, the
// next leader starts every TTL after the renewal arrived.
func (k *SessionManager) finishRenewal(a pendingRenewal, i int, c *cluster.Attachment) (out renewal) {
	k.mu.Lock()
	defer k.mu.Unlock()
	r, at := k.leaderState, a.arrivedAt
	if a.leaderState != nil {
		if e := a.timers[i]; e != nil {
			e.pendingRenewals--
		}
	}
	view := k.deps.Consensus.View()
	s, lives := view.Session(c.Session)
	if !lives {
		return out
	}
	out.session = s
	if list := view.Revocations(c.Session); len(list) > 0 && !c.Passive {
		out.parted = list[0]
	}
	if r == nil {
		out.unnoted = c.Stream != ""
		return out
	}
	if r != a.leaderState {
		at = r.clock.read(k.deps.Clock())
	}
	e := r.sessions[c.Session]
	if e == nil { // its timer has not started yet
		e = r.addSession(s, at)
	}
	if out.end = e.expiry; e.expiry != nil || out.parted.Role != "" {
		return out
	}
	if !c.Passive {
		e.renew(at)
	}
	if c.Stream != "" {
		e.attach(c.Stream, at)
	}
	return out
}

// renew counts the TTL from at.
func (e *sessionTimer) renew(at time.Duration) {
	if d := at + e.ttl + pauseSlack; d > e.deadline {
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
	return max(0, e.deadline-pauseSlack-k.leaderState.clock.read(k.deps.Clock()))
}

func noLeader(format string, args ...any) *cluster.Error {
	err := cluster.Errorf(cluster.CodeNoLeader, format, args...)
	err.RetryAfter = 50 * time.Millisecond
	return err
}
