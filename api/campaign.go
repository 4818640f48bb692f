package api

import (
	"context"
	"net/http"
	"time"

	"northstar/api/apiv1"
	"northstar/api/forward"
	"northstar/api/problem"
	"northstar/api/stream"
	"northstar/cluster"
	"northstar/state"
)

const (
	// campaignGrace is the time that a campaign may take in addition to its wait in the queue.
	campaignGrace = apiv1.DefaultTimeoutMS * time.Millisecond
	// sessionCheckInterval is how often a waiting candidate's session is checked: its end alone is no role event.
	sessionCheckInterval = time.Second
)

// campaign is idempotent: a holder gets its tenure again, a candidate keeps its place.
func campaign(c *request, in apiv1.Campaign) error {
	cmd, err := c.campaignCommand(in)
	if err != nil {
		return err
	}
	wait := time.Duration(in.WaitMS) * time.Millisecond
	ctx, cancel := context.WithTimeout(c.r.Context(), min(wait+campaignGrace, c.remainingBudget(maxCampaignDuration)))
	defer cancel()
	if wait > 0 { // a node that stops sends its candidates elsewhere, and does not wait for them
		ctx, cancel = stream.WithGraceAfter(ctx, c.s.stopping, 0)
		defer cancel()
	}
	c.extendDeadlines(wait + 2*campaignGrace)
	c.repeated = c.forwarded
	var role *state.Role
	// The session identifies a candidate. A later leader therefore knows whether an earlier attempt was elected, and
	// withdraws the candidate when the wait expires.
	work := forward.Request{
		Write: true, Idempotent: true, FinalCode: cluster.CodeRoleHeld,
		Local: func(ctx context.Context) (err error) {
			role, err = c.campaignHere(ctx, cmd)
			return err
		},
	}
	for {
		if err = c.onLeader(ctx, work); !c.canRetry(ctx, err, wait) {
			break
		}
	}
	switch revoked := c.revoked(); {
	case err == nil, err == forward.ErrResponseWritten:
	case revoked != nil && wait > 0: // what the request to the leader says is only that it was ended
		return revoked
	}
	switch {
	case err != nil:
		return err
	case role.Current.Session != in.SessionID:
		return c.heldError(notElectedError(c.s.reads.View(), role), role)
	}
	return c.reply(c.wireRole(c.s.reads.View(), role))
}

const maxCampaignDuration = apiv1.MaxWaitMS*time.Millisecond + campaignGrace

func (c *request) campaignCommand(in apiv1.Campaign) (state.Command, error) {
	if in.WaitMS < 0 || in.WaitMS > apiv1.MaxWaitMS {
		return state.Command{}, problem.BadRequest("wait_ms: must be 0 to %d (got %d)", apiv1.MaxWaitMS, in.WaitMS)
	}
	most := state.MaxTakeoverDelay.Milliseconds()
	if in.TakeoverDelayMS < 0 || in.TakeoverDelayMS > most {
		return state.Command{}, problem.BadRequest("takeover_delay_ms: must be 0 to %d (got %d)", most, in.TakeoverDelayMS)
	}
	cmd := state.Command{Kind: state.KindRoleCampaign, RoleCampaign: &state.RoleCampaign{
		Role: c.param, Session: in.SessionID, Value: in.Value, Wait: in.WaitMS > 0,
		TakeoverDelay: time.Duration(in.TakeoverDelayMS) * time.Millisecond, Ineligible: in.Eligible != nil &&
			!*in.Eligible,
		Required: in.Required,
	}}
	if err := cmd.Validate(); err != nil {
		return state.Command{}, err
	}
	return cmd, nil
}

// canRetry reports whether a campaign that found no leader within the queue limit tries again.
func (c *request) canRetry(ctx context.Context, err error, wait time.Duration) bool {
	return cluster.IsCode(err, cluster.CodeNoLeader) && wait > 0 && !c.forwarded && ctx.Err() == nil &&
		time.Now().Before(c.waitDeadline(ctx)) && c.s.stopping.Err() == nil
}

// waitDeadline returns when the wait in the queue ends: the rest of a campaign's time is for the response. The
// overhead that a forwarding node reserves does not shorten it.
func (c *request) waitDeadline(ctx context.Context) time.Time {
	deadline, _ := ctx.Deadline()
	if c.forwarded {
		deadline = deadline.Add(forward.Overhead)
	}
	return deadline.Add(-campaignGrace)
}

// extendDeadlines lets a connection be silent for longer than other requests may.
func (c *request) extendDeadlines(d time.Duration) {
	rc := http.NewResponseController(c.ResponseWriter)
	until := time.Now().Add(d)
	_ = rc.SetReadDeadline(until) // a connection without deadlines has no limit
	_ = rc.SetWriteDeadline(until)
}

