package api

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"time"

	"northstar/api/apiv1"
	"northstar/api/forward"
	"northstar/api/problem"
	"northstar/cluster"
)

// adminTimeout limits a membership change: it may wait for the previous one.
const adminTimeout = 30 * time.Second

func addMember(c *request, in apiv1.MemberAdd) error {
	add, err := parseAdd(in)
	if err != nil {
		return err
	}
	add.ByNode = c.caller.node != ""
	if add.ByNode && c.caller.node != add.ID {
		return cluster.Errorf(cluster.CodeForbidden, "id: node %s may add itself only", c.caller.node)
	}
	return c.changeMember("added as non-voter", cluster.MemberChange{ID: add.ID, Add: &add},
		planParams{in.DryRun, in.PlanID})
}

func parseAdd(in apiv1.MemberAdd) (cluster.MemberAdd, error) {
	id, err := cluster.ParseNodeID(in.ID)
	if err != nil {
		return cluster.MemberAdd{}, problem.BadRequest("id: %w", err)
	}
	if err := checkAddresses(&in.RaftAddress, &in.HTTPAddress); err != nil {
		return cluster.MemberAdd{}, err
	}
	add := cluster.MemberAdd{ID: id, RaftAddress: in.RaftAddress, HTTPAddress: in.HTTPAddress, Promote: true}
	if in.Suffrage != "" {
		s, err := parseSuffrage(in.Suffrage)
		if err != nil {
			return cluster.MemberAdd{}, err
		}
		add.Promote = s == cluster.Voter
	}
	return add, nil
}

func patchMember(c *request, in apiv1.MemberPatch) error {
	patch, err := parsePatch(in)
	if err != nil {
		return err
	}
	id, err := c.memberID()
	if err != nil {
		return err
	}
	return c.changeMember("changed", cluster.MemberChange{ID: id, Patch: &patch}, planParams{in.DryRun, in.PlanID})
}

func parsePatch(in apiv1.MemberPatch) (cluster.MemberPatch, error) {
	out := cluster.MemberPatch{
		Priority: in.Priority, Eligible: in.Eligible, Zone: in.Zone,
		RaftAddress: in.RaftAddress, HTTPAddress: in.HTTPAddress, Readmit: in.Readmit,
	}
	if in.Priority != nil && (*in.Priority < 0 || *in.Priority > cluster.MaxPriority) {
		return out, problem.BadRequest("priority: must be 0 to %d (got %d)", cluster.MaxPriority, *in.Priority)
	}
	if in.Zone != nil {
		if err := cluster.CheckZone(*in.Zone); err != nil {
			return out, problem.BadRequest("zone: %w", err)
		}
	}
	if in.Suffrage != nil {
		s, err := parseSuffrage(*in.Suffrage)
		if err != nil {
			return out, err
		}
		out.Suffrage = &s
	}
	if err := checkAddresses(in.RaftAddress, in.HTTPAddress); err != nil {
		return out, err
	}
	if out == (cluster.MemberPatch{}) {
		return out, problem.BadRequest("body: nothing to change")
	}
	return out, nil
}

func removeMember(c *request, in apiv1.MemberRemove) error {
	id, err := c.memberID()
	if err != nil {
		return err
	}
	return c.changeMember("removed", cluster.MemberChange{ID: id}, planParams{in.DryRun, in.PlanID})
}

func drainNode(c *request, in apiv1.Drain) error { return c.setDrain(in, true, "set to drain") }

func undrainNode(c *request, in apiv1.Drain) error { return c.setDrain(in, false, "set to active") }

func (c *request) setDrain(in apiv1.Drain, drain bool, done string) error {
	id, err := c.memberID()
	if err != nil {
		return err
	}
	return c.changeMember(done, cluster.MemberChange{ID: id, Patch: &cluster.MemberPatch{Drain: &drain}},
		planParams{in.DryRun, in.PlanID})
}

// memberID returns the member in the path. Only the leader knows whether it exists.
func (c *request) memberID() (cluster.NodeID, error) {
	id, err := cluster.ParseNodeID(c.param)
	if err != nil {
		return "", problem.Status(http.StatusNotFound, "id: %w", err)
	}
	return id, nil
}

// Membership changes the membership. Methods may be called by any goroutine; their errors are *cluster.Error.
type Membership interface {
	ChangeMember(ctx context.Context, change cluster.MemberChange) error
	// PlanChange returns what ChangeMember would do.
	PlanChange(ctx context.Context, change cluster.MemberChange) (cluster.Plan, error)
}

