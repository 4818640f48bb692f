package failover

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"northstar/cluster"
	"northstar/election"
)

// planInput is all that a plan is made from.
type planInput struct {
	Order   cluster.LeadershipRequest
	Status  cluster.NodeStatus
	Members []cluster.Member
	// Choices are, while this node leads, the others as targets, the best first.
	Choices []cluster.TargetOption
	// Survey is what all servers say; not for a transfer.
	Survey    election.ClusterPoll
	Transfers []time.Duration // gaps on record of leadership handed over, the shortest first
	Elections []time.Duration // and of elections without the leader's help
	LeaseWait time.Duration   // for how long a leader that was passed over may have a lease; 0: it has none
	Paused    bool            // automatic failover
}

// plan works out what an order would do. It depends on nothing but its input.
func plan(in planInput) cluster.Plan {
	st := in.Status
	p := cluster.Plan{
		Action: in.Order.Action, Term: st.Term, Membership: cluster.MembershipDigest(st.Servers, in.Members),
		Leader: st.LeaderID, Target: in.Order.Target,
	}
	leader := st.NodeID
	if in.Order.Action == cluster.ActionFailover {
		leader, _ = in.Survey.Leader()
	}
	switch {
	case in.Order.Action == cluster.ActionEmergency:
		in.planEmergency(&p)
	case leader == st.NodeID:
		in.planTransfer(&p)
	case leader != "" && !in.Order.Forwarded:
		p.Executor, p.Method, p.Risk = leader, cluster.MethodTransfer, cluster.RiskLow
		p.Summary = fmt.Sprintf("node %s, which leads, hands leadership over", leader)
	default:
		in.planElection(&p)
	}
	p.Params = "by " + string(p.Method) // a leader that can take part no more makes it another plan
	if p.Refusal != nil {
		p.Summary = "nothing: " + p.Refusal.Detail
	}
	return p
}

// planTransfer chooses and checks whom this node hands leadership to.
func (in planInput) planTransfer(p *cluster.Plan) {
	st := in.Status
	p.Executor, p.Method, p.Candidates, p.Risk = st.NodeID, cluster.MethodTransfer, in.Choices, cluster.RiskLow
	in.expect(p, in.Transfers)
	chosen, known := in.choose(p)
	switch {
	case p.Target == st.NodeID:
		p.Refusal = leadsAlready(st.NodeID)
	case !known:
		p.Refusal = noMember(p.Target)
	case p.Target == "":
		p.Refusal = cluster.Errorf(cluster.CodeTransferFailed, "no node can take over: %s", reasons(p.Candidates))
	case !chosen.Eligible:
		p.Refusal = cluster.Errorf(cluster.CodeTransferFailed, "%s", chosen.Reason)
	}
	p.Summary = fmt.Sprintf("node %s hands leadership to node %s", st.NodeID, p.Target)
	if chosen.LagEntries > election.CaughtUp {
		p.Summary += fmt.Sprintf(", once that has caught up %d entries", chosen.LagEntries)
		p.Warnings = append(p.Warnings, fmt.Sprintf("node %s is %d entries behind and is waited for", p.Target, chosen.LagEntries))
	}
	in.warnPriorityTakeover(p, chosen)
}

// planElection chooses and checks who is to be elected while no leader can take
// part.
func (in planInput) planElection(p *cluster.Plan) {
	s := in.Survey
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
		p.Refusal = cluster.Errorf(cluster.CodeElectionFailed, "%d of %d voters answer, and %d are needed to elect a leader", answer, cluster.CountVoters(s.Servers), need)
		p.Refusal.NoRetry = true
	case p.Target == "":
		p.Refusal = cluster.Errorf(cluster.CodeTransferFailed, "no node can be elected: %s", reasons(p.Candidates))
	case chosen.LogBehind:
		p.Refusal = voteDeniedError(p.Target, votes)
	case !chosen.Eligible:
		p.Refusal = cluster.Errorf(cluster.CodeTransferFailed, "%s", chosen.Reason)
	}
	_, why := s.Leader()
	p.Summary = fmt.Sprintf("node %s stands for election: %s", p.Target, why)
	in.warnOfElection(p)
	in.warnPriorityTakeover(p, chosen)
}

