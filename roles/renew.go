package roles

import (
	"context"
	"time"

	"northstar/cluster"
	"northstar/state"
)

// Renew renews sessions. Those that live will for their TTL counted from the call;
// what it gives is true of the whole cluster: it proves after the call that this
// node leads, else the error is CodeNoLeader and nothing was renewed. All who wait
// share one proof.
//
// While a renewal waits for it, its sessions do not expire. One that was about to
// when the renewal came is waited for, and counts as renewed only when it lives on.
// A session that a role was taken from is not renewed until it has said that it
// knows: its own deadline ends before it does then, and the role goes on after that.
func (k *SessionManager) Renew(ctx context.Context, ids []string) (state.Renewed, error) {
	return k.renewAfterBarrier(ctx, ids, func(_ int, e *sessionTimer, at time.Duration) {
		if e != nil {
			e.renew(at)
		}
	}, func(int) bool { return false })
}

// renewAfterBarrier finds out which sessions live, and lets touch renew the clock of each as
// of the time at which it was called, unless it is parted from a role and not
// passive, which is no renewal. Both functions must not block.
func (k *SessionManager) renewAfterBarrier(ctx context.Context, ids []string, touch func(i int, e *sessionTimer, at time.Duration), passive func(i int) bool) (out state.Renewed, err error) {
	a := k.beginRenewal(ids)
	if err := k.deps.Consensus.ReadBarrier(ctx); err != nil {
		k.abortRenewal(a)
		return state.Renewed{}, err
	}
	var late []*pendingExpiry
	for i, id := range ids {
		s, parted, end := k.finishRenewal(a, i, id, touch, passive)
		switch {
		case end != nil:
			late = append(late, end)
		case s == nil:
			out.Ended = append(out.Ended, id)
		case parted.Role != "":
			out.Revoked = append(out.Revoked, parted)
		default:
			out.Alive = append(out.Alive, s)
		}
	}
	if len(late) == 0 {
		return out, nil
	}
	for _, end := range late {
		if err := end.wait(ctx); err != nil {
			return state.Renewed{}, noLeader("the end of a session that was renewed late is on its way: %w", err)
		}
	}
	// What was on its way is known now. Sessions that live on are renewed like any
	// other, from the beginning.
	return k.renewAfterBarrier(ctx, ids, touch, passive)
}

// wait returns once it is known what became of the end.
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

// pendingRenewal is what a renewal has touched when it came.
type pendingRenewal struct {
	leaderState *leaderState // nil: this node did not lead
	arrivedAt   time.Duration
	timers      []*sessionTimer // one for each ID; nil: not known then
}

// beginRenewal notes that renewals have come, which holds back the expiry of theirs.
func (k *SessionManager) beginRenewal(ids []string) pendingRenewal {
	k.mu.Lock()
	defer k.mu.Unlock()
	a := pendingRenewal{leaderState: k.leaderState}
	if a.leaderState == nil {
		return a
	}
	a.arrivedAt = a.leaderState.clock.read(k.deps.Clock())
	a.timers = make([]*sessionTimer, len(ids))
	for i, id := range ids {
		if e := a.leaderState.sessions[id]; e != nil {
			e.pendingRenewals++
			a.timers[i] = e
		}
	}
	return a
}

// abortRenewal takes back what arrive has held back.
func (k *SessionManager) abortRenewal(a pendingRenewal) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, e := range a.timers {
		if e != nil {
			e.pendingRenewals--
		}
	}
}

// finishRenewal renews session i of a proven arrival. It gives the session, nil when it
// does not live, and the tenure, none as a rule, that was taken from it and for which
// it was not renewed; or its end that is on its way, which has to be waited for. Both are looked up under the lock: what expire
// has seen, a renewal that comes after it sees too.
//
// Should the reign have changed since the renewal came, its sessions are counted
// from now. Should there be none any more, the next one, here or elsewhere, will
// begin every TTL later than the renewal came.
func (k *SessionManager) finishRenewal(a pendingRenewal, i int, id string, touch func(int, *sessionTimer, time.Duration), passive func(int) bool) (s *state.Session, parted state.Revocation, end *pendingExpiry) {
	k.mu.Lock()
	defer k.mu.Unlock()
	r, at := k.leaderState, a.arrivedAt
	if a.leaderState != nil {
		if e := a.timers[i]; e != nil {
			e.pendingRenewals--
		}
	}
	view := k.deps.Consensus.View()
	s, lives := view.Session(id)
	if !lives {
		return nil, parted, nil
	}
	if list := view.Revocations(id); len(list) > 0 && !passive(i) {
		parted = list[0]
	}
	if r == nil {
		touch(i, nil, 0)
		return s, parted, nil
	}
	if r != a.leaderState {
		at = r.clock.read(k.deps.Clock())
	}
	e := r.sessions[id]
	if e == nil { // not taken in yet
		e = r.addSession(s, at)
	}
	if e.expiry == nil && parted.Role == "" {
		touch(i, e, at)
	}
	return s, parted, e.expiry
}

// renew counts the TTL from at on.
func (e *sessionTimer) renew(at time.Duration) {
	if d := at + e.ttl + pauseSlack; d > e.deadline {
		e.deadline, e.cause = d, state.CauseExpired
	}
}

// Remaining is how long a session has left if it is not renewed; its TTL where
// this node does not know.
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
