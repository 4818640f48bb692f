package failover

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"northstar/cluster"
	"northstar/election"
)

const (
	// emergencyPollTimeout limits the wait for responses in an emergency, and when a server is known to hang. On a slow
	// network it is some round trips.
	emergencyPollTimeout = 50 * time.Millisecond
	// inFlightPollInterval is how soon a target that lags only by entries in flight is polled again.
	inFlightPollInterval = 2 * time.Millisecond
	maxElectionAttempts  = 3 // elections for one request, if the term moves on
	requestPollInterval  = time.Millisecond
)

// Plan returns what a request would do. It changes nothing; it only polls the other nodes. Plan.Executor is the
// node that must execute it. CodeNoLeader: another node must make the plan.
func (c *Controller) Plan(ctx context.Context, o cluster.LeadershipRequest) (cluster.Plan, error) {
	in := planInput{Request: o, LeaseWait: c.deps.Consensus.LeaseWait(), Zones: c.cfg.Zones}
	if o.Action != cluster.ActionTransfer {
		in.Poll = c.pollForRequest(ctx, o)
	}
	view := c.deps.Consensus.View()
	in.Status, in.Members, in.Paused = c.deps.Consensus.Status(), view.Members(), !view.AutoFailover(time.Now())
	in.Transfers = view.Gaps(election.TriggerTransfer, election.TriggerPriority)
	in.Elections = view.Gaps(election.TriggerConnectionLost, election.TriggerTimeout, election.TriggerManual,
		election.TriggerEmergency)
	if in.Status.Role == cluster.Leader {
		in.Choices = c.deps.Transfer.Choices()
	} else if o.Action == cluster.ActionTransfer {
		return cluster.Plan{}, c.notLeaderError()
	}
	p := plan(in)
	if o.Forwarded && p.Refusal == nil && p.Executor != c.cfg.Self {
		return cluster.Plan{}, c.notLeaderError()
	}
	return p, nil
}

func (c *Controller) notLeaderError() error {
	return cluster.Errorf(cluster.CodeNoLeader, "node %s does not lead", c.cfg.Self)
}

// pollForRequest polls all servers. It repeats the poll for a while if too few respond to elect a leader, since
// connections may be about to be made, or if a target would lose only because of entries in flight.
func (c *Controller) pollForRequest(ctx context.Context, o cluster.LeadershipRequest) election.ClusterPoll {
	wait := c.cfg.TimeoutMin // only a leader that has just begun to hang costs that much
	if o.Action == cluster.ActionEmergency || o.Forwarded || c.deps.Claim().LeaderSilence >= c.cfg.TimeoutMin {
		wait = c.pollAllTimeout()
	}
	began := time.Now()
	poll := time.NewTicker(inFlightPollInterval)
	defer poll.Stop()
	for {
		s := c.pollAll(ctx, wait)
		_, _, lost := s.PredictVotes(o.Target)
		limit := time.Duration(0)
		switch answer, need := s.Responding(); {
		case answer < need:
			limit = c.cfg.TimeoutMax
		case o.Target != "" && lost && slices.ContainsFunc(s.TargetOptions(), func(c cluster.TargetOption) bool {
			return c.ID == o.Target && c.LagEntries <= election.CaughtUp // what a leader may be sending to it
		}):
			limit = c.cfg.TimeoutMin
		}
		if time.Since(began) >= limit {
			return s
		}
		select {
		case <-poll.C:
		case <-ctx.Done():
			return s
		}
	}
}

// pollAll polls all servers, for at most wait, and waits for this node's Raft.
func (c *Controller) pollAll(ctx context.Context, wait time.Duration) election.ClusterPoll {
	servers := c.deps.Consensus.Status().Servers
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	var barrier sync.WaitGroup
	barrier.Go(func() { c.barrier(ctx, wait) })
	seen := c.deps.Peers.Poll(ctx, c.others(servers))
	barrier.Wait()
	return election.ClusterPoll{
		Servers: servers, Mine: c.deps.Claim(), Responses: seen, Params: c.params(),
	}
}

// pollAllTimeout returns how long to wait for the responses to a poll of all servers.
func (c *Controller) pollAllTimeout() time.Duration {
	return max(emergencyPollTimeout, c.pollTimeout(c.others(c.deps.Consensus.Status().Servers)...))
}

// others returns the IDs of the servers, without this node.
func (c *Controller) others(servers []cluster.Server) (ids []cluster.NodeID) {
	for _, sv := range servers {
		if sv.ID != c.cfg.Self {
			ids = append(ids, sv.ID)
		}
	}
	return ids
}

