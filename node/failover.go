package node

import (
	"context"
	"time"

	"northstar/cluster"
	"northstar/consensus"
	"northstar/failover"
	"northstar/telemetry"
)

// buildFailover builds the failover controller and its leader tasks.
func (n *Node) buildFailover() {
	c, lease := n.cfg, n.consensusConfig()
	n.failover = failover.New(failover.Config{
		Self: c.ID, Fast: c.Failover.Fast, TakeoverDelay: c.Failover.TakeoverDelay,
		TimeoutMin: c.Election.TimeoutMin, TimeoutMax: c.Election.TimeoutMax, Lease: c.Election.Lease,
		LeaseWait: lease.LeaseWait(),
	}, failover.Deps{
		Claim: n.transport.Claim, Peers: n.transport, Raft: func() failover.Raft { return n.transport.Raft() },
		Consensus: nodeWithHealth{n.consensus, n}, Transfer: n.transfer, Event: n.journal.Append, Logger: n.log,
	})
	n.consensus.AddLeaderTask(n.failover.MonitorLeadership)
	n.consensus.AddLeaderTask(n.handOverIfIneligible)
}

// campaignAgain starts an election after a transfer that left the cluster without a leader.
func (n *Node) campaignAgain(ctx context.Context, term uint64, h cluster.TransferNotice) error {
	return n.failover.ReclaimLeadership(ctx, term, h)
}

// claim returns this node's claim for its peers.
func (n *Node) claim() cluster.Claim {
	c := n.consensus.Claim()
	n.failover.AnnotateClaim(&c)
	c.ServiceRefused, c.DuplicateIDs = n.splitBrain.Refusing() != "", n.splitBrain.DuplicateIDs()
	return c
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
	n.lastResort.Store(f.Trigger == "" && mayBeBarred(n.ownRecord()))
	return consensus.ElectionFacts{
		Trigger: f.Trigger, Reason: f.Reason, Operator: f.Operator, OverLiveLeader: f.Ordered, StartedAt: f.Began,
		LeaderlessSince: f.LeaderlessSince, Votes: f.Votes,
	}
}

// election counts and records an election in which this node was a candidate.
func (n *Node) election(e consensus.Election) {
	result := telemetry.ResultLost
	if e.Won {
		result = telemetry.ResultWon
	} else if !addElectionCause(&e, n.failover.Facts(e.Term)) && !(elections{n}).MayStartElection() {
		return // Raft's timer made it a candidate, and its vote requests were not sent
	}
	if e.Open {
		n.journal.Warn(openElectionEvent(e))
		return
	}
	var how failover.Timeline
	if f := n.failover.Facts(e.Term); f.Term == e.Term && e.Won {
		how = f.Steps
	}
	n.metrics.Election(e.Trigger, result, e.Duration, e.Leaderless)
	if e.Won && e.Trigger != "startup" && e.Trigger != "transfer" {
		n.metrics.Failover(e.Trigger)
	}
	n.journal.Append(electionEvent(e, result, failoverPhases(how, e.LedAt, time.Now())))
}

// addElectionCause adds cause and votes to a lost candidacy. It returns false if the facts are of an earlier
// candidacy.
func addElectionCause(e *consensus.Election, f failover.CandidacyRecord) bool {
	if f.Term == 0 || f.Term < e.FromTerm {
		return false
	}
	e.Votes, e.Operator = f.Votes, f.Operator
	if e.Open {
		e.Term = f.Term
	}
	if f.Trigger != "" {
		e.Trigger, e.Reason = f.Trigger, f.Reason
	}
	return true
}

// failoverPhases returns how long after the detection each phase of a failover was reached, for people and
// benchmarks. It returns nil if the election was not a failover.
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
