package api

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"northstar/api/apiv1"
	"northstar/api/forward"
	"northstar/api/problem"
	"northstar/api/stream"
	"northstar/cluster"
	"northstar/state"
)

// listRoles serves GET /v1/roles: the held roles, with ?all also the vacant ones.
func listRoles(c *request) error {
	limit, after, err := c.page()
	if err != nil {
		return err
	}
	all, err := c.queryBool("all")
	if err != nil {
		return err
	}
	return c.read(func(*state.View) error {
		return replyItems(c, listing[*state.Role]{
			after: (*state.View).RolesAfter,
			key:   func(r *state.Role) string { return r.Name },
			want:  func(r *state.Role) bool { return all || r.Held() },
		}, limit, after, c.wireRole)
	})
}

// getRole serves GET /v1/roles/{role}. The response, also a 404, has the revision from which a watch continues. With
// ?all a vacant role is no 404, so that its queue can be seen.
func getRole(c *request) error {
	if err := state.CheckRole(c.param); err != nil {
		return err
	}
	all, err := c.queryBool("all")
	if err != nil {
		return err
	}
	return c.read(func(v *state.View) error {
		c.setRevision(v)
		r, ok := v.Role(c.param)
		if !ok {
			r = &state.Role{Name: c.param}
		}
		if !r.Held() && (!all || !ok) {
			return vacantError(v, r)
		}
		out := c.wireRole(v, r)
		out.Candidates = wireCandidates(r)
		if !r.Held() {
			out.Vacant = strings.TrimPrefix(vacantError(v, r).Detail, "role: ")
		}
		return c.reply(out)
	})
}

func vacantError(v *state.View, r *state.Role) *cluster.Error {
	e := problem.Status(http.StatusNotFound, "role: %q is vacant", r.Name)
	if len(r.Queue) > 0 {
		e.Detail += fmt.Sprintf("; candidates that wait for it: %d", len(r.Queue))
	}
	if r.RevokedFrom != "" {
		e.Detail += fmt.Sprintf("; an operator revoked it from session %q, which has not acknowledged that yet", r.RevokedFrom)
	}
	if d := v.LockDelay(r); d > 0 {
		e.Detail += fmt.Sprintf("; "+lockDelayText, d)
	}
	return e
}

func (c *request) setRevision(v *state.View) {
	c.Header()["X-Northstar-Revision"] = []string{strconv.FormatUint(v.Revision(), 10)}
}

func getRoleHistory(c *request) error {
	if err := state.CheckRole(c.param); err != nil {
		return err
	}
	return c.read(func(v *state.View) error {
		r, ok := v.Role(c.param)
		if !ok {
			return problem.Status(http.StatusNotFound, "role: there is no record of %q", c.param)
		}
		out := apiv1.RoleHistory{Items: []apiv1.Tenure{}, Elections: r.Elections}
		if r.Held() {
			out.Items = append(out.Items, wireTenure(r.Current))
		}
		for _, t := range slices.Backward(r.History) {
			out.Items = append(out.Items, wireTenure(t))
		}
		return c.reply(out)
	})
}

func watchRole(c *request) error {
	if err := state.CheckRole(c.param); err != nil {
		return err
	}
	return c.follow(c.s.reads.RoleFeed(), state.RoleKey(c.param), encodeRoleEvent)
}

func encodeRoleEvent(e *stream.Events, ch *state.Change) error {
	ev, err := state.DecodeRoleEvent(ch.Value)
	if err != nil {
		return cluster.Errorf(cluster.CodeInternal, "an event of a role cannot be read: %w", err)
	}
	t := ev.Tenure
	wire := apiv1.RoleEvent{
		Role: ev.Role, Holder: t.Holder, SessionID: t.Session, Token: t.Token, Value: t.Value,
		AcquiredAt: unixNano(t.AcquiredAt), EndedAt: timePtr(t.EndedAt), Cause: string(t.Cause), Revision: ch.Revision,
	}
	data, err := json.Marshal(wire)
	if err != nil {
		return err
	}
	name := apiv1.EventVacated
	if ev.Elected {
		name = apiv1.EventElected
	}
	return e.Event(strconv.FormatUint(ch.Revision, 10), name, data)
}

