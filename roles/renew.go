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
	list := make([]cluster.Attachment, len(ids))
	for i, id := range ids {
		list[i].Session = id
	}
	return k.renewAfterBarrier(ctx, list)
}

// renewAfterBarrier finds out which sessions live, and renews them as of the time at which it was
// called: not those of passive connections, nor those that a role was taken from.
// Attachments that name a stream are noted.
func (k *SessionManager) renewAfterBarrier(ctx context.Context, list []cluster.Attachment) (out state.Renewed, err error) {
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
		return state.Renewed{}, noLeader("this node has only just begun to lead, or has ceased to")
	}
	for _, end := range late {
		if err := end.wait(ctx); err != nil {
			return state.Renewed{}, noLeader("the end of a session that was renewed late is on its way: %w", err)
		}
	}
	// What was on its way is known now. Sessions that live on are renewed like any
	// other, from the beginning.
	return k.renewAfterBarrier(ctx, list)
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

// renewal is what became of one renewal.
type renewal struct {
	session *state.Session   // nil: it does not live
	parted  state.Revocation // the role for which it was not renewed
	end     *pendingExpiry   // its end is on its way, and has to be waited for
	unnoted bool             // no reign knows of the connection
}

// finishRenewal finishes renewal i of a proven arrival. It looks everything up under the lock: a
// renewal that comes after expire sees what expire has seen.
//
// When the reign has changed since the renewal came, its session is counted from now.
// Without a reign, the next one, here or elsewhere, begins every TTL later than the
// renewal came.
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
	if e == nil { // not taken in yet
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
