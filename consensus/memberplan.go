package consensus

import (
	"context"
	"encoding/json"
	"fmt"

	"northstar/cluster"
)

// changeInputs is everything that planChange depends on.
type changeInputs struct {
	change  cluster.MemberChange
	self    cluster.NodeID // the leader
	term    uint64
	servers []cluster.Server
	members []cluster.Member
	contact map[cluster.NodeID]bool   // responded recently; self included
	lag     map[cluster.NodeID]uint64 // entries behind the leader
}

// PlanChange returns what a membership change would do now, and changes nothing. The error is CodeNoLeader.
func (n *Node) PlanChange(ctx context.Context, change cluster.MemberChange) (cluster.Plan, error) {
	inst := n.inst.Load()
	if inst == nil || !n.leads() {
		return cluster.Plan{}, n.notLeading()
	}
	term, err := n.awaitReady(ctx, inst)
	if err != nil {
		return cluster.Plan{}, err
	}
	in := changeInputs{
		change: change, self: n.cfg.Self.NodeID, term: term, servers: inst.Servers(),
		members: n.View().Members(),
	}
	in.contact, in.lag = n.contacts(in.servers), n.lags(inst, term)
	return planChange(in), nil
}

// contacts returns which servers have responded recently, this node included.
func (n *Node) contacts(servers []cluster.Server) map[cluster.NodeID]bool {
	contact := map[cluster.NodeID]bool{n.cfg.Self.NodeID: true}
	for _, s := range servers {
		if s.ID != n.cfg.Self.NodeID {
			contact[s.ID] = n.inContact(s.ID)
		}
	}
	return contact
}

// planChange returns what a change would do, by the checks that the change itself makes.
func planChange(in changeInputs) cluster.Plan {
	ch := in.change
	params, err := json.Marshal(ch)
	p := cluster.Plan{
		Action: ch.Action(), Term: in.term, Membership: cluster.MembershipDigest(in.servers, in.members),
		Leader: in.self,
		Target: ch.ID, Params: string(params), Risk: cluster.RiskLow,
	}
	var rec cluster.Member
	known := false
	for _, m := range in.members {
		if m.ID == ch.ID {
			rec, known = m, !m.Removed
		}
	}
	server, member := cluster.FindServer(in.servers, ch.ID)
	next := in.servers
	switch {
	case err != nil:
		p.Refusal = cluster.Errorf(cluster.CodeInternal, "%w", err)
	case ch.Add != nil:
		in.planAdd(&p, rec, known && member)
	case !known && !member, ch.Patch != nil && !(known && member):
		p.Refusal = notFound(ch.ID)
	case ch.Patch != nil:
		next = in.planPatch(&p, rec, server)
	default:
		p.Summary = fmt.Sprintf("node %s is removed permanently: its data directory is refused from then on", ch.ID)
		if member {
			next = without(in.servers, ch.ID)
			p.MovesLeader = ch.ID == in.self
		}
	}
	in.planVoters(&p, next)
	if p.MovesLeader && p.Refusal == nil {
		p.Summary = fmt.Sprintf("node %s, which leads, transfers leadership; then ", in.self) + p.Summary
	}
	if p.Refusal != nil {
		p.Summary = "nothing: " + p.Refusal.Detail
	}
	return p
}

func (in changeInputs) planAdd(p *cluster.Plan, rec cluster.Member, member bool) {
	add := *in.change.Add
	if p.Refusal = checkAddedBy(add, in.servers, rec); p.Refusal == nil {
		p.Refusal = checkAdd(add, in.servers, rec)
	}
	if p.Refusal == nil {
		p.Refusal = checkHTTPAddress(add.ID, add.HTTPAddress, in.members)
	}
	if p.Refusal != nil {
		return
	}
	p.Summary = fmt.Sprintf("node %s is added as non-voter", add.ID)
	switch {
	case member:
		p.Summary = fmt.Sprintf("nothing: node %s is a member already", add.ID)
	case add.Promote:
		p.Summary += ", and becomes a voter once it is caught up and stable"
		if voters := cluster.CountVoters(in.servers); voters%2 == 1 {
			p.Warnings = append(p.Warnings, fmt.Sprintf("%d voters tolerate no more failures than %d", voters+1,
				voters))
		}
	}
}