// resignRole serves DELETE /v1/roles/{role}?session_id=, with &token= for only that tenure.
func resignRole(c *request, _ emptyBody) error {
	if !c.query.Has("session_id") {
		return problem.BadRequest("session_id: must be given")
	}
	session := c.query.Get("session_id")
	token, err := c.queryInt("token", 0, 1, maxToken)
	if err != nil {
		return err
	}
	cmd := state.Command{Kind: state.KindRoleRelease, RoleRelease: &state.RoleRelease{
		Role: c.param, Session: session,
		Token: uint64(token),
	}}
	r, err := c.proposeValid(cmd, false)
	if err != nil {
		return err
	}
	now := r.Role.Current
	return c.reply(apiv1.RoleResult{
		Role: c.param, Message: fmt.Sprintf("session %s has resigned from role %s", session, c.param),
		Holder: now.Holder, SessionID: now.Session, Token: now.Token,
	})
}

// Tokens are integers that JSON can represent exactly.
const maxToken = 1<<53 - 1

type roleError struct {
	refusal *cluster.Error
	role    apiv1.Role
}

func (e *roleError) Error() string { return e.refusal.Error() }
func (e *roleError) Unwrap() error { return e.refusal }

type roleProblem struct {
	apiv1.Problem
	apiv1.Role
}

func (c *request) heldError(err *cluster.Error, r *state.Role) error {
	return &roleError{err, c.wireRole(c.s.reads.View(), r)}
}

func (c *request) wireRole(v *state.View, r *state.Role) apiv1.Role {
	t := r.Current
	out := apiv1.Role{
		Role: r.Name, Holder: t.Holder, SessionID: t.Session, Token: t.Token, Value: t.Value,
		AcquiredAt: timePtr(t.AcquiredAt), Required: r.Required,
	}
	if s, lives := v.Session(t.Session); lives && !c.stale() {
		out.LeaseUntil = new(time.Now().Add(c.s.deps.Sessions.Remaining(s)).UTC())
	}
	return out
}

func wireCandidates(r *state.Role) []apiv1.RoleCandidate {
	out := make([]apiv1.RoleCandidate, len(r.Queue))
	for i, q := range r.Queue {
		out[i] = apiv1.RoleCandidate{
			Name: q.Name, SessionID: q.Session, Eligible: !q.Ineligible,
			TakeoverDelayMS: q.TakeoverDelay.Milliseconds(),
		}
	}
	return out
}

func wireTenure(t state.Tenure) apiv1.Tenure {
	return apiv1.Tenure{
		Holder: t.Holder, SessionID: t.Session, Token: t.Token,
		AcquiredAt: unixNano(t.AcquiredAt), EndedAt: timePtr(t.EndedAt), Cause: string(t.Cause),
	}
}

// timePtr returns nil for 0.
func timePtr(nano int64) *time.Time {
	if nano == 0 {
		return nil
	}
	return new(unixNano(nano))
}

func transferRole(c *request, in apiv1.RoleTransfer) error {
	if in.ToSessionID == "" {
		return problem.BadRequest("to_session_id: must be given")
	}
	return c.changeRole(roleMoveParams{
		action: "role_transfer", to: in.ToSessionID, reason: in.Reason,
		plan: planParams{in.DryRun, in.PlanID},
	})
}

func evictRole(c *request, in apiv1.RoleEvict) error {
	return c.changeRole(roleMoveParams{action: "role_evict", reason: in.Reason, plan: planParams{in.DryRun, in.PlanID}})
}

type roleMoveParams struct {
	action string
	to     string // session; "": next candidate
	reason string
	plan   planParams
}

func (c *request) changeRole(ch roleMoveParams) error {
	if err := checkReason(ch.reason); err != nil {
		return err
	}
	cmd := state.Command{Kind: state.KindRoleTransfer, RoleTransfer: &state.RoleTransfer{
		Role:      c.param,
		ToSession: ch.to, AwaitPreviousHolder: true,
	}}
	if err := cmd.Validate(); err != nil {
		return err
	}
	ctx, cancel := c.contextWithLimit(adminTimeout)
	defer cancel()
	var out apiv1.RoleChange
	err := c.onLeader(ctx, forward.Request{Write: true, Local: func(ctx context.Context) error {
		// The plan names the holder, which must be current.
		if err := c.s.reads.ReadBarrier(ctx); err != nil {
			return err
		}
		before, ok := c.s.reads.View().Role(c.param)
		if !ok {
			before = &state.Role{Name: c.param}
		}
		if err := c.verifyPlan(ch.plan, c.planRole(ch, before)); err != nil {
			return err
		}
		if ch.plan.id != "" {
			cmd.RoleTransfer.IfStateRevision = before.StateRevision
		}
		result, err := c.proposeHere(ctx, cmd)
		if err != nil {
			return err
		}
		if result.Err != nil {
			return result.Err
		}
		out = c.roleMoveResult(before, c.waitForNextHolder(ctx, c.param))
		return nil
	}})
	if err != nil {
		return err
	}
	return c.reply(out)
}

