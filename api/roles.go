package api

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"

	"northstar/api/apiv1"
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
	return c.read(func(v *state.View) error {
		out := apiv1.Roles{Items: []apiv1.Role{}}
		for r := range v.RolesAfter(after) {
			if !r.Held() && !all {
				continue
			}
			if len(out.Items) == limit {
				out.Next = out.Items[limit-1].Role
				break
			}
			out.Items = append(out.Items, c.wireRole(v, r))
		}
		return c.reply(out)
	})
}

// getRole serves GET /v1/roles/{role}. The response, also a 404, has the revision from which a watch continues.
func getRole(c *request) error {
	if err := state.CheckRole(c.param); err != nil {
		return err
	}
	return c.read(func(v *state.View) error {
		c.setRevision(v)
		r, ok := v.Role(c.param)
		if !ok {
			r = &state.Role{Name: c.param}
		}
		if !r.Held() {
			return vacantError(v, r)
		}
		out := c.wireRole(v, r)
		out.Candidates = wireCandidates(r)
		return c.reply(out)
	})
}

func vacantError(v *state.View, r *state.Role) *cluster.Error {
	e := problem.Status(http.StatusNotFound, "role: nobody holds %q", r.Name)
	if len(r.Queue) > 0 {
		e.Detail += fmt.Sprintf(", %d candidates wait for it", len(r.Queue))
	}
	if r.RevokedFrom != "" {
		e.Detail += fmt.Sprintf("; it was taken from session %q, which has not resigned from it yet", r.RevokedFrom)
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
func resignRole(c *request) error {
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
		AcquiredAt: timePtr(t.AcquiredAt),
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
