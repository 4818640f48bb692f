// Package health assesses the peers of a node from two sources: Raft's traffic and the claims of the peers. It
// consists of values and pure functions: no goroutine, no clock, no I/O.
package health

import (
	"fmt"
	"slices"
	"time"

	"northstar/cluster"
)

// Input is what Assess depends on.
type Input struct {
	Now  time.Time
	Self cluster.NodeStatus
	// RaftPeers is the contact of Raft with the peers: all of them on the leader, only the leader on the other nodes.
	// It has the refusals on every node.
	RaftPeers  []cluster.PeerStatus
	Claims     map[cluster.NodeID]cluster.ReceivedClaim // the peers' claims about themselves
	MaxSilence time.Duration                            // maximum age of a peer's last claim
}

// Assess returns the statuses of the peers in the order of the configuration. On the leader, contact and lag come from
// Raft, because writes depend on that. A node's contact with the leader also comes from Raft. All else comes from the
// claims, and the end of the log is the highest index in any claim of a connected node: one that has gone may have had
// entries that are in no other log.
func Assess(in Input) []cluster.PeerStatus {
	end := in.Self.LastLogIndex
	for _, s := range in.Claims {
		if s.Connected {
			end = max(end, s.Claim.LastLogIndex)
		}
	}
	peers := make([]cluster.PeerStatus, 0, len(in.Self.Servers))
	for _, s := range in.Self.Servers {
		if s.ID != in.Self.NodeID {
			peers = append(peers, in.peer(s.ID, end))
		}
	}
	return peers
}

// peer assesses one peer. end is the end of the log.
func (in Input) peer(id cluster.NodeID, end uint64) cluster.PeerStatus {
	seen := in.Claims[id]
	claim, heard := seen.Claim, !seen.At.IsZero() // the zero Claim reports nothing
	p := cluster.PeerStatus{ID: id}
	if i := slices.IndexFunc(in.RaftPeers, func(p cluster.PeerStatus) bool { return p.ID == id }); i >= 0 {
		p = in.RaftPeers[i]
		p.Reasons = slices.Clone(p.Reasons)
	}
	if in.Self.Role != cluster.Leader && heard {
		p.LagEntries = end - min(end, claim.LastLogIndex)
	}
	if seen.Connected {
		p.LagEntries = max(p.LagEntries, claim.Replaying())
	}
	if in.Self.Role != cluster.Leader && id != in.Self.LeaderID {
		if !heard {
			p.Reasons = append(p.Reasons, "not heard from yet")
		} else {
			p.Contacted, p.LastContact = true, in.Now.Sub(seen.At)
			// A node without a leader probes its peers, and may have recorded the silence itself.
			if p.LastContact > in.MaxSilence && !p.Silent {
				p.AddSilence(p.LastContact)
			}
		}
	}
	if claim.Disk.Stalled {
		p.Reasons = append(p.Reasons, "disk is stalled")
	}
	if claim.Disk.ReadOnly {
		p.Reasons = append(p.Reasons, "disk is full: read-only")
	}
	if claim.ServiceRefused {
		p.Reasons = append(p.Reasons, "is part of a split brain and refuses service")
	}
	if claim.Draining && p.TransferBlocked == "" {
		p.TransferBlocked = fmt.Sprintf("node %s is draining", id) // it rejects a transfer
	}
	p.Healthy = len(p.Reasons) == 0
	return p
}