// waitForNextHolder returns the role when the next candidate holds it, when no candidate can be elected, or when the
// time to wait for the previous holder is over. In all cases the call has succeeded.
func (c *request) waitForNextHolder(ctx context.Context, role string) *state.Role {
	r, _ := c.followRole(ctx, role, time.Now().Add(handoverTimeout), waitsForPreviousHolder)
	return r
}

// handoverTimeout is how long the response to a role move waits for the previous holder. A holder that listens
// releases within milliseconds, another one expires after its TTL.
const handoverTimeout = 20 * time.Second

// waitsForPreviousHolder reports whether the next candidate waits for the previous holder.
func waitsForPreviousHolder(v *state.View, r *state.Role) bool {
	_, any := r.Next()
	return any && !r.Held() && (r.RevokedFrom != "" || v.LockDelay(r) > 0)
}

func (c *request) planRole(ch roleMoveParams, r *state.Role) cluster.Plan {
	st := c.s.reads.Status()
	p := cluster.Plan{
		Action: ch.action, Term: st.Term, Membership: cluster.MembershipDigest(st.Servers, c.s.reads.View().Members()),
		Leader: st.LeaderID, Risk: cluster.RiskLow,
	}
	next, _ := r.Next()
	p.Params = fmt.Sprintf("%s %d %s %s", r.Name, r.StateRevision, ch.to, next.Session)
	if ch.to != "" {
		var ok bool
		if next, ok = candidate(r, ch.to); !ok {
			p.Refusal = problem.Status(http.StatusNotFound,
				"to_session_id: session %q is no eligible candidate for role %q", ch.to, r.Name)
		}
	} else if !r.Held() {
		p.Refusal = vacantError(c.s.reads.View(), r)
	}
	p.Summary = fmt.Sprintf("role %s goes from %s to %s", r.Name, holderName(r.Current.Holder), holderName(next.Name))
	if s, lives := c.s.reads.View().Session(r.Current.Session); lives && next.Session != s.ID {
		p.Affected = cluster.Affected{Roles: 1, Sessions: 1}
		p.Warnings = []string{fmt.Sprintf(
			"the fencing token becomes invalid immediately, and the next candidate is elected when %q has released the role or its session has expired, %v after its last renewal (it is not renewed until the release)",
			r.Current.Holder, s.TTL)}
	}
	return p
}

// candidate returns the candidate that would get the role; the holder counts as a candidate.
func candidate(r *state.Role, session string) (state.Candidate, bool) {
	if r.Held() && r.Current.Session == session {
		return state.Candidate{Session: session, Name: r.Current.Holder}, true
	}
	for _, q := range r.Queue {
		if q.Session == session && !q.Ineligible {
			return q, true
		}
	}
	return state.Candidate{}, false
}

func (c *request) roleMoveResult(before, after *state.Role) apiv1.RoleChange {
	old, now := before.Current, after.Current
	out := apiv1.RoleChange{
		Role: after.Name, OldHolder: old.Holder, OldSessionID: old.Session,
		NewHolder: now.Holder, NewSessionID: now.Session, Token: now.Token,
		Message: fmt.Sprintf("role %s went from %s to %s", after.Name, holderName(old.Holder), holderName(now.Holder)),
	}
	switch next, _ := after.Next(); {
	case !waitsForPreviousHolder(c.s.reads.View(), after):
	case after.RevokedFrom == "":
		out.Message = fmt.Sprintf("role %s goes to %s; "+lockDelayText, after.Name, holderName(next.Name),
			c.s.reads.View().LockDelay(after))
	default:
		out.Message = fmt.Sprintf(
			"role %s was revoked from %s; %s is elected when the previous holder has released the role or its session has ended",
			after.Name, holderName(old.Holder), holderName(next.Name))
	}
	return out
}

func holderName(name string) string {
	if name == "" {
		return "no session"
	}
	return fmt.Sprintf("%q", name)
}
