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

// campaign serves POST /v1/roles/{role}/campaign. It is idempotent: a holder gets its tenure again, a candidate keeps
// its place.
func campaign(c *request, in apiv1.Campaign) error {
	cmd, err := c.campaignCommand(in)
	if err != nil {
		return err
	}
	wait := time.Duration(in.WaitMS) * time.Millisecond
	ctx, cancel := context.WithTimeout(c.r.Context(), min(wait+campaignGrace, c.remainingBudget(maxCampaignDuration)))
	defer cancel()
	c.extendDeadlines(wait + 2*campaignGrace)
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
	err = c.onLeader(ctx, work)
	for ; c.canRetry(ctx, err, wait); err = c.onLeader(ctx, work) {
	}
	switch {
	case err != nil:
		return err
	case role.Current.Session != in.SessionID:
		return c.heldError(notElectedError(c.s.reads.View(), role), role)
	}
	return c.reply(c.wireRole(c.s.reads.View(), role))
}

// maxCampaignDuration limits a campaign as a whole.
const maxCampaignDuration = apiv1.MaxWaitMS*time.Millisecond + campaignGrace

func (c *request) campaignCommand(in apiv1.Campaign) (state.Command, error) {
	if in.WaitMS < 0 || in.WaitMS > apiv1.MaxWaitMS {
		return state.Command{}, problem.BadRequest("wait_ms: want 0 to %d, got %d", apiv1.MaxWaitMS, in.WaitMS)
	}
	most := state.MaxTakeoverDelay.Milliseconds()
	if in.TakeoverDelayMS < 0 || in.TakeoverDelayMS > most {
		return state.Command{}, problem.BadRequest("takeover_delay_ms: want 0 to %d, got %d", most, in.TakeoverDelayMS)
	}
	cmd := state.Command{Kind: state.KindRoleCampaign, RoleCampaign: &state.RoleCampaign{
		Role: c.param, Session: in.SessionID, Value: in.Value, Wait: in.WaitMS > 0,
		TakeoverDelay: time.Duration(in.TakeoverDelayMS) * time.Millisecond, Ineligible: in.Eligible != nil &&
			!*in.Eligible,
	}}
	if err := cmd.Validate(); err != nil {
		return state.Command{}, err
	}
	return cmd, nil
}

// canRetry reports whether a campaign that found no leader within the queue limit tries again.
func (c *request) canRetry(ctx context.Context, err error, wait time.Duration) bool {
	return cluster.IsCode(err, cluster.CodeNoLeader) && wait > 0 && !c.forwarded && ctx.Err() == nil &&
		!c.waitExpired(ctx) && c.s.stopping.Err() == nil
}

// waitExpired reports whether the wait of a campaign is over: the rest of its time is for the response.
func (c *request) waitExpired(ctx context.Context) bool {
	return !time.Now().Before(c.waitDeadline(ctx))
}

// waitDeadline returns when the wait in the queue ends. The overhead that a forwarding node reserves does not shorten
// it.
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
// the wait is over, the client is gone, or this node loses leadership. In the last case another leader is asked, and
// the candidate keeps its place.
func (c *request) campaignHere(ctx context.Context, cmd state.Command) (*state.Role, error) {
	p := cmd.RoleCampaign
	left := c.s.deps.Sessions.TrackWaiter(p.Role, p.Session)
	leader := c.s.leader.Current() // before it is proposed, so that no change is missed
	result, err := c.s.deps.Proposals.Propose(ctx, cmd)
	switch {
	case err != nil:
		left()
		return nil, err
	case result.Err != nil:
		left()
		return nil, result.Err
	case result.Role.Current.Session == p.Session || !p.Wait:
		left()
		return result.Role, nil
	}
	role, err := c.waitForElection(ctx, p, leader)
	left()
	if err != nil || role.Current.Session == p.Session {
		return role, err
	}
	// The wait is over, or the client is gone.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), campaignGrace)
	defer cancel()
	now, err := c.s.deps.Sessions.Withdraw(ctx, p.Role, p.Session)
	if err != nil || now == nil {
		return role, err
	}
	return now, nil
}

// waitForElection returns the role when the candidate was elected or left the queue, when the wait is over, or when
// the client is gone. It fails if the session has ended or this node can no longer tell.
func (c *request) waitForElection(ctx context.Context, p *state.RoleCampaign, leader *forward.Leader) (*state.Role,
	error,
) {
	until := c.waitDeadline(ctx)
	ctx, cancel := stream.WithGraceAfter(ctx, leader.Changed, 0)
	defer cancel()
	ctx, cancel = stream.WithGraceAfter(ctx, c.s.stopping, 0)
	defer cancel()
	cursor, err := c.s.reads.RoleFeed().Cursor(state.RoleKey(p.Role), c.s.reads.View().Revision())
	if err != nil {
		return nil, err
	}
	for {
		view := c.s.reads.View()
		role, known := view.Role(p.Role)
		if _, lives := view.Session(p.Session); !lives {
			return nil, cluster.Errorf(cluster.CodeSessionEnded, "session %q has ended while it waited for role %q",
				p.Session, p.Role)
		}
		if !known {
			role = &state.Role{Name: p.Role}
		}
		left := time.Until(until)
		if !role.Waits(p.Session) || left <= 0 {
			return role, nil
		}
		turn, done := context.WithTimeout(ctx, min(left, sessionCheckInterval))
		_, err := cursor.Next(turn, 1)
		done()
		switch {
		// a restored backup or too many events: check the state, and continue from now
		case cluster.IsCode(err, cluster.CodeHistoryCompacted):
			if cursor, err = c.s.reads.RoleFeed().Cursor(state.RoleKey(p.Role),
				c.s.reads.View().Revision()); err != nil {
				return nil, err
			}
		case c.r.Context().Err() != nil:
			return role, nil
		case ctx.Err() != nil:
			return nil, problem.NoLeader("node %s leads no more, or is about to stop", c.s.deps.Node.ID)
		}
	}
}

// lockDelayText explains the lock delay of a role after a restore or a recovery.
const lockDelayText = "since the state was replaced it waits, %v in all, for who may still believe to hold it"

// notElectedError refuses a candidate that does not hold the role.
func notElectedError(v *state.View, r *state.Role) *cluster.Error {
	if r.RevokedFrom != "" {
		return cluster.Errorf(cluster.CodeRoleHeld,
			"nobody holds role %q: it was taken from session %q, which has not resigned from it yet, nor ended", r.Name,
			r.RevokedFrom)
	}
	if d := v.LockDelay(r); d > 0 && !r.Held() {
		return cluster.Errorf(cluster.CodeRoleHeld, "nobody holds role %q: "+lockDelayText, r.Name, d)
	}
	if !r.Held() {
		return cluster.Errorf(cluster.CodeRoleHeld,
			"nobody holds role %q, but this candidate may not yet: it is not eligible, or others and their takeover delay come first", r.Name)
	}
	return cluster.Errorf(cluster.CodeRoleHeld, "role %q is held by %q", r.Name, r.Current.Holder)
}
