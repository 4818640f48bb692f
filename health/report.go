// Package health assesses the peers of a node from two sources: Raft's traffic and the claims of the peers. It
// consists of values and pure functions: no goroutine, no clock, no I/O.
package health

import (
	"time"

	"northstar/cluster"
)

// Report is what one node knew about the cluster's health at one moment. It never changes, and any goroutine may
// read it.
type Report struct {
	At    time.Time
	Self  cluster.DiskState
	Peers map[cluster.NodeID]Peer // the other servers of the configuration
	order []cluster.NodeID
}

// Peer is what a node knows about one other server.
type Peer struct {
	cluster.PeerStatus
	HasClaim  bool // Claim is set
	Claim     cluster.Claim
	Connected bool          // the monitor connection is open
	RTT       time.Duration // of the newest exchange; 0: not measured
}

// Statuses returns the statuses of the peers in the order of the configuration.
func (r Report) Statuses() []cluster.PeerStatus {
	all := make([]cluster.PeerStatus, len(r.order))
	for i, id := range r.order {
		all[i] = r.Peers[id].PeerStatus
	}
	return all
}
