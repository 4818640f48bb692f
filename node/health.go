package node

import (
	"time"

	"northstar/cluster"
	"northstar/consensus"
	"northstar/health"
)

// health returns what this node knows of the cluster's health now.
func (n *Node) health() health.Report {
	return health.Assess(health.Input{
		Now: time.Now(), Self: n.consensus.Status(), RaftPeers: n.consensus.Peers(), Claims: n.transport.Claims(),
		MaxSilence: 2 * n.cfg.Election.TimeoutMax,
	})
}

// nodeWithHealth is consensus whose Peers also have the health that the peers report about themselves.
type nodeWithHealth struct {
	*consensus.Node
	of *Node
}

// Peers returns what this node knows of the other servers of the configuration.
func (i nodeWithHealth) Peers() []cluster.PeerStatus { return i.of.health().Statuses() }
