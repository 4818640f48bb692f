package node

import (
	"fmt"
	"time"

	"northstar/cluster"
	"northstar/failover"
)

// candidacyFacts is what decides whether a node may start an election by itself.
type candidacyFacts struct {
	suffrage   cluster.Suffrage
	stopping   bool
	splitBrain string         // why the node refuses to serve; "": it does not
	consensus  string         // what consensus says against it
	record     cluster.Member // with an empty ID: none
	paused     bool           // automatic failover is, and this node was not the last leader
	backoff    failover.Backoff
}

// electionObstacle returns why this node starts no election by itself, whether or not there is a leader; "" if it may.
func (n *Node) electionObstacle() string {
	return candidacyFacts{
		suffrage: n.consensus.Status().Suffrage(), stopping: n.draining.Load(), splitBrain: n.splitBrain.Refusing(),
		consensus: n.consensus.ElectionObstacle(), record: n.ownRecord(),
		paused:  !n.autoFailoverEnabled() && !n.consensus.LedLast(),
		backoff: n.failover.Backoff(),
	}.obstacle(&n.cfg)
}

// obstacle returns what keeps the node from starting an election. Before it has a record, its configuration
// decides whether it may lead: if no member may, a new cluster elects no leader.
func (f candidacyFacts) obstacle(cfg *Config) string {
	rec := f.record
	if rec.ID == "" {
		rec = cluster.Member{Priority: cfg.Priority, Eligible: cfg.Eligible}
	}
	switch {
	case f.stopping:
		return "it is about to stop"
	case f.splitBrain != "":
		return "it is part of a split brain"
	case f.suffrage != cluster.Voter:
		return "it has no vote"
	case f.consensus != "":
		return f.consensus
	case rec.IneligibleReason() != "":
		return "it " + rec.IneligibleReason()
	case f.paused:
		return "automatic failover is paused"
	case f.backoff.Pause > 0:
		return fmt.Sprintf("it has lost %d elections in a row, and waits %v after each", f.backoff.Lost, f.backoff.Pause)
	}
	return ""
}

// electionObstacleAfter is how long after its start a node may have no leader before it says why it elects none.
const electionObstacleAfter = 5 * time.Second

// electionWarning warns of what keeps a node that knows no leader from starting an election; "" if nothing does, or
// shortly after its start.
func electionWarning(leader cluster.NodeID, obstacle string, running time.Duration) string {
	if leader != "" || obstacle == "" || running < electionObstacleAfter {
		return ""
	}
	return "this node knows no leader and starts no election: " + obstacle
}
