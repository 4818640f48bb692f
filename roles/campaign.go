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
const suspectAfter = 10 * time.Second

// withdrawnAtOnce bounds the withdrawals between two looks at the elections.
const withdrawnAtOnce = 20

// Role events that the journal takes: it has room for other things too. The
// history of each role, and its watch, hold all of them.
const (
	eventsPerSecond = 20
	eventsAtOnce    = 200
)

// candidacy is one session's wish to hold one role.
type candidacy struct{ role, session string }

// vacancy is a role that waits for time to pass, or, without a name, all of them.
type vacancy struct {
	since uint64        // of the role; see awaited
	at    time.Duration // of the reign's clock, when it was seen
}

// awaited gives how long a role that nobody holds waits, "" for all of them: for a
// takeover delay, or for the deadline of who may still believe to hold it. The number
// names that wait; it is 0 when there is none.
func awaited(view *state.View, name string) (since uint64, d time.Duration) {
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
func (k *Keeper) TrackWaiter(role, session string) (left func()) {
	c := candidacy{role, session}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.attended[c]++
	return func() { k.leave(c) }
}

func (k *Keeper) leave(c candidacy) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.attended[c]--; k.attended[c] > 0 {
		return
	}
	delete(k.attended, c)
	if r := k.reign; r != nil {
		r.suspects[c] = r.clock.read(k.deps.Clock())
	}
}

// Withdraw takes a candidate out of its queue at once, unless another request
// attends it. It gives the role as it is then, nil when it did not look.
func (k *Keeper) Withdraw(ctx context.Context, role, session string) (*state.Role, error) {
	k.mu.Lock()
	attended := k.attended[candidacy{role, session}] > 0
	k.mu.Unlock()
	if attended {
		return nil, nil
	}
	result, err := k.deps.Consensus.Propose(ctx, state.Command{Kind: state.KindRoleWithdraw, RoleWithdraw: &state.RoleWithdraw{Role: role, Session: session}})
	return result.Role, err
}

// suspectAll suspects every candidate: no request waits here yet for any.
func (r *reign) suspectAll(view *state.View) {
	for role := range view.RolesAfter("") {
		for _, c := range role.Queue {
			r.suspects[candidacy{role.Name, c.Session}] = 0
		}
	}
}

// tendRoles proposes elections and withdrawals that are due until ctx ends.
func (k *Keeper) tendRoles(ctx context.Context, r *reign) {
	for {
		select {
		case <-r.tend:
		case <-ctx.Done():
			return
		}
		k.electDue(ctx, r)
		k.withdrawSuspects(ctx, r)
	}
}

// withdrawSuspects takes candidates out of their queues for which no request has
// come for a while.
func (k *Keeper) withdrawSuspects(ctx context.Context, r *reign) {
	view := k.deps.Consensus.View()
	var gone []candidacy
	k.mu.Lock()
	now := r.clock.read(k.deps.Clock())
	for c, since := range r.suspects {
		role, ok := view.Role(c.role)
		switch {
		case !ok || !role.Waits(c.session) || k.attended[c] > 0:
			delete(r.suspects, c)
		case now-since >= suspectAfter && len(gone) < withdrawnAtOnce:
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

// electDue elects the next candidates of roles that have waited for long enough.
func (k *Keeper) electDue(ctx context.Context, r *reign) {
	view := k.deps.Consensus.View()
	elect := &state.RoleElect{}
	k.mu.Lock()
	now := r.clock.read(k.deps.Clock())
	for name, v := range r.vacant {
		since, wait := awaited(view, name)
		if since != v.since {
			delete(r.vacant, name)
			continue
		}
		if now-v.at >= wait && len(elect.Roles) < state.MaxElectableRoles {
			elect.Roles = append(elect.Roles, state.ElectableRole{Role: name, StateRevision: v.since})
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

// followRoles notes vacancies that a takeover delay follows, or a state that was
// replaced, and tells of what happens to the roles, until ctx ends.
func (k *Keeper) followRoles(ctx context.Context, r *reign) {
	told := teller{limit: rate.NewLimiter(eventsPerSecond, eventsAtOnce), event: k.deps.Event}
	for ctx.Err() == nil {
		cursor, err := k.deps.Consensus.RoleFeed().Cursor("", k.noteVacancies(r))
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
					k.noteVacancy(r, ev.Role)
				}
				told.tell(ev)
			}
		}
		// The feed was left behind, or a backup was restored; or ctx has ended.
	}
}

// noteVacancies starts the time of all roles that wait for it to pass. It gives the
// revision as of which that is so.
func (k *Keeper) noteVacancies(r *reign) uint64 {
	view := k.deps.Consensus.View()
	k.noteVacancy(r, "")
	for role := range view.RolesAfter("") {
		k.noteVacancy(r, role.Name)
	}
	return view.Revision()
}

// noteVacancy starts the time of a role, if it waits for it to pass and that has not
// begun.
func (k *Keeper) noteVacancy(r *reign, name string) {
	since, _ := awaited(k.deps.Consensus.View(), name)
	if since == 0 {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if r.vacant[name].since != since {
		r.vacant[name] = vacancy{since: since, at: r.clock.read(k.deps.Clock())}
		notify(r.early)
	}
}

// teller puts what happens to the roles into the journal.
type teller struct {
	limit *rate.Limiter
	event func(cluster.Event)
	left  int // out since the last one
}

func (t *teller) tell(ev state.RoleEvent) {
	if !t.limit.Allow() {
		t.left++
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
	if t.left > 0 {
		e.Fields["left_out"] = t.left
		t.left = 0
	}
	t.event(e)
}
