package roles

import (
	"context"
	"time"

	"northstar/cluster"
	"northstar/state"
)

const (
	minTick          = 50 * time.Millisecond  // between two looks at what is due, at the least
	maxTick          = 250 * time.Millisecond // and at the most: new sessions are taken in then
	maxExpireBatch   = 500                    // sessions that one command ends
	expireRetryDelay = 100 * time.Millisecond // after an end of which it is not known whether it was proposed
)

// timerLoop looks again and again at what is due until ctx ends.
func (k *SessionManager) timerLoop(ctx context.Context, r *leaderState) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-r.wakeTimer:
		case <-ctx.Done():
			return
		}
		wait, pause := k.tick(r)
		if pause > time.Second {
			k.logger.Warn("this leader was paused: sessions get that time on top", "pause", pause)
		}
		timer.Reset(wait)
	}
}

// tick moves the clock on, and hands over what is due. It gives the time until
// the next turn, and the length of a pause that has just ended.
func (k *SessionManager) tick(r *leaderState) (wait, pause time.Duration) {
	view := k.deps.Consensus.View()
	raw := k.deps.Clock()
	k.mu.Lock()
	defer k.mu.Unlock()
	now := r.clock.read(raw)
	r.collectExpired(now, view)
	wait = maxTick
	if len(r.due) > 0 {
		wait = min(wait, r.due[0].key-now)
	}
	if len(r.pendingRoles) > 0 {
		wait = minTick
	}
	wait = max(wait, minTick)
	pause = r.clock.tick(raw, wait)
	r.addNewSessions(view, now)
	if len(r.expiring) > 0 {
		notify(r.wakeExpiry)
	}
	if len(r.pendingRoles) > 0 || len(r.orphans) > 0 {
		notify(r.wakeElections)
	}
	return wait, pause
}

// collectExpired moves the sessions whose time is over to ending. The heap is ordered by
// what the deadlines were when it was last looked at: renewals only make them
// later, and do not touch it.
func (r *leaderState) collectExpired(now time.Duration, view *state.View) {
	for len(r.due) > 0 && r.due[0].key <= now {
		e := r.due[0]
		switch _, lives := view.Session(e.id); {
		case !lives:
			r.due.remove(e)
			delete(r.sessions, e.id)
		case e.deadline > now:
			r.due.move(e, e.deadline)
		case e.pendingRenewals > 0 && len(view.Revocations(e.id)) == 0: // else they will not renew it
			r.due.move(e, now+minTick)
		default:
			r.expireNow(e)
		}
	}
}

// expireNow begins to end a session.
func (r *leaderState) expireNow(e *sessionTimer) {
	r.due.remove(e)
	e.expiry = &pendingExpiry{done: make(chan struct{})}
	r.expiring = append(r.expiring, e)
}

// expireLoop proposes the ends of sessions until ctx ends.
func (k *SessionManager) expireLoop(ctx context.Context, r *leaderState) {
	for {
		select {
		case <-r.wakeExpiry:
		case <-ctx.Done():
			return
		}
		for ctx.Err() == nil {
			batch, cause := k.nextExpireBatch(r)
			if batch == nil {
				break
			}
			k.endSessions(ctx, r, batch, cause)
		}
	}
}

// nextExpireBatch takes sessions to be ended by one command.
func (k *SessionManager) nextExpireBatch(r *leaderState) (batch []*sessionTimer, cause state.Cause) {
	k.mu.Lock()
	defer k.mu.Unlock()
	rest := r.expiring[:0]
	for _, e := range r.expiring {
		if len(batch) == 0 {
			cause = e.cause
		}
		if e.cause == cause && len(batch) < maxExpireBatch {
			batch = append(batch, e)
		} else {
			rest = append(rest, e)
		}
	}
	clear(r.expiring[len(rest):])
	r.expiring = rest
	return batch, cause
}

// endSessions ends sessions through the log. While it is not known whether the
// command takes effect, they neither live on nor have ended: it is proposed until
// that is known, or the reign is over.
func (k *SessionManager) endSessions(ctx context.Context, r *leaderState, batch []*sessionTimer, cause state.Cause) {
	cmd := state.Command{Kind: state.KindSessionEnd, SessionEnd: &state.SessionEnd{Cause: cause}}
	for _, e := range batch {
		cmd.SessionEnd.IDs = append(cmd.SessionEnd.IDs, e.id)
	}
	unknown := false
	for {
		_, err := k.deps.Consensus.Propose(ctx, cmd)
		if err == nil {
			// Refused only when none of them lives any more.
			k.finishExpiry(r, batch, true)
			k.logger.Debug("sessions ended", "cause", cause, "sessions", len(batch))
			return
		}
		unknown = unknown || cluster.IsCode(err, cluster.CodeOutcomeUnknown)
		if !unknown {
			k.finishExpiry(r, batch, false)
			return
		}
		if !sleep(ctx, expireRetryDelay) {
			return // finish tells who waits
		}
	}
}

// finishExpiry tells what became of the end of sessions. Those that live on are
// looked at again soon.
func (k *SessionManager) finishExpiry(r *leaderState, batch []*sessionTimer, ended bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := r.clock.read(k.deps.Clock())
	for _, e := range batch {
		e.expiry.ended = ended
		close(e.expiry.done)
		e.expiry = nil
		if ended {
			delete(r.sessions, e.id)
			continue
		}
		e.key = now + minTick
		r.due.push(e)
	}
}

// sleep waits for d; false when ctx ended before.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
