package api

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"northstar/api/apiv1"
	"northstar/api/forward"
	"northstar/api/problem"
	"northstar/cluster"
	"northstar/state"
)

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
	if len(ch.reason) > maxReason {
		return problem.BadRequest("reason: want at most %d bytes, got %d", maxReason, len(ch.reason))
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
		Leader: st.LeaderID,
		Params: fmt.Sprintf("%s %d %s", r.Name, r.StateRevision, ch.to), Risk: cluster.RiskLow,
	}
	next, _ := r.Next()
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
			"its token is refused at once, and nobody is elected until %q has resigned from it or its session has ended, which it does %v after its last renewal: it is not renewed until then", r.Current.Holder, s.TTL)}
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
			"role %s was taken from %s; %s is elected when that has resigned from it or its session has ended",
			after.Name, holderName(old.Holder), holderName(next.Name))
	}
	return out
}

func holderName(name string) string {
	if name == "" {
		return "nobody"
	}
	return fmt.Sprintf("%q", name)
}
