package failover

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"northstar/cluster"
	"northstar/election"
)

// planInput is the complete input of a plan.
type planInput struct {
	Request cluster.LeadershipRequest
	Status  cluster.NodeStatus
	Members []cluster.Member
	// Choices are the other servers as targets, the best first, while this node leads.
	Choices []cluster.TargetOption
	// Poll is the poll of all servers; unused for a transfer.
	Poll      election.ClusterPoll
	Transfers []time.Duration // recorded write gaps of transfers, the shortest first
	Elections []time.Duration // recorded write gaps of elections without the leader
	LeaseWait time.Duration   // how long the replaced leader may have a lease; 0: no leases
	Paused    bool            // automatic failover is paused
	Zones     []string        // preferred for the leader, in this order
}

// plan returns what a request would do. It is a pure function of its input.
func plan(in planInput) cluster.Plan {
	st := in.Status
	p := cluster.Plan{
		Action: in.Request.Action, Term: st.Term, Membership: cluster.MembershipDigest(st.Servers, in.Members),
		Leader: st.LeaderID, Target: in.Request.Target,
	}
	leader := st.NodeID
	if in.Request.Action == cluster.ActionFailover {
		leader, _ = in.Poll.Leader()
	}
	switch {
	case in.Request.Action == cluster.ActionEmergency:
		in.planEmergency(&p)
	case leader == st.NodeID:
		in.planTransfer(&p)
	case leader != "" && !in.Request.Forwarded:
		p.Executor, p.Method, p.Risk = leader, cluster.MethodTransfer, cluster.RiskLow
		p.Summary = fmt.Sprintf("node %s, which leads, transfers leadership", leader)
	default:
		in.planElection(&p)
	}
	p.Params = "by " + string(p.Method) // if the leader fails meanwhile, the plan is another one
	if p.Refusal != nil {
		p.Summary = "nothing: " + p.Refusal.Detail
	}
	return p
}

// planTransfer selects and checks the target of a transfer.
func (in planInput) planTransfer(p *cluster.Plan) {
	st := in.Status
	p.Executor, p.Method, p.Candidates, p.Risk = st.NodeID, cluster.MethodTransfer, in.choicesInZone(), cluster.RiskLow
	in.expect(p, in.Transfers)
	chosen, known := in.choose(p)
	switch {
	case p.Target == st.NodeID:
		p.Refusal = leadsAlready(st.NodeID)
	case !known:
		p.Refusal = noMember(p.Target)
	case in.Request.Zone != "" && in.member(st.NodeID).Zone == in.Request.Zone:
		p.Refusal = leadsAlready(st.NodeID)
		p.Refusal.Detail += fmt.Sprintf(" in zone %q", in.Request.Zone)
	case p.Target == "":
		p.Refusal = cluster.Errorf(cluster.CodeTransferFailed, "no node can take over: %s", reasons(p.Candidates))
	case !chosen.Eligible:
		p.Refusal = cluster.Errorf(cluster.CodeTransferFailed, "%s", chosen.Reason)
	}
	p.Summary = fmt.Sprintf("node %s transfers leadership to node %s", st.NodeID, p.Target)
	if chosen.LagEntries > election.CaughtUp {
		p.Summary += fmt.Sprintf(", once that has caught up %d entries", chosen.LagEntries)
		warn(p, "node %s is %d entries behind and must catch up first", p.Target, chosen.LagEntries)
	}
	in.warnPriorityTakeover(p, chosen)
}

// choicesInZone returns the other servers as targets. Those outside the requested zone are not eligible.
func (in planInput) choicesInZone() []cluster.TargetOption {
	choices := slices.Clone(in.Choices)
	for i, c := range choices {
		zone := in.member(c.ID).Zone
		if in.Request.Zone != "" && zone != in.Request.Zone {
			choices[i].Eligible, choices[i].Reason = false, fmt.Sprintf("node %s is in zone %q", c.ID, zone)
		}
	}
	slices.SortStableFunc(choices, func(a, b cluster.TargetOption) int {
		return cluster.CompareBool(b.Eligible, a.Eligible)
	})
	return choices
}

