package node

import (
	"time"

	"northstar/cluster"
	"northstar/consensus"
	"northstar/health"
)

// health is what this node knows of the cluster's health now.
func (n *Node) health() health.Report {
	return health.Assess(health.Input{
		Now: time.Now(), Self: n.consensus.Status(), RaftPeers: n.consensus.Peers(), Claims: n.transport.Claims(),
		MaxSilence: 2 * n.cfg.Election.TimeoutMax,
	})
}

// nodeWithHealth is consensus with what the peers say of themselves beside what Raft
// shows of them.
type nodeWithHealth struct {
	*consensus.Node
	of *Node
}

// Peers is what this node knows of the other servers of the configuration.
func (i nodeWithHealth) Peers() []cluster.PeerStatus { return i.of.health().Statuses() }