// planEmergency checks nothing but Raft's own rule: the target must be a voter,
// and have a log with which a majority can vote for it.
func (in planInput) planEmergency(p *cluster.Plan) {
	s := in.Survey
	p.Term, p.Executor, p.Method, p.Candidates, p.Risk = s.Term(), p.Target, cluster.MethodElection, s.TargetOptions(), cluster.RiskMedium
	in.expect(p, in.Elections)
	chosen, known := in.choose(p)
	leader, why := s.Leader()
	votes, _, lost := s.PredictVotes(p.Target)
	switch {
	case !known:
		p.Refusal = noMember(p.Target)
	case !chosen.Voter:
		p.Refusal = cluster.Errorf(cluster.CodeTransferFailed, "%s", chosen.Reason)
	case leader == p.Target:
		p.Refusal = leadsAlready(leader)
	case lost:
		p.Refusal = voteDeniedError(p.Target, votes)
	}
	p.Summary = fmt.Sprintf("node %s stands for election at once", p.Target)
	if leader != "" {
		p.Warnings = append(p.Warnings, fmt.Sprintf("node %s leads and can hand leadership over: a failover would do without an election, and leave no write unknown", leader))
	} else {
		p.Summary += ": " + why
	}
	if !chosen.Eligible && chosen.Reason != "" {
		p.Warnings = append(p.Warnings, chosen.Reason+": that is passed over")
	}
	in.warnOfElection(p)
	in.warnPriorityTakeover(p, chosen)
}

// choose completes the target and gives what is known of it; known is false when
// it is no member.
func (in planInput) choose(p *cluster.Plan) (chosen cluster.TargetOption, known bool) {
	// Who does not answer has the priority of its record.
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

// member gives a node's record, an empty one when there is none.
func (in planInput) member(id cluster.NodeID) cluster.Member {
	for _, m := range in.Members {
		if m.ID == id {
			return m
		}
	}
	return cluster.Member{}
}

// expect tells how long writes will wait, from the gaps of like cases.
func (in planInput) expect(p *cluster.Plan, gaps []time.Duration) {
	if p.Gap = expectedDowntime(gaps); p.Gap.Samples == 0 {
		p.Warnings = append(p.Warnings, "no such move of leadership is on record in this cluster: how long writes will wait is not known")
	}
}

func (in planInput) warnOfElection(p *cluster.Plan) {
	if in.LeaseWait > 0 {
		p.Gap.Expected, p.Gap.Worst = p.Gap.Expected+in.LeaseWait, p.Gap.Worst+in.LeaseWait
		p.Warnings = append(p.Warnings, fmt.Sprintf("election.lease is on: once elected, node %s serves nothing for %v, until no lease of the leader before it can be valid", p.Target, in.LeaseWait))
	}
	p.Warnings = append(p.Warnings, "writes in flight at the leader before may end with an unknown outcome")
	if in.Paused {
		p.Warnings = append(p.Warnings, "automatic failover is paused: should the election fail, nobody else stands")
	}
}

// warnPriorityTakeover says that leadership will not stay where it is put.
func (in planInput) warnPriorityTakeover(p *cluster.Plan, chosen cluster.TargetOption) {
	if m := in.member(p.Target); m.ID != "" && m.IneligibleReason() != "" {
		p.Warnings = append(p.Warnings, fmt.Sprintf("by its record node %s does not lead: it hands leadership over again once another node can take it", p.Target))
		return
	}
	if in.Paused || p.Target == "" {
		return
	}
	for _, m := range in.Members {
		sv, voter := cluster.FindServer(in.Status.Servers, m.ID)
		if m.Priority > chosen.Priority && m.Eligible && !m.Removed && m.ID != p.Target && voter && sv.Suffrage == cluster.Voter {
			p.Warnings = append(p.Warnings, fmt.Sprintf("node %s has priority %d, node %s %d: it takes leadership over again when it has been fit for failover.takeover-delay, unless automatic failover is paused", m.ID, m.Priority, p.Target, chosen.Priority))
			return
		}
	}
}

// expectedDowntime is what gaps on record, the shortest first, let one expect.
func expectedDowntime(gaps []time.Duration) cluster.Gap {
	n := len(gaps)
	if n == 0 {
		return cluster.Gap{}
	}
	return cluster.Gap{Expected: gaps[n/2], Worst: gaps[n-1], Samples: n}
}

func leadsAlready(id cluster.NodeID) *cluster.Error {
	return cluster.Errorf(cluster.CodeTransferFailed, "node %s leads already", id)
}

func noMember(id cluster.NodeID) *cluster.Error {
	err := cluster.Errorf(cluster.CodeBadRequest, "target_leader_id: %s is no member of this cluster", id)
	err.Status = 404
	return err
}

// voteDeniedError is the refusal of the voters.
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
	return strings.Join(why, "; ")
}
