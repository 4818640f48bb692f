package node

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"northstar/api/apiv1"
	"northstar/cluster"
	"northstar/consensus"
	"northstar/failover"
	"northstar/telemetry"
	"northstar/tracing"
	"northstar/transport"
)

// buildFailover builds the failover controller and its leader tasks.
func (n *Node) buildFailover() {
	c := n.cfg
	n.failover = failover.New(failover.Config{
		Self: c.ID, Fast: c.Failover.Fast, TakeoverDelay: c.Failover.TakeoverDelay,
		Silence:    time.Duration(c.Failover.Silence),
		TimeoutMin: c.Election.TimeoutMin, TimeoutMax: c.Election.TimeoutMax, Lease: c.Election.Lease,
		Zones: c.Failover.Zones,
	}, failover.Deps{
		Claim: n.transport.Claim, Peers: n.transport, Raft: func() failover.Raft { return n.transport.Raft() },
		Consensus: nodeWithHealth{n.consensus, n}, Transfer: n.transfer, Event: n.eventLog.Append,
		Needless: n.needlessElection, Announce: n.transport.Announce, Logger: n.log,
	})
	n.consensus.AddLeaderTask(n.failover.MonitorLeadership)
	n.consensus.AddLeaderTask(n.handOverIfIneligible)
}

// silence returns for how long the leader may be silent, for /status; nil without fast failover.
func (n *Node) silence() *apiv1.Silence {
	t, used := n.failover.Silence()
	if !used {
		return nil
	}
	return &apiv1.Silence{
		ThresholdMS: float64(t.Value.Microseconds()) / 1e3, Source: string(t.Source), Reason: t.Reason(),
	}
}

// needlessElection counts and reports an election whose old leader lived. Claims tell the other nodes.
func (n *Node) needlessElection(cause string, e cluster.Event) {
	n.metrics.NeedlessElection(cause)
	n.eventLog.Warn(e)
	n.transport.Announce()
}

// electionFacts returns what failover recorded about the election of a term that this node won.
func (n *Node) electionFacts(term uint64) consensus.ElectionFacts {
	f := n.failover.Facts(term)
	if f.Term != term {
		f = failover.CandidacyRecord{} // of an earlier candidacy
	}
	if f.Reason == "" {
		f.Reason = lastResortReason(n.cfg.ID, n.ownRecord(), f.Trigger)
	}
	n.lastResort.Store(f.Trigger == "" && mayBeIneligible(n.ownRecord()))
	return consensus.ElectionFacts{
		Trigger: f.Trigger, Reason: f.Reason, Operator: f.Operator, OverLiveLeader: f.OverLiveLeader,
		StartedAt: f.Began, LeaderlessSince: f.LeaderlessSince, Votes: f.Votes,
	}
}

// votes returns what this node knows now of the votes of an election that it was in; nil if it was not, or forgot it.
func (n *Node) votes(term uint64) []cluster.Vote {
	f := n.failover.Facts(term)
	if f.Term != term {
		return nil
	}
	return f.Votes
}

// election counts and records an election in which this node was a candidate.
func (n *Node) election(e consensus.Election) {
	result := telemetry.ResultLost
	if e.Won {
		result = telemetry.ResultWon
	} else if !addElectionCause(&e, n.failover.Facts(e.Term)) && !(elections{n}).mayStartByItself() {
		return // Raft's timer made it a candidate, and its vote requests were not sent
	}
	if e.Open {
		n.eventLog.Warn(electionEvent(e, "open", nil))
		return
	}
	var how failover.Timeline
	if f := n.failover.Facts(e.Term); f.Term == e.Term && e.Won {
		how = f.Steps
	}
	n.metrics.Election(e.Trigger, result, e.Duration, e.Leaderless)
	now := time.Now()
	if e.Won && e.Trigger != "startup" && e.Trigger != "transfer" {
		gap := e.Leaderless
		if !e.LedAt.IsZero() {
			gap += max(0, now.Sub(e.LedAt))
		}
		n.metrics.Failover(e.Trigger, gap)
		n.traceFailover(e, how, now.Add(-gap), now)
	}
	n.eventLog.Append(electionEvent(e, result, failoverPhases(how, e.LedAt, now)))
}

// traceFailover records a failover as one trace: what passed since the previous leader was last heard.
func (n *Node) traceFailover(e consensus.Election, how failover.Timeline, began, serving time.Time) {
	n.tracer.Failover(failoverSteps(e, how, began), serving, map[string]string{
		"northstar.trigger": e.Trigger, "northstar.leader_id": string(e.Candidate),
		"northstar.term": strconv.FormatUint(e.Term, 10), "northstar.reason": e.Reason,
	})
}

// failoverSteps returns when each step of a failover began. The first one does not begin after the election: a node may
// be a candidate for longer than it has known no leader.
func failoverSteps(e consensus.Election, how failover.Timeline, began time.Time) []tracing.Step {
	elected := how.ElectionStarted
	if elected.IsZero() {
		elected = e.StartedAt
	}
	if !elected.IsZero() && elected.Before(began) {
		began = elected
	}
	return []tracing.Step{
		{Name: "notice", At: began},
		{Name: "confirm", At: how.Noticed},
		{Name: "agree", At: how.Confirmed},
		{Name: "start election", At: how.Agreed},
		{Name: "election", At: elected},
		{Name: "serve", At: e.LedAt},
	}
}

