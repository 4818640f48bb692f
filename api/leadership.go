package api

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"northstar/api/apiv1"
	"northstar/cluster"
)

// aftermath is how long a leader may look on, after a hand-over that went wrong,
// until it can say who leads.
const aftermath = 2 * time.Second

// postTransfer serves POST /admin/transfer.
func postTransfer(c *call) error {
	var in apiv1.Transfer
	raw, err := c.decodeKeep(&in)
	if err != nil {
		return err
	}
	timeout := c.s.deps.TransferTimeout.Milliseconds()
	if in.TimeoutMS != nil {
		timeout = *in.TimeoutMS
	}
	if timeout < 1 || timeout > apiv1.MaxTimeoutMS {
		return badRequest("timeout_ms: want 1 to %d, got %d", apiv1.MaxTimeoutMS, timeout)
	}
	order, err := c.order(cluster.ActionTransfer, in.TargetLeaderID, in.PlanID, in.Reason)
	if err != nil {
		return err
	}
	limit := time.Duration(timeout) * time.Millisecond
	ctx, cancel := c.withAftermath(limit)
	defer cancel()
	err = c.atLeader(ctx, leaderWork{write: true, body: raw, late: aftermath, local: func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		plan, err := c.s.deps.Leadership.Plan(ctx, order)
		if err != nil {
			return err
		}
		return c.carry(ctx, order, planning{in.DryRun, in.PlanID}, plan)
	}})
	if err == errAnswered {
		return nil
	}
	return err
}

// withAftermath bounds a call that moves leadership. A node that has sent it on
// waits for longer than the work may take: what came of it is known only then.
func (c *call) withAftermath(limit time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(c.r.Context(), c.left(limit+aftermath))
}

// postFailover serves POST /admin/failover.
func postFailover(c *call) error {
	var in apiv1.Failover
	raw, err := c.decodeKeep(&in)
	if err != nil {
		return err
	}
	order, err := c.order(cluster.ActionFailover, in.TargetLeaderID, in.PlanID, in.Reason)
	if err != nil {
		return err
	}
	return c.lead(order, planning{in.DryRun, in.PlanID}, raw)
}

// postEmergency serves POST /admin/failover/emergency.
func postEmergency(c *call) error {
	var in apiv1.Emergency
	raw, err := c.decodeKeep(&in)
	if err != nil {
		return err
	}
	order, err := c.order(cluster.ActionEmergency, in.TargetLeaderID, in.PlanID, in.Reason)
	switch {
	case err != nil:
		return err
	case order.Target == "":
		return badRequest("target_leader_id: required")
	case !in.DryRun && !in.Force:
		return badRequest("force: must be true: an emergency passes over a leader that may live")
	case !in.DryRun && in.Reason == "":
		return badRequest("reason: required")
	}
	return c.lead(order, planning{in.DryRun, in.PlanID}, raw)
}

// order reads what the calls that move leadership have in common.
func (c *call) order(action, target, planID, reason string) (cluster.LeadershipRequest, error) {
	if len(reason) > maxReason {
		return cluster.LeadershipRequest{}, badRequest("reason: want at most %d bytes, got %d", maxReason, len(reason))
	}
	id, err := plannedTarget("target_leader_id", target, planID)
	return cluster.LeadershipRequest{Action: action, Target: id, Reason: reason, Operator: c.who.name, Forwarded: c.hop}, err
}

// carry runs a plan that is for this node, or answers that it would. A nil error
// means that it was answered.
func (c *call) carry(ctx context.Context, o cluster.LeadershipRequest, g planning, p cluster.Plan) error {
	if answered, err := c.settle(g, p); answered || err != nil {
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

// pauseBetween is how long a node waits that was sent on to another which turned
// out not to be the one.
const pauseBetween = 10 * time.Millisecond

// lead has an order carried out by whoever its plan says: the leader, or the
// target. Unlike atLeader it needs nobody to lead.
func (c *call) lead(o cluster.LeadershipRequest, g planning, raw []byte) error {
	ctx, cancel := c.withAftermath(c.s.deps.TransferTimeout)
	defer cancel()
	until := time.Now().Add(2 * c.s.deps.TimeoutMax)
	for {
		plan, err := c.s.deps.Leadership.Plan(ctx, o)
		if err == nil {
			err = c.leadBy(ctx, o, g, plan, raw)
		}
		if !cluster.IsCode(err, cluster.CodeNoLeader) || c.hop {
			return err
		}
		if time.Now().After(until) {
			failed := cluster.Errorf(cluster.CodeTransferFailed, "nothing was done: %w", err)
			return failed
		}
		select {
		case <-time.After(pauseBetween):
		case <-ctx.Done():
			return err
		}
	}
}

// leadBy has a plan carried out here or at its actor. CodeNoLeader means that
// nothing was done, and that a new plan may fare better.
func (c *call) leadBy(ctx context.Context, o cluster.LeadershipRequest, g planning, p cluster.Plan, raw []byte) error {
	self := c.s.deps.Facts.ID
	if p.Executor == self || p.Refusal != nil {
		ctx, cancel := context.WithTimeout(ctx, c.s.deps.TransferTimeout)
		defer cancel()
		return c.carry(ctx, o, g, p)
	}
	if p.Method == cluster.MethodElection {
		// The target only has to stand: what there is to check is checked here.
		if answered, err := c.settle(g, p); answered || err != nil {
			return err
		}
		var err error
		if raw, err = orderBody(o, p); err != nil {
			return err
		}
	}
	addr := c.s.httpAddress(p.Executor)
	if addr == "" {
		return noLeader("the HTTP address of node %s is not known", p.Executor)
	}
	v := newLeaderView(p.Executor, p.Term)
	defer v.end()
	out, err := c.forwardTo(ctx, v, addr, leaderWork{write: true, body: raw})
	if out == hopAnswered {
		return nil
	}
	return err
}

// orderBody is the call as the target of an election gets it.
func orderBody(o cluster.LeadershipRequest, p cluster.Plan) ([]byte, error) {
	if o.Action == cluster.ActionEmergency {
		return json.Marshal(apiv1.Emergency{TargetLeaderID: string(p.Target), Force: true, Reason: o.Reason})
	}
	return json.Marshal(apiv1.Failover{TargetLeaderID: string(p.Target), Reason: o.Reason})
}
