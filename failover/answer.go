package failover

import (
	"time"

	"northstar/cluster"
	"northstar/election"
)

// Consent says whether this voter has evidence of its own that its leader is
// gone, so that a candidate's vote need not wait for the leader to be forgotten.
// It does not block.
func (c *Controller) Consent(_ cluster.NodeID, _ uint64, _ time.Time) bool {
	return c.cfg.Fast && election.Consents(c.deps.Claim(), c.cfg.params())
}

// PreVote says why a candidate must not have this node's pre-vote, "" when Raft
// is to decide. It does not block.
func (c *Controller) PreVote(candidate cluster.NodeID, now time.Time) (refuse string) {
	mine := c.deps.Claim()
	var contact time.Time
	if mine.LeaderContactAge >= 0 {
		contact = now.Add(-mine.LeaderContactAge)
	}
	_, reason := election.MayPreVote(election.PreVote{
		Now: now, Candidate: candidate, LastContact: contact, Servers: c.deps.Consensus.Status().Servers,
		Mine: mine, Seen: c.deps.Peers.Claims(), Params: c.cfg.params(),
	})
	return reason
}

// LastResort says whether this node, which is drained, is to stand all the same:
// the cluster has long been without a leader, and nobody else could be elected.
// It does not block.
func (c *Controller) LastResort() bool {
	mine, now := c.deps.Claim(), c.now()
	if mine.LeaderID != "" {
		return false
	}
	leaderless := now.Sub(c.began) // a node that has just started has not looked on for longer
	for _, heard := range []time.Duration{mine.LeaderSilence, mine.LeaderContactAge} {
		if heard >= 0 {
			leaderless = min(leaderless, heard)
		}
	}
	s := election.Survey{
		Now: now, Servers: c.deps.Consensus.Status().Servers, Mine: mine, Seen: map[cluster.NodeID]cluster.Seen{}, Params: c.cfg.params(),
	}
	for id, seen := range c.deps.Peers.Claims() {
		if seen.Connected && now.Sub(seen.At) < leaderless {
			s.Seen[id] = seen
		}
	}
	return s.LastResort(leaderless)
}