// campaignHere makes a session a candidate and waits for its election. It returns when the session holds the role,
// the wait is over, the client is gone, its credentials are no longer valid, or this node loses leadership. In the last
// two cases the candidate keeps its place: the client asks again, with other credentials, or another leader.
func (c *request) campaignHere(ctx context.Context, cmd state.Command) (*state.Role, error) {
	p := cmd.RoleCampaign
	if err := c.checkCommand(ctx, &cmd); err != nil {
		return nil, err
	}
	role, err := c.proposeAndWait(ctx, cmd)
	if err != nil || role.Current.Session == p.Session || !p.Wait {
		return role, err
	}
	// The wait is over, or the client is gone.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), campaignGrace)
	defer cancel()
	now, err := c.s.deps.Sessions.Withdraw(ctx, p.Role, p.Session)
	if err != nil || now == nil {
		return role, stillQueued(p, err)
	}
	return now, nil
}

// stillQueued returns the error of a candidate that waits in the queue. It may be elected after the answer. So an error
// by which nothing has happened is an unknown outcome for it.
func stillQueued(p *state.RoleCampaign, err error) error {
	if err == nil || cluster.IsCode(err, cluster.CodeOutcomeUnknown) {
		return err
	}
	return cluster.Errorf(cluster.CodeOutcomeUnknown, "session %q waits for role %q and may be elected: %w", p.Session,
		p.Role, err)
}

// proposeAndWait returns the role when the candidate was elected or left the queue, when the wait is over, or when the
// client is gone. It fails if the session has ended, the credentials are no longer valid, or this node can no longer
// tell.
func (c *request) proposeAndWait(ctx context.Context, cmd state.Command) (*state.Role, error) {
	p := cmd.RoleCampaign
	inDoubt, release := false, c.s.deps.Sessions.TrackWaiter(p.Role, p.Session)
	defer func() { release(inDoubt) }()
	leader := c.s.leader.Current() // before it is proposed, so that no change is missed
	result, err := c.s.deps.Proposals.Propose(ctx, cmd)
	inDoubt = cluster.IsCode(err, cluster.CodeOutcomeUnknown)
	switch {
	case err != nil:
		return nil, err
	case result.Err != nil:
		return nil, result.Err
	case result.Role.Current.Session == p.Session || !p.Wait:
		return result.Role, nil
	}
	until := c.waitDeadline(ctx)
	ctx, cancel := stream.WithGraceAfter(ctx, leader.Changed, 0)
	defer cancel()
	lives := true
	role, err := c.followRole(ctx, p.Role, until, func(v *state.View, r *state.Role) bool {
		_, lives = v.Session(p.Session)
		return lives && r.Waits(p.Session)
	})
	switch {
	case !lives:
		return nil, cluster.Errorf(cluster.CodeSessionEnded, "session %q ended while waiting for role %q",
			p.Session, p.Role)
	case c.r.Context().Err() != nil && role.Waits(p.Session):
		return role, c.revoked()
	}
	return role, stillQueued(p, err)
}

// followRole returns the role, as this node knows it, once waits is false, or at until. It fails when ctx ends.
func (c *request) followRole(
	ctx context.Context, name string, until time.Time, waits func(*state.View, *state.Role) bool,
) (*state.Role, error) {
	ctx, cancel := stream.WithGraceAfter(ctx, c.s.stopping, 0)
	defer cancel()
	var cursor *state.Cursor
	for {
		view := c.s.reads.View()
		role, known := view.Role(name)
		if !known {
			role = &state.Role{Name: name}
		}
		left := time.Until(until)
		switch {
		case !waits(view, role), left <= 0:
			return role, nil
		case ctx.Err() != nil:
			return role, problem.NoLeader("node %s no longer leads, or is about to stop", c.s.deps.Node.ID)
		}
		if cursor == nil {
			var err error
			cursor, err = c.s.reads.RoleFeed().Cursor(state.RoleKey(name), view.Revision())
			if cluster.IsCode(err, cluster.CodeHistoryCompacted) {
				continue // a backup was restored since the view was taken
			}
			if err != nil {
				return role, err
			}
		}
		turn, done := context.WithTimeout(ctx, min(left, sessionCheckInterval))
		if _, err := cursor.Next(turn, 1); cluster.IsCode(err, cluster.CodeHistoryCompacted) {
			cursor = nil // a restored backup or too many events: continue from now
		}
		done()
	}
}

// lockDelayText explains the lock delay of a role after a restore or a recovery.
const lockDelayText = "a lock delay of %v follows a restore or recovery, because a previous holder may still be active"

// notElectedError refuses a candidate that does not hold the role.
func notElectedError(v *state.View, r *state.Role) *cluster.Error {
	if r.RevokedFrom != "" {
		return cluster.Errorf(cluster.CodeRoleHeld,
			"role %q is vacant: an operator revoked it from session %q, which has neither acknowledged that yet nor ended",
			r.Name, r.RevokedFrom)
	}
	if d := v.LockDelay(r); d > 0 && !r.Held() {
		return cluster.Errorf(cluster.CodeRoleHeld, "role %q is vacant: "+lockDelayText, r.Name, d)
	}
	if !r.Held() {
		return cluster.Errorf(cluster.CodeRoleHeld,
			"role %q is vacant, but this candidate is not next: it is not eligible, or a candidate before it waits out a takeover delay",
			r.Name)
	}
	return cluster.Errorf(cluster.CodeRoleHeld, "role %q is held by %q", r.Name, r.Current.Holder)
}