// planPatch returns the servers after the patch.
func (in changeInputs) planPatch(p *cluster.Plan, rec cluster.Member, server cluster.Server) []cluster.Server {
	patch := *in.change.Patch
	next := in.servers
	if p.Refusal = checkDrain(patch, rec); p.Refusal == nil {
		p.Refusal = checkPatch(patch, server, in.servers, in.members)
	}
	if p.Refusal != nil {
		return next
	}
	p.Summary = fmt.Sprintf("the record of node %s is changed", rec.ID)
	steps := planPatch(rec, server, patch)
	if len(steps) == 0 {
		p.Summary = fmt.Sprintf("nothing: node %s is like that already", rec.ID)
	}
	for _, step := range steps {
		switch step.action {
		case demote:
			next = withSuffrage(next, rec.ID, cluster.NonVoter)
			p.Summary, p.MovesLeader = fmt.Sprintf("node %s becomes a non-voter", rec.ID), rec.ID == in.self
		case promote:
			if p.Refusal = checkLag(rec.ID, in.lag[rec.ID]); p.Refusal != nil {
				p.Risk = cluster.RiskHigh
				return in.servers
			}
			next = withSuffrage(next, rec.ID, cluster.Voter)
			p.Summary = fmt.Sprintf("node %s becomes a voter", rec.ID)
		case moveAddress:
			if why := moveAtRisk(next, in.contact, rec.ID); why != "" {
				p.Refusal, p.Risk = cluster.Errorf(cluster.CodeQuorumAtRisk, "%s", why), cluster.RiskHigh
				return in.servers
			}
			p.Summary, p.MovesLeader = fmt.Sprintf("the address of node %s becomes %s", rec.ID, *patch.RaftAddress),
				rec.ID == in.self
		}
	}
	if bars := patch.Eligible != nil && !*patch.Eligible || patch.Priority != nil && *patch.Priority <= 0; bars &&
		len(steps) > 0 {
		p.MovesLeader = p.MovesLeader || rec.ID == in.self
	}
	if patch.Readmit {
		p.Summary = fmt.Sprintf(
			"node %s may come back with another data directory; it is a non-voter until it has caught up", rec.ID)
		if rec.Lifecycle == cluster.Draining && server.Suffrage == cluster.Voter {
			p.Warnings = append(p.Warnings, "its drain ends: drain it again when it is active")
		}
	}
	if patch.Drain != nil && len(steps) > 0 {
		p.Summary = fmt.Sprintf("node %s is set to active", rec.ID)
		if *patch.Drain {
			p.Summary, p.MovesLeader = fmt.Sprintf(
				"node %s is set to drain: it does not lead, is not ready, and sends attached clients elsewhere; it goes on voting", rec.ID), rec.ID == in.self
		}
	}
	return next
}

// planVoters evaluates the change by the voters after it.
func (in changeInputs) planVoters(p *cluster.Plan, next []cluster.Server) {
	before, after := cluster.CountVoters(in.servers), cluster.CountVoters(next)
	if p.Refusal != nil || before == after {
		return
	}
	p.Risk = cluster.RiskMedium
	if why := quorumAtRisk(next, in.contact); why != "" {
		p.Refusal, p.Risk = cluster.Errorf(cluster.CodeQuorumAtRisk, "%s", why), cluster.RiskHigh
		return
	}
	reachable := 0
	for _, s := range next {
		if s.Suffrage == cluster.Voter && in.contact[s.ID] {
			reachable++
		}
	}
	if reachable == cluster.Quorum(after) {
		p.Risk = cluster.RiskHigh
		p.Warnings = append(p.Warnings, fmt.Sprintf("of the resulting %d voters, no further one may fail", after))
	}
}
