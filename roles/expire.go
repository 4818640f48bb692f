package roles

import (
	"context"
	"time"

	"northstar/cluster"
	"northstar/state"
)

const (
	minTick          = 50 * time.Millisecond  // minimum time between two ticks
	maxTick          = 250 * time.Millisecond // maximum time between two ticks, and the delay of new sessions' timers
	maxExpireBatch   = 500                    // sessions, or dead application nodes, in one command
	expireRetryDelay = 100 * time.Millisecond // after a command with unknown outcome
	fewTimers        = 1000                   // of sessions that have ended: not looked for
	maxLookedAt      = 10_000                 // timers in one tick: renewals wait meanwhile
)

// timerLoop calls tick until ctx ends.
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
			k.logger.Warn("process pause detected: extending session deadlines", "pause", pause)
		}
		timer.Reset(wait)
	}
}

// tick advances the clock and hands over expired sessions. It returns the length of a pause that has just ended.
func (k *SessionManager) tick(r *leaderState) (wait, pause time.Duration) {
	raw := k.deps.Clock()
	k.mu.Lock()
	defer k.mu.Unlock()
	view := k.deps.Consensus.View() // with every session that has a timer
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
	r.dropEnded(view)
	if len(r.expiring) > 0 {
		notify(r.wakeExpiry)
	}
	if len(r.pendingRoles) > 0 || len(r.orphans) > 0 {
		notify(r.wakeElections)
	}
	return wait, pause
}

// collectExpired moves the sessions whose deadline has passed to expiring. The heap is ordered by older deadlines:
// renewals only extend deadlines, and do not update the heap.
func (r *leaderState) collectExpired(now time.Duration, view *state.View) {
	for len(r.due) > 0 && r.due[0].key <= now {
		e := r.due[0]
		if e.deadline > now { // also of a session that has ended: it is looked for at its deadline
			r.due.move(e, e.deadline)
			continue
		}
		switch _, lives := view.Session(e.id); {
		case !lives:
			r.due.remove(e)
			delete(r.sessions, e.id)
		// a revoked session is not renewed by its pending renewals
		case e.pendingRenewals > 0 && len(view.Revocations(e.id)) == 0:
			r.due.move(e, now+minTick)
		default:
			r.expireNow(e)
		}
	}
}

// expireNow starts the expiry of a session.
func (r *leaderState) expireNow(e *sessionTimer) {
	r.due.remove(e)
	e.expiry = &pendingExpiry{done: make(chan struct{})}
	r.expiring = append(r.expiring, e)
}

// expireLoop proposes session expirations until ctx ends.
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

// nextExpireBatch returns the sessions of the next command. Their keys are not more than one transaction may change,
// unless it is a single session that has more.
func (k *SessionManager) nextExpireBatch(r *leaderState) (batch []*sessionTimer, cause state.Cause) {
	k.mu.Lock()
	defer k.mu.Unlock()
	view, left := k.deps.Consensus.View(), state.MaxTxnChanges
	rest := r.expiring[:0]
	for _, e := range r.expiring {
		if len(batch) == 0 {
			cause = e.cause
		}
		if left < 0 || e.cause != cause || len(batch) == maxExpireBatch {
			rest = append(rest, e)
			continue
		}
		if left -= view.OwnedKeys(e.id, left+1); left >= 0 || len(batch) == 0 {
			batch = append(batch, e)
		} else {
			rest = append(rest, e)
		}
	}
	clear(r.expiring[len(rest):])
	r.expiring = rest
	return batch, cause
}

// endSessions ends sessions through the log. Until the outcome of the command is known, the sessions count neither as
// live nor as ended. The command is repeated until the outcome is known or the leadership is over.
func (k *SessionManager) endSessions(ctx context.Context, r *leaderState, batch []*sessionTimer, cause state.Cause) {
	cmd := state.Command{Kind: state.KindSessionEnd, SessionEnd: &state.SessionEnd{Cause: cause}}
	for _, e := range batch {
		cmd.SessionEnd.IDs = append(cmd.SessionEnd.IDs, e.id)
	}
	unknown := false
	for {
		_, err := k.deps.Consensus.Propose(ctx, cmd)
		if err == nil {
			// Refused only if none of the sessions exists any longer.
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
			return // stopLeading notifies the waiters
		}
	}
}

