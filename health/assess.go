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

// Assess returns the report. On the leader, contact and lag come from Raft, because writes depend on that. A node's
// contact with the leader also comes from Raft. All else comes from the claims, and the end of the log is the
// highest index in any claim.
func Assess(in Input) Report {
	r := Report{At: in.Now, Self: in.Self.Disk, Peers: map[cluster.NodeID]Peer{}}
	end := in.Self.LastLogIndex
	for _, s := range in.Claims {
		end = max(end, s.Claim.LastLogIndex)
	}
	for _, s := range in.Self.Servers {
		if s.ID == in.Self.NodeID {
			continue
		}
		r.Peers[s.ID] = in.peer(s.ID, end)
		r.order = append(r.order, s.ID)
	}
	return r
}

// peer assesses one peer. end is the end of the log.
func (in Input) peer(id cluster.NodeID, end uint64) Peer {
	seen := in.Claims[id]
	p := Peer{
		PeerStatus: cluster.PeerStatus{ID: id}, HasClaim: !seen.At.IsZero(),
		Claim: seen.Claim, Connected: seen.Connected, RTT: seen.LastExchange,
	}
	if i := slices.IndexFunc(in.RaftPeers, func(p cluster.PeerStatus) bool { return p.ID == id }); i >= 0 {
		p.PeerStatus = in.RaftPeers[i]
		p.Reasons = slices.Clone(p.Reasons)
	}
	if in.Self.Role != cluster.Leader {
		if p.HasClaim {
			p.LagEntries = end - seen.Claim.LastLogIndex
		}
		if id != in.Self.LeaderID {
			p.checkContact(in.Now, seen.At, in.MaxSilence)
		}
	}
	if p.HasClaim && p.Claim.Disk.Stalled {
		p.Reasons = append(p.Reasons, "disk is stalled")
	}
	if p.HasClaim && p.Claim.Disk.ReadOnly {
		p.Reasons = append(p.Reasons, "disk is full: read-only")
	}
	if p.HasClaim && p.Claim.ServiceRefused {
		p.Reasons = append(p.Reasons, "is part of a split brain and refuses service")
	}
	if p.HasClaim && p.Claim.Draining && p.TransferBlocked == "" {
		p.TransferBlocked = fmt.Sprintf("node %s is draining", id) // it rejects a transfer
	}
	p.Healthy = len(p.Reasons) == 0
	return p
}

// checkContact adds a reason if the last claim of the peer is too old.
func (p *Peer) checkContact(now, last time.Time, limit time.Duration) {
	if !p.HasClaim {
		p.Reasons = append(p.Reasons, "not heard from yet")
		return
	}
	p.Contacted, p.LastContact = true, now.Sub(last)
	// A node without a leader probes its peers, and may have recorded the silence itself.
	if p.LastContact > limit && !p.Silent {
		p.AddSilence(p.LastContact)
	}
}