// changeMember makes a change at the leader, or answers a dry run.
func (c *request) changeMember(done string, change cluster.MemberChange, plans planParams) error {
	if err := checkReason(c.auditFields.Reason); err != nil {
		return err
	}
	ctx, cancel := c.contextWithLimit(adminTimeout)
	defer cancel()
	err := c.onLeader(ctx, forward.Request{Write: true, Local: func(ctx context.Context) error {
		if change.Add != nil && c.isMember(change.ID) {
			done = "a member already"
		}
		if !plans.dryRun && plans.id == "" {
			return c.s.applyChange(ctx, change)
		}
		plan, err := c.planChange(ctx, change)
		if err != nil {
			return err
		}
		if err := c.verifyPlan(plans, plan); err != nil {
			return err
		}
		change.Membership = plan.Membership
		err = c.s.applyChange(ctx, change)
		if plan.MovesLeader && !changesRecordOnly(change) && cluster.IsCode(err, cluster.CodeNoLeader) {
			return cluster.Errorf(cluster.CodeTermStale,
				"plan_id: node %s transferred leadership as planned, so the term changed: make a new plan for the remaining change",
				plan.Leader)
		}
		return err
	}})
	if err != nil {
		return err
	}
	return c.reply(apiv1.MemberResult{
		ID: string(change.ID), Message: fmt.Sprintf("node %s was %s", change.ID, done),
	})
}

// applyChange makes a change here, and waits until the nodes that choose the next leader know the member record.
func (s *Server) applyChange(ctx context.Context, change cluster.MemberChange) error {
	err := s.deps.Membership.ChangeMember(ctx, change)
	if err == nil && change.Patch != nil {
		s.deps.Proposals.AwaitAppliedEverywhere(ctx)
	}
	return err
}

// isMember reports whether a node has a record and is in the configuration.
func (c *request) isMember(id cluster.NodeID) bool {
	m, known := c.s.reads.View().Member(id)
	_, member := cluster.FindServer(c.s.reads.Status().Servers, id)
	return known && !m.Removed && member
}

// planChange returns the plan of a change, with the candidates and the expected time if it moves leadership.
func (c *request) planChange(ctx context.Context, change cluster.MemberChange) (cluster.Plan, error) {
	plan, err := c.s.deps.Membership.PlanChange(ctx, change)
	if err != nil || !plan.MovesLeader || plan.Refusal != nil {
		return plan, err
	}
	move, err := c.s.deps.Leadership.Plan(ctx, cluster.LeadershipRequest{
		Action:   cluster.ActionTransfer,
		Operator: c.caller.name, Forwarded: true,
	})
	if err != nil {
		return plan, err
	}
	plan.Candidates, plan.Gap = move.Candidates, move.Gap
	plan.Warnings = append(plan.Warnings, move.Warnings...)
	if r := move.Refusal; r != nil {
		if changesRecordOnly(change) {
			plan.Warnings = append(plan.Warnings, "leadership cannot move yet, no eligible target: "+r.Detail)
		} else {
			plan.Refusal = cluster.Errorf(cluster.CodeQuorumAtRisk,
				"node %s leads, and no other voter could take over: %s", plan.Leader, r.Detail)
			plan.Summary = "nothing: " + plan.Refusal.Detail
		}
	}
	return plan, nil
}

// changesRecordOnly reports whether a change affects only the leader's member record. Such a change is applied even
// if no other node can take over leadership; leadership moves later. Other changes must wait for the move. So must a
// re-admission, which demotes the node.
func changesRecordOnly(ch cluster.MemberChange) bool {
	return ch.Patch != nil && ch.Patch.Suffrage == nil && ch.Patch.RaftAddress == nil && !ch.Patch.Readmit
}

func parseSuffrage(s string) (cluster.Suffrage, error) {
	switch v := cluster.Suffrage(s); v {
	case cluster.Voter, cluster.NonVoter:
		return v, nil
	}
	return "", problem.BadRequest("suffrage: must be %s or %s (got %q)", cluster.Voter, cluster.NonVoter, s)
}

// checkAddresses checks addresses that other nodes and clients connect to; nil is not checked.
func checkAddresses(raft, http *string) error {
	if raft != nil {
		if err := checkAddress("raft_address", *raft); err != nil {
			return err
		}
	}
	if http != nil {
		return checkAddress("http_address", *http)
	}
	return nil
}

func checkAddress(field, s string) error {
	host, port, err := net.SplitHostPort(s)
	if err != nil || host == "" || len(s) > 260 {
		return problem.BadRequest("%s: must be HOST:PORT, at most 260 bytes (got %q)", field, s)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return problem.BadRequest("%s: port must be 1 to 65535 (got %q)", field, port)
	}
	if ip, err := netip.ParseAddr(host); err == nil && ip.IsUnspecified() {
		return problem.BadRequest("%s: %s is no address that others can connect to", field, host)
	}
	return nil
}
