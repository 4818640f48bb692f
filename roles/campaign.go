package roles

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/time/rate"

	"northstar/cluster"
	"northstar/state"
)

// orphanTimeout is how long a candidate without a waiting request stays queued: its client asks again.
const orphanTimeout = 10 * time.Second

// maxWithdrawalsPerPass limits the withdrawals between two passes over the elections.
const maxWithdrawalsPerPass = 20

// Limits of role events in the event log. The history and the watch of a role have all of them.
const (
	eventsPerSecond = 20
	maxEventBurst   = 200
)

// candidacy is one session's candidacy for one role.
type candidacy struct{ role, session string }

// pendingRole is a role that waits for a delay, or, without a name, all roles.
type pendingRole struct {
	stateRevision uint64        // of the role; see pendingDelay
	startedAt     time.Duration // on the leaderState's clock
}

// pendingDelay returns how long a vacant role still waits, "" for all roles. The reason is a takeover delay or a lock
// delay. The number identifies the wait; it is 0 without one.
func pendingDelay(view *state.View, name string) (since uint64, d time.Duration) {
	if name == "" {
		return view.ClusterLockDelay()
	}
	role, ok := view.Role(name)
	switch {
	case ok && role.LockDelay > 0:
		return role.StateRevision, role.LockDelay
	case ok && role.TakeoverPending:
		next, _ := role.Next()
		return role.StateRevision, next.TakeoverDelay
	}
	return 0, 0
}

// orphan is a candidacy without a waiting request.
type orphan struct {
	since   time.Duration // on the leaderState's clock
	inDoubt bool          // a campaign for it may still be on its way through the log
}

// TrackWaiter records that a request waits here for the session's election, which keeps the candidate queued. The
// caller calls release when the request ends. Without another request the candidate is then withdrawn later. inDoubt:
// the request's campaign may still be applied.
func (k *SessionManager) TrackWaiter(role, session string) (release func(inDoubt bool)) {
	c := candidacy{role, session}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.waiters[c]++
	return func(inDoubt bool) { k.endWait(c, inDoubt) }
}

// endWait records that one of the requests for c has ended.
func (k *SessionManager) endWait(c candidacy, inDoubt bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.waiters[c]--; k.waiters[c] == 0 {
		delete(k.waiters, c)
	} else if !inDoubt {
		return
	}
	if r := k.leaderState; r != nil {
		r.orphans[c] = orphan{r.clock.read(k.deps.Clock()), inDoubt || r.orphans[c].inDoubt}
	}
}

// Withdraw removes a candidate from its queue, unless another request waits for it: then the role is nil.
func (k *SessionManager) Withdraw(ctx context.Context, role, session string) (*state.Role, error) {
	k.mu.Lock()
	attended := k.waiters[candidacy{role, session}] > 0
	k.mu.Unlock()
	if attended {
		return nil, nil
	}
	result, err := k.deps.Consensus.Propose(ctx, state.Command{
		Kind:         state.KindRoleWithdraw,
		RoleWithdraw: &state.RoleWithdraw{Role: role, Session: session},
	})
	return result.Role, err
}

// electionLoop proposes due elections and withdrawals until ctx ends.
func (k *SessionManager) electionLoop(ctx context.Context, r *leaderState) {
	for {
		select {
		case <-r.wakeElections:
		case <-ctx.Done():
			return
		}
		k.electReadyRoles(ctx, r)
		k.withdrawOrphans(ctx, r)
	}
}

// withdrawOrphans withdraws candidates that have had no waiting request for orphanTimeout.
func (k *SessionManager) withdrawOrphans(ctx context.Context, r *leaderState) {
	for _, c := range k.abandoned(r) {
		if ctx.Err() != nil {
			return
		}
		_, _ = k.Withdraw(ctx, c.role, c.session) // retried while the candidate is queued
	}
}

// abandoned returns the candidates to withdraw. It forgets those outside the queue, unless they may still get there.
func (k *SessionManager) abandoned(r *leaderState) (gone []candidacy) {
	k.mu.Lock()
	defer k.mu.Unlock()
	view := k.deps.Consensus.View() // has every campaign that is not in doubt
	now := r.clock.read(k.deps.Clock())
	for c, o := range r.orphans {
		due := now-o.since >= orphanTimeout
		if k.waiters[c] > 0 || o.inDoubt && !due {
			continue
		}
		if role, ok := view.Role(c.role); !ok || !role.Waits(c.session) {
			delete(r.orphans, c)
		} else if due && len(gone) < maxWithdrawalsPerPass {
			gone = append(gone, c) // and out of the map when the candidate has left the queue
		}
	}
	return gone
}

