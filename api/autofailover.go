package api

import (
	"context"
	"fmt"
	"time"

	"northstar/api/apiv1"
	"northstar/api/forward"
	"northstar/api/problem"
	"northstar/cluster"
	"northstar/state"
)

const (
	maxPause  = 30 * 24 * time.Hour // ttl_ms of a pause
	maxReason = 1024                // bytes of a reason
)

// getAutoFailover serves GET /admin/auto-failover.
func getAutoFailover(c *request) error { return c.reply(c.s.autoFailover(time.Now())) }

// autoFailover returns the setting that this node has applied, evaluated at its own clock.
func (s *Server) autoFailover(now time.Time) apiv1.AutoFailoverState {
	view := s.reads.View()
	set := view.Settings()
	out := apiv1.AutoFailoverState{Enabled: view.AutoFailover(now), Reason: set.Reason, Operator: set.Operator}
	if !out.Enabled && set.PausedUntil != 0 {
		until := unixNano(set.PausedUntil)
		out.PausedUntil = &until
	}
	return out
}

// postAutoFailover serves POST /admin/auto-failover.
func postAutoFailover(c *request, in apiv1.AutoFailover) error {
	ttl, err := checkAutoFailover(in)
	if err != nil {
		return err
	}
	ctx, cancel := c.contextWithLimit(apiv1.DefaultTimeoutMS * time.Millisecond)
	defer cancel()
	err = c.onLeader(ctx, forward.Request{Write: true, Local: func(ctx context.Context) error {
		if err := c.s.reads.ReadBarrier(ctx); err != nil {
			return err
		}
		err := c.verifyPlan(planParams{in.DryRun, in.PlanID}, c.planAutoFailover(*in.Enabled, ttl))
		if err != nil {
			return err
		}
		change := &state.SettingsChange{AutoFailover: *in.Enabled, Reason: in.Reason, Operator: c.caller.name}
		if ttl > 0 {
			change.PausedUntil = time.Now().Add(ttl).UnixNano()
		}
		result, err := c.proposeHere(ctx, state.Command{Kind: state.KindSettings, Settings: change})
		switch {
		case err != nil:
			return err
		case result.Err != nil:
			return result.Err
		}
		c.s.deps.Proposals.AwaitAppliedEverywhere(ctx)
		return nil
	}})
	if err != nil {
		return err
	}
	return c.reply(c.s.autoFailover(time.Now()))
}

// planAutoFailover returns what a change of the setting would do.
func (c *request) planAutoFailover(enabled bool, ttl time.Duration) cluster.Plan {
	st, view := c.s.reads.Status(), c.s.reads.View()
	p := cluster.Plan{
		Action: "auto_failover", Term: st.Term, Membership: cluster.MembershipDigest(st.Servers, view.Members()),
		Leader: st.LeaderID,
		Params: fmt.Sprintf("%t %d", enabled, ttl), Risk: cluster.RiskLow,
	}
	switch {
	case enabled:
		p.Summary = "a failed leader is replaced automatically"
	case ttl > 0:
		p.Summary = fmt.Sprintf("automatic failover is paused for %v", ttl)
	default:
		p.Summary = "automatic failover is paused until it is resumed"
	}
	if !enabled {
		p.Risk = cluster.RiskMedium
		p.Warnings = []string{"a leader that fails meanwhile is replaced by an operator's order only"}
	}
	return p
}

func checkAutoFailover(in apiv1.AutoFailover) (ttl time.Duration, err error) {
	switch {
	case in.Enabled == nil:
		return 0, problem.BadRequest("enabled: required, true or false")
	case len(in.Reason) > maxReason:
		return 0, problem.BadRequest("reason: want at most %d bytes, got %d", maxReason, len(in.Reason))
	case in.TTLMS == nil:
		return 0, nil
	case *in.Enabled:
		return 0, problem.BadRequest("ttl_ms: only a pause has one")
	case *in.TTLMS < 1 || *in.TTLMS > maxPause.Milliseconds():
		return 0, problem.BadRequest("ttl_ms: want 1 to %d, got %d", maxPause.Milliseconds(), *in.TTLMS)
	}
	return time.Duration(*in.TTLMS) * time.Millisecond, nil
}
