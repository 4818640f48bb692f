package roles

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/time/rate"

	"northstar/cluster"
	"northstar/state"
)

// How long a candidate that nobody waits for keeps its place after a change of
// the leader: its client, or the node in between, asks again.
const orphanTimeout = 10 * time.Second

// maxWithdrawalsPerPass bounds the withdrawals between two looks at the elections.
const maxWithdrawalsPerPass = 20

// Role events that the journal takes: it has room for other things too. The
// history of each role, and its watch, hold all of them.
const (
	eventsPerSecond = 20
	maxEventBurst   = 200
)

// candidacy is one session's wish to hold one role.
type candidacy struct{ role, session string }

// pendingRole is a role that waits for time to pass, or, without a name, all of them.
type pendingRole struct {
	stateRevision uint64        // of the role; see awaited
	startedAt     time.Duration // of the reign's clock, when it was seen
}

// pendingDelay gives how long a role that nobody holds waits, "" for all of them: for a
// takeover delay, or for the deadline of who may still believe to hold it. The number
// names that wait; it is 0 when there is none.
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

// Attend notes that a request waits here until the session is elected: the
// candidate keeps its place. Call left when it does no longer; should the
// candidate still stand in the queue then, it is taken out in the end.
func (k *SessionManager) TrackWaiter(role, session string) (left func()) {
	c := candidacy{role, session}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.waiters[c]++
	return func() { k.releaseWaiter(c) }
}

func (k *SessionManager) releaseWaiter(c candidacy) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.waiters[c]--; k.waiters[c] > 0 {
		return
	}
	delete(k.waiters, c)
	if r := k.leaderState; r != nil {
		r.orphans[c] = r.clock.read(k.deps.Clock())
	}
}

// Withdraw takes a candidate out of its queue at once, unless another request
// attends it. It gives the role as it is then, nil when it did not look.
func (k *SessionManager) Withdraw(ctx context.Context, role, session string) (*state.Role, error) {
	k.mu.Lock()
	attended := k.waiters[candidacy{role, session}] > 0
	k.mu.Unlock()
	if attended {
		return nil, nil
	}
	result, err := k.deps.Consensus.Propose(ctx, state.Command{Kind: state.KindRoleWithdraw, RoleWithdraw: &state.RoleWithdraw{Role: role, Session: session}})
	return result.Role, err
}

// markAllOrphaned suspects every candidate: no request waits here yet for any.
func (r *leaderState) markAllOrphaned(view *state.View) {
	for role := range view.RolesAfter("") {
		for _, c := range role.Queue {
			r.orphans[candidacy{role.Name, c.Session}] = 0
		}
	}
}

// electionLoop proposes elections and withdrawals that are due until ctx ends.
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

// withdrawOrphans takes candidates out of their queues for which no request has
// come for a while.
func (k *SessionManager) withdrawOrphans(ctx context.Context, r *leaderState) {
	view := k.deps.Consensus.View()
	var gone []candidacy
	k.mu.Lock()
	now := r.clock.read(k.deps.Clock())
	for c, since := range r.orphans {
		role, ok := view.Role(c.role)
		switch {
		case !ok || !role.Waits(c.session) || k.waiters[c] > 0:
			delete(r.orphans, c)
		case now-since >= orphanTimeout && len(gone) < maxWithdrawalsPerPass:
			gone = append(gone, c) // and out of the map when it has left the queue
		}
	}
	k.mu.Unlock()
	for _, c := range gone {
		if ctx.Err() != nil {
			return
		}
		_, _ = k.Withdraw(ctx, c.role, c.session) // tried again while it stands in the queue
	}
}

// electReadyRoles elects the next candidates of roles that have waited for long enough.
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
		k.logger.Debug("elections that are due are tried again", "roles", len(elect.Roles), "error", err)
	}
}

// watchRoles notes vacancies that a takeover delay follows, or a state that was
// replaced, and tells of what happens to the roles, until ctx ends.
func (k *SessionManager) watchRoles(ctx context.Context, r *leaderState) {
	told := roleEventEmitter{limit: rate.NewLimiter(eventsPerSecond, maxEventBurst), event: k.deps.Event}
	for ctx.Err() == nil {
		cursor, err := k.deps.Consensus.RoleFeed().Cursor("", k.startRoleTimers(r))
		for err == nil {
			var changes []state.Change
			changes, err = cursor.Next(ctx, 100)
			for _, c := range changes {
				ev, bad := state.DecodeRoleEvent(c.Value)
				if bad != nil { // Apply has encoded it
					k.logger.Error("an event of a role cannot be read", "revision", c.Revision, "error", bad)
					continue
				}
				if !ev.Elected {
					k.startRoleTimer(r, ev.Role)
				}
				told.emit(ev)
			}
		}
		// The feed was left behind, or a backup was restored; or ctx has ended.
	}
}

// startRoleTimers starts the time of all roles that wait for it to pass. It gives the
// revision as of which that is so.
func (k *SessionManager) startRoleTimers(r *leaderState) uint64 {
	view := k.deps.Consensus.View()
	k.startRoleTimer(r, "")
	for role := range view.RolesAfter("") {
		k.startRoleTimer(r, role.Name)
	}
	return view.Revision()
}

// startRoleTimer starts the time of a role, if it waits for it to pass and that has not
// begun.
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

// roleEventEmitter puts what happens to the roles into the journal.
type roleEventEmitter struct {
	limit      *rate.Limiter
	event      func(cluster.Event)
	suppressed int // out since the last one
}

func (t *roleEventEmitter) emit(ev state.RoleEvent) {
	if !t.limit.Allow() {
		t.suppressed++
		return
	}
	ten := ev.Tenure
	e := cluster.Event{Type: "role", Fields: map[string]any{"role": ev.Role, "holder": ten.Holder, "session_id": ten.Session, "token": ten.Token}}
	if ev.Elected {
		e.Message = fmt.Sprintf("%s holds role %s with token %d", ten.Holder, ev.Role, ten.Token)
	} else {
		e.Message = fmt.Sprintf("%s holds role %s no more: %s", ten.Holder, ev.Role, ten.Cause)
		e.Fields["cause"] = string(ten.Cause)
	}
	if t.suppressed > 0 {
		e.Fields["left_out"] = t.suppressed
		t.suppressed = 0
	}
	t.event(e)
}