// planElection selects and checks the node to elect when no leader can take part.
func (in planInput) planElection(p *cluster.Plan) {
	s := in.Poll
	p.Term, p.Method, p.Candidates, p.Risk = s.Term(), cluster.MethodElection, s.TargetOptions(), cluster.RiskMedium
	in.expect(p, in.Elections)
	chosen, known := in.choose(p)
	p.Executor = p.Target
	votes, _, _ := s.PredictVotes(p.Target)
	answer, need := s.Responding()
	switch {
	case !known:
		p.Refusal = noMember(p.Target)
	case answer < need:
		p.Refusal = cluster.Errorf(cluster.CodeElectionFailed,
			"%d of %d voters answer, and %d are needed to elect a leader",
			answer, cluster.CountVoters(s.Servers), need)
	case p.Target == "":
		p.Refusal = cluster.Errorf(cluster.CodeTransferFailed, "no node can be elected: %s", reasons(p.Candidates))
	case chosen.LogBehind:
		p.Refusal = voteDeniedError(p.Target, votes)
	case !chosen.Eligible:
		p.Refusal = cluster.Errorf(cluster.CodeTransferFailed, "%s", chosen.Reason)
	}
	_, why := s.Leader()
	p.Summary = fmt.Sprintf("node %s starts an election: %s", p.Target, why)
	in.warnOfElection(p)
	in.warnPriorityTakeover(p, chosen)
}

// planEmergency checks Raft's own rule: the target is a voter, and a majority may vote for its log. A target that the
// cluster has excluded from elections is refused, too: it could only lead beside another leader.
func (in planInput) planEmergency(p *cluster.Plan) {
	s := in.Poll
	p.Term, p.Executor, p.Method, p.Candidates, p.Risk = s.Term(), p.Target, cluster.MethodElection, s.TargetOptions(),
		cluster.RiskMedium
	in.expect(p, in.Elections)
	chosen, known := in.choose(p)
	leader, why := s.Leader()
	votes, _, lost := s.PredictVotes(p.Target)
	excluded := s.ExclusionReason(p.Target)
	switch {
	case !known:
		p.Refusal = noMember(p.Target)
	case !chosen.Voter:
		p.Refusal = cluster.Errorf(cluster.CodeTransferFailed, "%s", chosen.Reason)
	case s.Leads(p.Target):
		p.Refusal = leadsAlready(p.Target)
	case excluded != "":
		p.Refusal = cluster.Errorf(cluster.CodeTransferFailed, "node %s takes no part in elections: %s", p.Target,
			excluded)
	case lost:
		p.Refusal = voteDeniedError(p.Target, votes)
	}
	p.Summary = fmt.Sprintf("node %s starts an election now", p.Target)
	if leader != "" {
		warn(p, "node %s leads and can transfer leadership: a failover would do so without an election, and leave no write unknown", leader)
	} else {
		p.Summary += ": " + why
	}
	if !chosen.Eligible && chosen.Reason != "" {
		warn(p, "%s: this check is skipped", chosen.Reason)
	}
	in.warnOfElection(p)
	in.warnPriorityTakeover(p, chosen)
}

// choose completes the target and returns its option; known is false if it is not a member.
func (in planInput) choose(p *cluster.Plan) (chosen cluster.TargetOption, known bool) {
	// The priority of a server that does not respond is in its record.
	for i, c := range p.Candidates {
		p.Candidates[i].Priority = cmp.Or(c.Priority, in.member(c.ID).Priority)
	}
	if p.Target == "" && len(p.Candidates) > 0 && p.Candidates[0].Eligible {
		p.Target = p.Candidates[0].ID
	}
	for _, c := range p.Candidates {
		if c.ID == p.Target {
			return c, true
		}
	}
	return cluster.TargetOption{}, p.Target == ""
}

