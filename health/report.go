// Package health judges what a node knows of its peers: from Raft's traffic, and
// from what the peers say of themselves. It holds values and pure functions: no
// goroutine, no clock, no I/O.
package health

import (
	"time"

	"northstar/cluster"
)

// Report is what one node knew of the cluster's health at one moment. It is
// never changed after it was made, and may be read from any goroutine.
type Report struct {
	At    time.Time
	Self  cluster.DiskState
	Peers map[cluster.NodeID]Peer // the other servers of the configuration
	order []cluster.NodeID
}

// Peer is what is known of one other server.
type Peer struct {
	cluster.PeerStatus
	HasClaim  bool // Claim says something
	Claim     cluster.Claim
	Connected bool          // the monitor connection with it stands
	RTT       time.Duration // of the newest exchange; 0 when none was measured
}

// Statuses are the peers' statuses in the order of the configuration.
func (r Report) Statuses() []cluster.PeerStatus {
	all := make([]cluster.PeerStatus, len(r.order))
	for i, id := range r.order {
		all[i] = r.Peers[id].PeerStatus
	}
	return all
}