// Execute executes a request by this node's plan for it, and returns once the target is seen leading. It returns the
// errors of Transfer.Execute; for an election also CodeVoteDenied with the votes, CodeElectionFailed and CodeBusy.
func (c *Controller) Execute(ctx context.Context, o cluster.LeadershipRequest,
	p cluster.Plan,
) (cluster.TransferOutcome, error) {
	trigger := triggerOf(o.Action)
	switch {
	case p.Refusal != nil:
		return cluster.TransferOutcome{}, p.Refusal
	case p.Executor != c.cfg.Self:
		return cluster.TransferOutcome{}, c.notLeaderError()
	case p.Method == cluster.MethodTransfer:
		return c.deps.Transfer.Execute(ctx, cluster.TransferNotice{
			To: p.Target, Trigger: trigger, Reason: o.Reason,
			Operator: o.Operator,
		})
	}
	select {
	case c.requestSem <- struct{}{}:
		defer func() { <-c.requestSem }()
	default:
		err := cluster.Errorf(cluster.CodeBusy, "node %s executes another request for an election", c.cfg.Self)
		err.NoRetry = true
		return cluster.TransferOutcome{}, err
	}
	return c.runRequestedElection(ctx, o, p)
}

func triggerOf(action string) string {
	switch action {
	case cluster.ActionFailover:
		return election.TriggerManual
	case cluster.ActionEmergency:
		return election.TriggerEmergency
	}
	return election.TriggerTransfer
}

// runRequestedElection starts an election and waits for its result. It repeats it if others are in a later term.
func (c *Controller) runRequestedElection(ctx context.Context, o cluster.LeadershipRequest,
	p cluster.Plan,
) (cluster.TransferOutcome, error) {
	began, old := time.Now(), c.lastLeader().id
	for try := range maxElectionAttempts {
		if try > 0 {
			if leader, _ := c.pollAll(ctx, c.pollAllTimeout()).Leader(); leader != "" {
				return cluster.TransferOutcome{}, electionFailed("node %s was elected instead", leader)
			}
		}
		mine := c.deps.Claim()
		term := mine.Term
		why := fmt.Sprintf("%s requested by %s: %s", o.Action, o.Operator, o.Reason)
		now := time.Now()
		leaderless := now // unless the leader is silent
		if mine.LeaderSilence >= c.cfg.TimeoutMin {
			leaderless = now.Add(-mine.LeaderSilence)
		}
		c.candidacies.begin(CandidacyRecord{
			Term: term + 1, Trigger: triggerOf(o.Action), Reason: o.Reason, Operator: o.Operator, OverLiveLeader: true,
			Began: now, LeaderlessSince: leaderless,
		})
		c.deps.Event(cluster.Event{
			Type: "failover", Term: term, Message: fmt.Sprintf("node %s starts an election: %s", c.cfg.Self, why),
			Fields: map[string]any{
				"trigger": triggerOf(o.Action), "operator": o.Operator,
				"leader_id": string(p.Leader),
			},
		})
		electionTerm, err := c.deps.Raft().StartElection(ctx, term, cluster.CauseOperator)
		if err != nil {
			if ctx.Err() == nil && c.deps.Claim().Term != term {
				continue
			}
			return cluster.TransferOutcome{}, electionFailed("node %s could not start an election: %w", c.cfg.Self, err)
		}
		again, err := c.awaitRequestedElection(ctx, electionTerm)
		if again {
			continue
		}
		if err != nil {
			return cluster.TransferOutcome{}, err
		}
		st := c.deps.Consensus.Status()
		return cluster.TransferOutcome{
			OldLeader: old, NewLeader: c.cfg.Self, Term: st.Term,
			Duration: time.Since(began),
		}, nil
	}
	return cluster.TransferOutcome{},
		electionFailed("node %s has started %d elections, and the others were in a later term each time", c.cfg.Self,
			maxElectionAttempts)
}

// awaitRequestedElection waits for the end of the election of term. The error is nil when this node leads
// and has committed an entry of its own; again reports that another election may succeed.
func (c *Controller) awaitRequestedElection(ctx context.Context, term uint64) (again bool, err error) {
	// A candidacy takes up to timeout-max, and the first entry follows.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 3*c.cfg.TimeoutMax+c.deps.Consensus.LeaseWait())
	defer cancel()
	look := time.NewTicker(requestPollInterval)
	defer look.Stop()
	for {
		changed := c.deps.Consensus.LeaderChanged()
		st, mine := c.deps.Consensus.Status(), c.deps.Claim()
		switch {
		case st.LeaderID == c.cfg.Self && st.Term >= term && !st.LeaderSince.IsZero():
			return false, nil
		case mine.LeaderID != "" && mine.LeaderID != c.cfg.Self && mine.Term >= term:
			return false, electionFailed("node %s was elected instead (term %d)", mine.LeaderID, mine.Term)
		case mine.Role != cluster.Leader && mine.Term > term:
			return true, nil
		case mine.Role != cluster.Leader && c.candidacies.unwinnable(term, cluster.CountVoters(st.Servers), ""):
			return false, voteDeniedError(c.cfg.Self, c.Facts(term).Votes)
		}
		select {
		case <-changed:
		case <-look.C:
		case <-ctx.Done():
			return false, electionFailed("node %s started an election, and does not lead (term %d)", c.cfg.Self, mine.Term)
		}
	}
}

// electionFailed returns the error of a requested election that was not won.
func electionFailed(format string, args ...any) *cluster.Error {
	return cluster.Errorf(cluster.CodeElectionFailed, format, args...)
}