// member returns a node's record, an empty one if there is none.
func (in planInput) member(id cluster.NodeID) cluster.Member {
	for _, m := range in.Members {
		if m.ID == id {
			return m
		}
	}
	return cluster.Member{}
}

// expect adds how long writes will wait, from the gaps of similar cases, the shortest first.
func (in planInput) expect(p *cluster.Plan, gaps []time.Duration) {
	n := len(gaps)
	if n == 0 {
		warn(p, "no similar move is recorded in this cluster: the expected write gap is unknown")
		return
	}
	p.Gap = cluster.Gap{Expected: gaps[n/2], Worst: gaps[n-1], Samples: n}
}

func warn(p *cluster.Plan, format string, args ...any) {
	p.Warnings = append(p.Warnings, fmt.Sprintf(format, args...))
}

func (in planInput) warnOfElection(p *cluster.Plan) {
	if in.LeaseWait > 0 {
		p.Gap.Expected, p.Gap.Worst = p.Gap.Expected+in.LeaseWait, p.Gap.Worst+in.LeaseWait
		warn(p, "election.lease is on: once elected, node %s serves nothing for %v, until the lease of the previous leader has expired", p.Target, in.LeaseWait)
	}
	warn(p, "writes in flight at the previous leader may end with an unknown outcome")
	if in.Paused {
		warn(p, "automatic failover is paused: if the election fails, no other node starts one")
	}
}

// warnPriorityTakeover warns if another node will take leadership over again.
func (in planInput) warnPriorityTakeover(p *cluster.Plan, chosen cluster.TargetOption) {
	if m := in.member(p.Target); m.ID != "" && m.IneligibleReason() != "" {
		warn(p, "node %s is not eligible by its record: it transfers leadership again once another node can take it",
			p.Target)
		return
	}
	if in.Paused || chosen.ID == "" { // a target that leads, or is no member, is no candidate
		return
	}
	ranks := election.ZoneRanks(in.Zones, in.Members)
	for _, m := range in.Members {
		sv, voter := cluster.FindServer(in.Status.Servers, m.ID)
		if m.ID == p.Target || !m.Eligible || m.Removed || !voter || sv.Suffrage != cluster.Voter {
			continue
		}
		if m.Priority == chosen.Priority && ranks[m.ID] < ranks[p.Target] {
			warn(p, "node %s is in zone %q, which is preferred to %q of node %s: it takes leadership over again when it has been fit for failover.takeover-delay, unless automatic failover is paused", m.ID, m.Zone, in.member(p.Target).Zone, p.Target)
			return
		}
		if m.Priority > chosen.Priority {
			warn(p, "node %s has priority %d, node %s %d: it takes leadership over again when it has been fit for failover.takeover-delay, unless automatic failover is paused", m.ID, m.Priority, p.Target, chosen.Priority)
			return
		}
	}
}

func leadsAlready(id cluster.NodeID) *cluster.Error {
	return cluster.Errorf(cluster.CodeTransferFailed, "node %s leads already", id)
}

func noMember(id cluster.NodeID) *cluster.Error {
	err := cluster.Errorf(cluster.CodeBadRequest, "target_leader_id: %s is not a member of this cluster", id)
	err.Status = 404
	return err
}

// voteDeniedError returns the error for an election that the voters rejected.
func voteDeniedError(target cluster.NodeID, votes []cluster.Vote) *cluster.Error {
	var why []string
	for _, v := range votes {
		if !v.Granted {
			why = append(why, fmt.Sprintf("%s: %s", v.Voter, v.Reason))
		}
	}
	err := cluster.Errorf(cluster.CodeVoteDenied, "node %s gets no majority: %s", target, strings.Join(why, "; "))
	err.Votes = votes
	return err
}

func reasons(choices []cluster.TargetOption) string {
	var why []string
	for _, c := range choices {
		if c.Reason != "" {
			why = append(why, c.Reason)
		}
	}
	return cmp.Or(strings.Join(why, "; "), "there is no other node")
}
