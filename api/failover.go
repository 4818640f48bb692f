package api

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"northstar/api/apiv1"
	"northstar/api/forward"
	"northstar/api/problem"
	"northstar/cluster"
	"northstar/state"
)

// postTransferWait is how long a leader may wait after a failed transfer until it knows which node leads.
const postTransferWait = 2 * time.Second

func postTransfer(c *request, in apiv1.Transfer) error {
	timeout := c.s.deps.TransferTimeout.Milliseconds()
	if in.TimeoutMS != nil {
		timeout = *in.TimeoutMS
	}
	if timeout < 1 || timeout > apiv1.MaxTimeoutMS {
		return problem.BadRequest("timeout_ms: must be 1 to %d (got %d)", apiv1.MaxTimeoutMS, timeout)
	}
	req, err := c.leadershipRequest(cluster.ActionTransfer, in.TargetLeaderID, in.PlanID, in.Reason)
	if err != nil {
		return err
	}
	req.Zone = in.TargetZone
	limit := time.Duration(timeout) * time.Millisecond
	ctx, cancel := c.withPostTransferWait(limit)
	defer cancel()
	return c.onLeader(ctx, forward.Request{
		Write: true, OldLeaderGrace: postTransferWait,
		Local: func(ctx context.Context) error {
			ctx, cancel := context.WithTimeout(ctx, limit)
			defer cancel()
			plan, err := c.s.deps.Leadership.Plan(ctx, req)
			if err != nil {
				return err
			}
			return c.execute(ctx, req, planParams{in.DryRun, in.PlanID}, plan)
		},
	})
}

// withPostTransferWait sets the timeout of a call that moves leadership. A forwarding node waits longer than the work
// may take, because the result is known only then.
func (c *request) withPostTransferWait(limit time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(c.r.Context(), c.remainingBudget(limit+postTransferWait))
}

func postFailover(c *request, in apiv1.Failover) error {
	req, err := c.leadershipRequest(cluster.ActionFailover, in.TargetLeaderID, in.PlanID, in.Reason)
	if err != nil {
		return err
	}
	return c.runLeadershipRequest(req, planParams{in.DryRun, in.PlanID})
}

func postEmergency(c *request, in apiv1.Emergency) error {
	req, err := c.leadershipRequest(cluster.ActionEmergency, in.TargetLeaderID, in.PlanID, in.Reason)
	switch {
	case err != nil:
		return err
	case req.Target == "":
		return problem.BadRequest("target_leader_id: required")
	case !in.DryRun && !in.Force:
		return problem.BadRequest(
			"force: must be true: an emergency failover deposes a leader that may still be running")
	case !in.DryRun && in.Reason == "":
		return problem.BadRequest("reason: required")
	}
	return c.runLeadershipRequest(req, planParams{in.DryRun, in.PlanID})
}

// leadershipRequest reads the common parameters of the calls that move leadership.
func (c *request) leadershipRequest(action, target, planID, reason string) (cluster.LeadershipRequest, error) {
	if err := checkReason(reason); err != nil {
		return cluster.LeadershipRequest{}, err
	}
	id, err := plannedTarget("target_leader_id", target, planID)
	return cluster.LeadershipRequest{
		Action: action, Target: id, Reason: reason, Operator: c.caller.name,
		Forwarded: c.forwarded,
	}, err
}

// execute runs a plan on this node and answers, or answers a dry run.
func (c *request) execute(ctx context.Context, o cluster.LeadershipRequest, g planParams, p cluster.Plan) error {
	if err := c.verifyPlan(g, p); err != nil {
		return err
	}
	out, err := c.s.deps.Leadership.Execute(ctx, o, p)
	if err != nil {
		return err
	}
	return c.reply(apiv1.TransferResult{
		Success:     true,
		Message:     fmt.Sprintf("node %s leads in term %d", out.NewLeader, out.Term),
		OldLeaderID: string(out.OldLeader),
		NewLeaderID: string(out.NewLeader),
		Term:        out.Term,
		DurationMS:  ceilMS(out.Duration),
	})
}

// planRetryDelay is how long a node waits before a new plan if the node of its plan refused to execute it.
const planRetryDelay = 10 * time.Millisecond