// addElectionCause adds term, cause and votes to a lost candidacy, unless the facts are of an earlier one. Without
// facts the term is that of the leader that ended it.
func addElectionCause(e *consensus.Election, f failover.CandidacyRecord) bool {
	if f.Term == 0 || f.Term < e.FromTerm {
		return false
	}
	e.Term, e.Votes, e.Operator = f.Term, f.Votes, f.Operator
	if f.Trigger != "" {
		e.Trigger, e.Reason = f.Trigger, f.Reason
	}
	return true
}

// failoverPhases returns how long after the detection each phase of a failover was reached. Operators and benchmarks
// read it in the event. It returns nil if the election was not a failover.
func failoverPhases(s failover.Timeline, led, serving time.Time) map[string]any {
	if s.Noticed.IsZero() {
		return nil
	}
	fields := map[string]any{"noticed_at": s.Noticed.UTC()}
	for name, at := range map[string]time.Time{
		"confirmed_us": s.Confirmed, "agreed_us": s.Agreed, "stood_us": s.ElectionStarted, "elected_us": led,
		"serving_us": serving,
	} {
		if !at.IsZero() {
			fields[name] = at.Sub(s.Noticed).Microseconds()
		}
	}
	return fields
}

var (
	_ transport.Membership = (*membership)(nil)
	_ transport.Elections  = elections{}
)

// membership is what the transport knows of the members. The split-brain detector hears of each hello too.
type membership struct {
	*consensus.Node // nil until it is made; the transport asks after that
	n               *Node
}

// OnHello hears of each completed hello. It does not block.
func (m *membership) OnHello(p cluster.Peer, a cluster.Admission) {
	m.Node.OnHello(p, a)
	m.n.splitBrain.OnHello(p)
}

// elections decides about this node's votes and elections for the transport.
type elections struct{ n *Node }

func (e elections) VetoPreVote(candidate cluster.NodeID, now time.Time) string {
	return e.n.failover.VetoPreVote(candidate, now)
}

func (e elections) MayIgnoreLeader(candidate cluster.NodeID, term uint64, now time.Time) bool {
	return e.n.failover.MayIgnoreLeader(candidate, term, now)
}

// ApproveTimeoutNow rejects every TimeoutNow while this node is about to stop, or its elections are blocked.
func (e elections) ApproveTimeoutNow(ctx context.Context, by cluster.NodeID, term uint64) string {
	if e.n.draining.Load() {
		return fmt.Sprintf("node %s is draining", e.n.cfg.ID)
	}
	if why := e.electionBlockedReason(); why != "" {
		return fmt.Sprintf("node %s takes no part in elections: %s", e.n.cfg.ID, why)
	}
	return e.n.failover.ApproveTimeoutNow(ctx, by, term)
}

// MayStartElection reports whether this node may start an election for a cause.
func (e elections) MayStartElection(by cluster.ElectionCause) bool {
	if by == cluster.CauseLeaderFailed {
		return e.mayStartByItself()
	}
	return e.electionBlockedReason() == ""
}

// electionBlockedReason returns why this node must start no election, requested or not; "" if it may. A process that
// shares its ID with another one is part of a split brain.
func (e elections) electionBlockedReason() string {
	switch {
	case e.n.splitBrain.Refusing() != "":
		return "it is part of a split brain"
	case e.n.consensus.GenerationSuperseded():
		return "a peer has a newer generation of the cluster"
	}
	return ""
}

// mayStartByItself reports whether this node may start elections by itself. It may not while it is about to
// stop or part of a split brain. It may not if its record forbids it, or, before there is one, its
// configuration. It may not while failover is paused, with two exceptions: the cluster's first election, and the
// last leader, which was stopped or cut off for a while. It may not for a while after many lost elections.
// A node that is drained or not eligible may if no other
// node could lead, and transfers leadership then.
func (e elections) mayStartByItself() bool {
	n := e.n
	if n.draining.Load() || !n.consensus.MayStartElection() || n.splitBrain.Refusing() != "" {
		return false
	}
	if n.failover.BacksOff(time.Now()) {
		return false
	}
	allowed := n.autoFailoverEnabled() || n.consensus.LedLast()
	m, ok := n.consensus.ElectionView().Member(n.cfg.ID)
	if !ok {
		return n.cfg.Priority > 0 && n.cfg.Eligible && allowed
	}
	return allowed && (m.IneligibleReason() == "" || n.failover.LastResort())
}

func (e elections) VoteObstacle() (kind, why string) {
	if !e.n.splitBrain.MayVote() {
		return string(cluster.RefusedDuplicateID), "another process uses this node's ID"
	}
	return e.n.consensus.VoteObstacle()
}

func (e elections) VoteReceived(a cluster.VoteResponse) { e.n.failover.OnVoteResponse(a) }

func (e elections) TermRaised(term uint64) { e.n.failover.OnTermRaised(term) }

func (e elections) VoteAnswered(v cluster.VoteGiven, kind string) {
	e.n.metrics.Vote(v.Granted, kind)
	e.n.failover.OnVoteAnswered(v)
}
