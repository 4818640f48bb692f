package failover

import (
	"time"

	"northstar/cluster"
	"northstar/election"
)

// MayIgnoreLeader reports whether this voter has its own evidence that its leader failed. Then a candidate's
// vote need not wait until raft.Raft drops the leader. It does not block.
func (c *Controller) MayIgnoreLeader(_ cluster.NodeID, _ uint64, _ time.Time) bool {
	return c.cfg.Fast && election.MayIgnoreLeader(c.deps.Claim(), c.cfg.params())
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
		Mine: mine, Claims: c.deps.Peers.Claims(), Params: c.cfg.params(),
	})
	return reason
}

// LastResort reports whether this node, which is drained or not eligible, may start an election: the cluster has
// been without a leader for long, and no other node could win. It does not block.
func (c *Controller) LastResort() bool {
	mine, now := c.deps.Claim(), c.now()
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
		Now: now, Servers: c.deps.Consensus.Status().Servers, Mine: mine,
		Responses: map[cluster.NodeID]cluster.ReceivedClaim{}, Params: c.cfg.params(),
	}
	for id, seen := range c.deps.Peers.Claims() {
		if seen.Connected && now.Sub(seen.At) < leaderless {
			s.Responses[id] = seen
		}
	}
	return s.LastResort(leaderless)
}