// runLeadershipRequest has a request executed by the actor of its plan. Unlike onLeader it works without a leader.
func (c *request) runLeadershipRequest(o cluster.LeadershipRequest, g planParams) error {
	ctx, cancel := c.withPostTransferWait(c.s.deps.TransferTimeout)
	defer cancel()
	until := time.Now().Add(2 * c.s.deps.TimeoutMax)
	for {
		plan, err := c.s.deps.Leadership.Plan(ctx, o)
		if err == nil {
			err = c.sendLeadershipRequest(ctx, o, g, plan)
		}
		if !cluster.IsCode(err, cluster.CodeNoLeader) || c.forwarded {
			return err
		}
		if time.Now().After(until) {
			return cluster.Errorf(cluster.CodeTransferFailed, "nothing was done: %w", err)
		}
		select {
		case <-time.After(planRetryDelay):
		case <-ctx.Done():
			return err
		}
	}
}

// sendLeadershipRequest has a plan executed here or by its actor. CodeNoLeader: nothing was done, a new plan may be.
func (c *request) sendLeadershipRequest(ctx context.Context, o cluster.LeadershipRequest, g planParams,
	p cluster.Plan,
) error {
	self, body := c.s.deps.Node.ID, c.body
	if p.Executor == self || p.Refusal != nil {
		ctx, cancel := context.WithTimeout(ctx, c.s.deps.TransferTimeout)
		defer cancel()
		return c.execute(ctx, o, g, p)
	}
	if p.Method == cluster.MethodElection {
		// The target only starts an election: this node makes the checks.
		if err := c.verifyPlan(g, p); err != nil {
			return err
		}
		var req any = apiv1.Failover{TargetLeaderID: string(p.Target), Reason: o.Reason}
		if o.Action == cluster.ActionEmergency {
			req = apiv1.Emergency{TargetLeaderID: string(p.Target), Force: true, Reason: o.Reason}
		}
		var err error
		if body, err = json.Marshal(req); err != nil {
			return err
		}
	}
	addr := c.s.httpAddress(p.Executor)
	if addr == "" {
		return problem.NoLeader("the HTTP address of node %s is not known", p.Executor)
	}
	return c.sendTo(ctx, p.Executor, addr, body)
}

const (
	maxPause  = 30 * 24 * time.Hour // ttl_ms of a pause
	maxReason = 1024                // bytes of a reason
)

func checkReason(reason string) error {
	if len(reason) > maxReason {
		return problem.BadRequest("reason: must be at most %d bytes (got %d)", maxReason, len(reason))
	}
	return nil
}

func getAutoFailover(c *request) error {
	if err := c.s.reads.Status().CheckCaughtUp(); err != nil {
		return err
	}
	return c.reply(c.s.autoFailover(time.Now()))
}

// autoFailover returns the setting that this node has applied, evaluated at its own clock.
func (s *Server) autoFailover(now time.Time) apiv1.AutoFailoverState {
	view := s.reads.View()
	set := view.Settings()
	out := apiv1.AutoFailoverState{Enabled: view.AutoFailover(now), Reason: set.Reason, Operator: set.Operator}
	if !out.Enabled {
		out.PausedUntil = timePtr(set.PausedUntil)
	}
	return out
}

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
		p.Warnings = []string{"a leader that fails during the pause is replaced only at an operator's request"}
	}
	return p
}

func checkAutoFailover(in apiv1.AutoFailover) (ttl time.Duration, err error) {
	switch {
	case in.Enabled == nil:
		return 0, problem.BadRequest("enabled: required, true or false")
	case len(in.Reason) > maxReason:
		return 0, checkReason(in.Reason)
	case in.TTLMS == nil:
		return 0, nil
	case *in.Enabled:
		return 0, problem.BadRequest("ttl_ms: only a pause has one")
	case *in.TTLMS < 1 || *in.TTLMS > maxPause.Milliseconds():
		return 0, problem.BadRequest("ttl_ms: must be 1 to %d (got %d)", maxPause.Milliseconds(), *in.TTLMS)
	}
	return time.Duration(*in.TTLMS) * time.Millisecond, nil
}
