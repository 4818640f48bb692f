package failover

import (
	"context"
	"fmt"
	"time"

	"northstar/cluster"
	"northstar/election"
)

// announceTime limits how long AnnounceTransfer waits for the target's response.
const announceTime = 20 * time.Millisecond

// AnnounceTransfer notifies h.To that this node, the leader, transfers leadership to it. The notice is part of
// this node's claim until retract is called. One transfer at a time.
func (c *Controller) AnnounceTransfer(ctx context.Context, h cluster.TransferNotice) (retract func()) {
	set := func(h cluster.TransferNotice) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.handover = h
	}
	set(h)
	// The request carries this node's claim.
	ctx, cancel := context.WithTimeout(ctx, announceTime)
	defer cancel()
	c.deps.Peers.Poll(ctx, []cluster.NodeID{h.To})
	return func() { set(cluster.TransferNotice{}) }
}

// ApproveTimeoutNow decides about a TimeoutNow from the leader of that term. It returns why this node rejects it, or
// "". The message may be old, and the transfer cancelled: therefore the leader's notice must be recent, or this node
// polls the leader. A process that has just run again reads an old notice like a recent one, so it polls, too.
func (c *Controller) ApproveTimeoutNow(ctx context.Context, from cluster.NodeID, term uint64) (refuse string) {
	now := time.Now()
	received := c.deps.Peers.Claims()[from]
	recent := now.Sub(received.At) < c.cfg.TimeoutMin && !c.watch.hadStopped(now)
	if !c.announcesTransfer(received.Claim, term) || !recent {
		received = c.freshClaim(ctx, from)
	}
	if !c.announcesTransfer(received.Claim, term) {
		return fmt.Sprintf("node %s does not announce a transfer to this node", from)
	}
	h := received.Claim.Handover
	c.candidacies.begin(CandidacyRecord{
		Term: term + 1, Trigger: h.Trigger, Reason: h.Reason, Operator: h.Operator, Began: now, LeaderlessSince: now,
	})
	return ""
}

// freshClaim polls a peer for its claim, for at most TimeoutMin. While the monitor connection with the
// peer is down, it waits for the next one: TimeoutNow comes by another connection and may be faster.
func (c *Controller) freshClaim(ctx context.Context, peer cluster.NodeID) cluster.ReceivedClaim {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.TimeoutMin)
	defer cancel()
	for {
		changed := c.deps.Peers.ClaimsChanged()
		if received, ok := c.deps.Peers.Poll(ctx, []cluster.NodeID{peer})[peer]; ok {
			return received
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return cluster.ReceivedClaim{}
		}
	}
}

// announcesTransfer reports whether the claim is of a leader of that term that transfers leadership to this node.
func (c *Controller) announcesTransfer(leader cluster.Claim, term uint64) bool {
	return leader.Role == cluster.Leader && leader.Term == term && leader.Handover.To == c.cfg.Self
}

// ReclaimLeadership starts an election after this node transferred leadership to a node that does not lead.
func (c *Controller) ReclaimLeadership(ctx context.Context, term uint64, h cluster.TransferNotice) error {
	now := time.Now()
	reason := fmt.Sprintf("node %s did not take over; node %s starts a new election", h.To, c.cfg.Self)
	if h.Reason != "" {
		reason += " (" + h.Reason + ")"
	}
	c.candidacies.begin(CandidacyRecord{
		Term: term + 1, Trigger: h.Trigger, Reason: reason, Operator: h.Operator, Began: now, LeaderlessSince: now,
	})
	_, err := c.deps.Raft().StartElection(ctx, term, cluster.CauseTransferFailed)
	return err
}

// MayIgnoreLeader reports whether this voter has its own evidence that its leader failed. Then a candidate's
// vote need not wait until raft.Raft drops the leader. It does not block.
func (c *Controller) MayIgnoreLeader(_ cluster.NodeID, _ uint64, _ time.Time) bool {
	return c.cfg.Fast && election.MayIgnoreLeader(c.deps.Claim(), c.params())
}

// VetoPreVote returns why this node denies a candidate its pre-vote, "" to let Raft decide. It does not block.
func (c *Controller) VetoPreVote(candidate cluster.NodeID, now time.Time) (refuse string) {
	mine := c.deps.Claim()
	var contact time.Time
	if mine.LeaderContactAge >= 0 {
		contact = now.Add(-mine.LeaderContactAge)
	}
	_, reason := election.MayPreVote(election.PreVoteInput{
		Now: now, Candidate: candidate, LastContact: contact, Servers: c.deps.Consensus.Status().Servers,
		Mine: mine, Claims: c.deps.Peers.Claims(), Params: c.params(),
	})
	return reason
}

// LastResort reports whether this node, drained or not eligible, may start an election after all. It does not block.
func (c *Controller) LastResort() bool {
	mine, now := c.deps.Claim(), time.Now()
	if mine.LeaderID != "" {
		return false
	}
	leaderless := now.Sub(c.began) // a node that has just started has not watched for longer
	for _, heard := range []time.Duration{mine.LeaderSilence, mine.LeaderContactAge} {
		if heard >= 0 {
			leaderless = min(leaderless, heard)
		}
	}
	s := election.ClusterPoll{
		Servers: c.deps.Consensus.Status().Servers, Mine: mine,
		Responses: map[cluster.NodeID]cluster.ReceivedClaim{}, Params: c.params(),
	}
	for id, seen := range c.deps.Peers.Claims() {
		if seen.Connected && now.Sub(seen.At) < leaderless {
			s.Responses[id] = seen
		}
	}
	return s.LastResort(leaderless)
}
