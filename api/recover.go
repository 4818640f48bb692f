package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"northstar/api/apiv1"
	"northstar/api/problem"
	"northstar/cluster"
)

// Recovery recovers a lost quorum. Methods may be called by any goroutine; their errors are *cluster.Error.
type Recovery interface {
	// PlanRecovery asks the other members whether the quorum may be recovered this way, and by which node. It needs
	// no leader. With an error the plan is incomplete.
	PlanRecovery(ctx context.Context, o cluster.RecoveryRequest) (cluster.RecoveryPlan, error)
	// Recover makes this node the only voter of a new generation.
	Recover(ctx context.Context, o cluster.RecoveryRequest) (cluster.Generation, error)
	// ResumeRecovery returns the recovery that a repeated request completes, if any: its plan, and the generation.
	ResumeRecovery(o cluster.RecoveryRequest) (plan cluster.RecoveryPlan, g cluster.Generation, ok bool)
	// SetAside archives the data of this node at its next start. The node then joins the generation of leader.
	SetAside(ctx context.Context, clusterID string, leader cluster.NodeID, g cluster.Generation) error
}

// postRecover asks the other survivors; the one with the most up-to-date log executes the recovery.
func postRecover(c *request, in apiv1.Recover) error {
	req, err := c.recoveryRequest(in)
	if err != nil {
		return err
	}
	ctx, cancel := c.contextWithLimit(apiv1.MaxTimeoutMS * time.Millisecond)
	defer cancel()
	if in.Follow != nil {
		return c.followRecovery(ctx, in)
	}
	if resumed, g, ok := c.s.deps.Recovery.ResumeRecovery(req); ok {
		return c.resumeRecovery(ctx, in, resumed, g)
	}
	plan, err := c.s.deps.Recovery.PlanRecovery(ctx, req)
	var refusal *cluster.Error
	if err != nil && !errors.As(err, &refusal) {
		return err
	}
	plans := planParams{in.DryRun, in.PlanID}
	if c.forwarded {
		plans.id = "" // the node that received the call has verified the plan
	}
	st := c.s.reads.Status()
	membership := cluster.MembershipDigest(st.Servers, c.s.reads.View().Members())
	if err := c.verifyPlan(plans, plan.Plan(st.Term, membership, refusal)); err != nil {
		return err
	}
	if plan.Chosen != c.s.deps.Node.ID {
		return c.recoverAt(ctx, plan.Chosen)
	}
	generation, err := c.s.deps.Recovery.Recover(ctx, req)
	if err != nil {
		return err
	}
	return c.reply(c.recovered(ctx, in, plan, generation))
}

// resumeRecovery completes a recovery. The recovered node knows which survivors are missing, so it makes the plan, too.
func (c *request) resumeRecovery(ctx context.Context, in apiv1.Recover, resumed cluster.RecoveryPlan,
	g cluster.Generation,
) error {
	if resumed.Chosen != c.s.deps.Node.ID {
		return c.recoverAt(ctx, resumed.Chosen)
	}
	st := c.s.reads.Status()
	plan := resumed.Plan(st.Term, cluster.MembershipDigest(st.Servers, c.s.reads.View().Members()), nil)
	plan.Candidates, plan.Warnings, plan.Risk = nil, nil, cluster.RiskLow
	plan.Summary = fmt.Sprintf("node %s was recovered already, to generation %d: it tells the survivors again that have "+
		"not come back", resumed.Chosen, g.Number)
	if err := c.verifyPlan(planParams{in.DryRun, in.PlanID}, plan); err != nil {
		return err
	}
	return c.reply(c.recovered(ctx, in, resumed, g))
}

// recoveryRequest makes the checks that need no other node.
func (c *request) recoveryRequest(in apiv1.Recover) (cluster.RecoveryRequest, error) {
	req := cluster.RecoveryRequest{Confirm: in.Confirm, Operator: c.caller.name, Reason: in.Reason}
	switch {
	case in.Reason == "" && !in.DryRun:
		return req, problem.BadRequest("reason: required")
	case len(in.Reason) > maxReason:
		return req, checkReason(in.Reason)
	case !in.Force && !in.DryRun:
		return req, problem.BadRequest("force: must be true: what the survivors never received is lost")
	case in.Follow != nil && (in.DryRun || in.PlanID != ""):
		return req, problem.BadRequest("follow: cannot be combined with dry_run or plan_id")
	}
	for _, s := range in.Survivors {
		id, err := cluster.ParseNodeID(s)
		if err != nil {
			return req, problem.BadRequest("survivors: %w", err)
		}
		req.Survivors = append(req.Survivors, id)
	}
	return req, nil
}