// electReadyRoles elects the next candidates of roles whose delay is over.
func (k *SessionManager) electReadyRoles(ctx context.Context, r *leaderState) {
	view := k.deps.Consensus.View()
	elect := &state.RoleElect{}
	k.mu.Lock()
	now := r.clock.read(k.deps.Clock())
	for name, v := range r.pendingRoles {
		since, wait := pendingDelay(view, name)
		if since != v.stateRevision {
			delete(r.pendingRoles, name)
			continue
		}
		if now-v.startedAt >= wait && len(elect.Roles) < state.MaxElectableRoles {
			elect.Roles = append(elect.Roles, state.ElectableRole{Role: name, StateRevision: v.stateRevision})
		}
	}
	k.mu.Unlock()
	if len(elect.Roles) == 0 {
		return
	}
	if _, err := k.deps.Consensus.Propose(ctx, state.Command{Kind: state.KindRoleElect, RoleElect: elect}); err != nil {
		k.logger.Debug("role elections failed, retrying", "roles", len(elect.Roles), "error", err)
	}
}

// watchRoles starts the timers of roles whose delay begins, and emits role events, until ctx ends.
func (k *SessionManager) watchRoles(ctx context.Context, r *leaderState) {
	emitter := roleEventEmitter{limit: rate.NewLimiter(eventsPerSecond, maxEventBurst), event: k.deps.Event}
	for ctx.Err() == nil {
		cursor, err := k.deps.Consensus.RoleFeed().Cursor("", k.startRoleTimers(r))
		for err == nil {
			var changes []state.Change
			changes, err = cursor.Next(ctx, 100)
			for _, c := range changes {
				ev, bad := state.DecodeRoleEvent(c.Value)
				if bad != nil { // cannot happen: Apply encoded it
					k.logger.Error("an event of a role cannot be read", "revision", c.Revision, "error", bad)
					continue
				}
				if !ev.Elected {
					k.startRoleTimer(r, ev.Role)
				}
				emitter.emit(ev)
			}
		}
		// The feed was too slow, or a backup was restored; or ctx has ended.
	}
}

// startRoleTimers starts the timers of all pending delays, and returns the revision of the state.
func (k *SessionManager) startRoleTimers(r *leaderState) uint64 {
	view := k.deps.Consensus.View()
	k.startRoleTimer(r, "")
	for role := range view.RolesAfter("") {
		k.startRoleTimer(r, role.Name)
	}
	return view.Revision()
}

// startRoleTimer starts the timer of a role if a delay is pending and not started.
func (k *SessionManager) startRoleTimer(r *leaderState, name string) {
	since, _ := pendingDelay(k.deps.Consensus.View(), name)
	if since == 0 {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if r.pendingRoles[name].stateRevision != since {
		r.pendingRoles[name] = pendingRole{stateRevision: since, startedAt: r.clock.read(k.deps.Clock())}
		notify(r.wakeTimer)
	}
}

// roleEventEmitter writes role events to the event log.
type roleEventEmitter struct {
	limit      *rate.Limiter
	event      func(cluster.Event)
	suppressed int // since the last event
}

func (t *roleEventEmitter) emit(ev state.RoleEvent) {
	if !t.limit.Allow() {
		t.suppressed++
		return
	}
	ten := ev.Tenure
	e := cluster.Event{Type: "role", Fields: map[string]any{
		"role": ev.Role, "holder": ten.Holder,
		"session_id": ten.Session, "token": ten.Token,
	}}
	if ev.Elected {
		e.Message = fmt.Sprintf("%s holds role %s with token %d", ten.Holder, ev.Role, ten.Token)
	} else {
		e.Message = fmt.Sprintf("%s no longer holds role %s: %s", ten.Holder, ev.Role, ten.Cause)
		e.Fields["cause"] = string(ten.Cause)
	}
	if t.suppressed > 0 {
		e.Fields["left_out"] = t.suppressed
		t.suppressed = 0
	}
	t.event(e)
}