// dropEnded drops timers of sessions that have ended, when they are more than those of live ones. Without it, a client
// that starts and ends sessions with a TTL of a day would leave a timer of each for that day.
func (r *leaderState) dropEnded(view *state.View) {
	if len(r.sessions) <= 2*view.Sessions()+fewTimers {
		return
	}
	looked := 0
	for id, e := range r.sessions { // in an order that begins elsewhere each time
		if looked++; looked > maxLookedAt {
			return
		}
		if _, lives := view.Session(id); !lives && e.expiry == nil {
			r.due.remove(e)
			delete(r.sessions, id)
		}
	}
}

// finishExpiry records the result of an expiry. Sessions that live on are checked again soon.
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

// sleep waits for d; it returns false if ctx ended first.
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

// pauseClock counts the time in which this process could receive renewals. Its owner calls tick and announces the
// next call. A call that is later than announced, plus a slack for a busy machine, reveals a pause of the process or
// the machine. No part of the pause counts: renewals that wait to be read may have arrived at any time in it.
//
// The clock never runs faster than the raw clock. It is a value without locks.
type pauseClock struct {
	counted time.Duration // as of the last tick
	at      time.Duration // raw time of the last tick
	allowed time.Duration // until the next tick; a longer time is a pause
}

// pauseSlack is how late a tick may be without counting as a pause. Deadlines are extended by it.
const pauseSlack = 100 * time.Millisecond

// read returns the time counted up to raw, which must not be before the last tick. When a pause is detected, the
// clock goes back behind earlier reads: deadlines become later, never earlier.
func (c *pauseClock) read(raw time.Duration) time.Duration {
	if passed := raw - c.at; passed > 0 && passed <= c.allowed {
		return c.counted + passed
	}
	return c.counted
}

// tick counts up to raw and expects the next tick within next. It returns the length of an uncounted pause, or 0.
func (c *pauseClock) tick(raw, next time.Duration) (pause time.Duration) {
	if raw-c.at > c.allowed {
		pause = raw - c.at
	}
	*c = pauseClock{counted: c.read(raw), at: raw, allowed: next + pauseSlack}
	return pause
}

// deadNodeSweepInterval is how often the registry is checked for application nodes that have been dead for long.
const deadNodeSweepInterval = time.Minute

// purgeDeadNodes removes application nodes that have been dead for Deps.NodeRetention, until ctx ends.
func (k *SessionManager) purgeDeadNodes(ctx context.Context) {
	for sleep(ctx, deadNodeSweepInterval) {
		before := time.Now().Add(-k.deps.NodeRetention).UnixNano()
		for k.purgeSomeDeadNodes(ctx, before) {
		}
	}
}

// purgeSomeDeadNodes removes application nodes that died before a time, in Unix nanoseconds. It reports whether it
// removed as many as one command takes, so that there may be more.
func (k *SessionManager) purgeSomeDeadNodes(ctx context.Context, before int64) (more bool) {
	var ids []string
	for n := range k.deps.Consensus.View().AppNodesAfter("") {
		if n.Status == state.AppDead && n.ChangedAt < before {
			if ids = append(ids, n.ID); len(ids) == maxExpireBatch {
				break
			}
		}
	}
	if len(ids) == 0 {
		return false
	}
	cmd := state.Command{Kind: state.KindAppNodeRemove, AppNodeRemove: &state.AppNodeRemove{
		IDs:       ids,
		DeadSince: before,
	}}
	if _, err := k.deps.Consensus.Propose(ctx, cmd); err != nil {
		k.logger.Debug("removing dead application nodes failed, will retry", "nodes", len(ids), "error", err)
		return false
	}
	return len(ids) == maxExpireBatch
}
