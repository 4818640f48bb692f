package node

import (
	"time"

	"northstar/cluster"
	"northstar/consensus"
	"northstar/health"
)

// nodeWithHealth is consensus whose Peers also have the health that the peers report about themselves.
type nodeWithHealth struct {
	*consensus.Node
	of *Node
}

// Peers returns what this node knows of the other servers of the configuration.
func (i nodeWithHealth) Peers() []cluster.PeerStatus {
	return health.Assess(health.Input{
		Now: time.Now(), Self: i.Status(), RaftPeers: i.Node.Peers(), Claims: i.of.transport.Claims(),
		MaxSilence: 2 * i.of.cfg.Election.TimeoutMax,
	})
}