// recoverAt has another node recover, and copies its response.
func (c *request) recoverAt(ctx context.Context, id cluster.NodeID) error {
	addr := c.s.httpAddress(id)
	switch {
	case c.forwarded:
		return cluster.Errorf(cluster.CodeTermStale,
			"node %s finds the most up-to-date log on node %s, and the node that forwarded this request did not: try again",
			c.s.deps.Node.ID, id)
	case addr == "":
		return problem.BadRequest(
			"survivors: node %s has the most up-to-date log, but its HTTP address is unknown: call it directly", id)
	}
	return c.sendTo(ctx, id, addr, c.body)
}

// followRecovery archives this node's data.
func (c *request) followRecovery(ctx context.Context, in apiv1.Recover) error {
	leader, err := cluster.ParseNodeID(in.Follow.LeaderID)
	if err != nil {
		return problem.BadRequest("follow: leader_id: %w", err)
	}
	g := cluster.Generation{Number: in.Follow.Generation, RecoveryID: in.Follow.RecoveryID}
	before := c.s.reads.Status()
	if err := c.s.deps.Recovery.SetAside(ctx, in.Confirm, leader, g); err != nil {
		return err
	}
	if before.Generation != g {
		c.s.deps.Restart()
	}
	return c.reply(apiv1.RecoverResult{
		RecoveredID: string(leader), ClusterID: in.Confirm, Generation: g.Number, RecoveryID: g.RecoveryID,
		Term:      before.Term,
		Survivors: []apiv1.Survivor{}, LostIDs: []string{}, Warnings: []string{},
		Message: "node " + string(c.s.deps.Node.ID) + " archives its data and restarts with an empty data directory",
	})
}

// recovered returns the response of the recovered node, after it has notified the other survivors.
func (c *request) recovered(ctx context.Context, in apiv1.Recover, plan cluster.RecoveryPlan,
	g cluster.Generation,
) apiv1.RecoverResult {
	in.Follow = &apiv1.RecoverFollow{LeaderID: string(plan.Chosen), Generation: g.Number, RecoveryID: g.RecoveryID}
	in.PlanID = ""
	st := c.s.reads.Status()
	out := apiv1.RecoverResult{
		RecoveredID: string(plan.Chosen), ClusterID: plan.ClusterID, Generation: g.Number, RecoveryID: g.RecoveryID,
		Term: st.Term, Revision: c.s.reads.View().Revision(), LostIDs: []string{},
		Survivors: make([]apiv1.Survivor, len(plan.Survivors)), Warnings: []string{
			"lost: " + plan.Losses(),
			plan.Warning(),
		},
		Message: plan.Summary(),
	}
	for _, id := range plan.Lost {
		out.LostIDs = append(out.LostIDs, string(id))
	}
	var telling sync.WaitGroup
	for i, s := range plan.Survivors {
		out.Survivors[i] = apiv1.Survivor{
			ID: string(s.ID), Voter: s.Voter, LastTerm: s.LastTerm,
			LastIndex: s.LastIndex, Outcome: "recovered",
		}
		if s.ID != plan.Chosen {
			telling.Go(func() { out.Survivors[i].Outcome = c.notifySurvivor(ctx, s.ID, in, g) })
		}
	}
	telling.Wait()
	return out
}

// notifyTimeout is how long one survivor may take to archive its data.
const notifyTimeout = 10 * time.Second

// notifySurvivor has another survivor archive its data, and returns its result. A survivor can also learn of generation
// g from the recovered node's hello: it then restarts, and the request fails. So its return to g is a success, too.
func (c *request) notifySurvivor(ctx context.Context, id cluster.NodeID, in apiv1.Recover,
	g cluster.Generation,
) string {
	ctx, cancel := context.WithTimeout(ctx, notifyTimeout)
	defer cancel()
	failure := c.requestSetAside(ctx, id, in)
	if failure == "" || c.awaitReturn(ctx, id, g) {
		return "set aside"
	}
	return "its data is not set aside yet: start it, or repeat the call: " + failure
}

// requestSetAside has another survivor archive its data. It returns why that failed, "" if it did not.
func (c *request) requestSetAside(ctx context.Context, id cluster.NodeID, in apiv1.Recover) string {
	addr := c.s.httpAddress(id)
	if addr == "" {
		return "its HTTP address is not known"
	}
	resp, err := c.s.forward.Post(ctx, c.Caller(), addr, apiv1.PathRecover, in)
	switch {
	case err != nil:
		return err.Error()
	case resp.Status == http.StatusOK:
		return ""
	}
	var p apiv1.Problem
	if json.Unmarshal(resp.Body, &p) != nil || p.Detail == "" {
		return fmt.Sprintf("it answered %d", resp.Status)
	}
	return p.Detail
}

// awaitReturn reports whether a survivor registers in generation g, with a new data directory, before ctx ends.
func (c *request) awaitReturn(ctx context.Context, id cluster.NodeID, g cluster.Generation) bool {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		v := c.s.reads.View()
		m, ok := v.Member(id)
		if ok && !m.Removed && v.Generation() == g && m.Incarnation != "" { // the recovery has cleared the old one
			return true
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return false
		}
	}
}
