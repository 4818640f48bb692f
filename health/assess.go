package health

import (
	"fmt"
	"slices"
	"time"

	"northstar/cluster"
)

// Input is what a judgement is made from.
type Input struct {
	Now  time.Time
	Self cluster.NodeStatus
	// RaftPeers is what Raft's traffic shows of the peers: on the leader of all,
	// elsewhere of the leader only. Refusals are in it on every node.
	RaftPeers  []cluster.PeerStatus
	Claims     map[cluster.NodeID]cluster.ReceivedClaim // what the peers say of themselves
	MaxSilence time.Duration                            // how long a peer may be silent
}

// Assess makes the report. On the leader, contact and lag are what Raft shows,
// as that is what its writes depend on, and so is any node's contact with the
// leader. Otherwise a node goes by what the peers say of themselves, and takes
// for the end of the log the furthest that it has heard of.
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

// peer judges one peer. end is the end of the log.
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
		p.TransferBlocked = fmt.Sprintf("node %s is draining", id) // it refuses, and may be about to stop
	}
	p.Healthy = len(p.Reasons) == 0
	return p
}

// checkContact judges by when the peer last said something of itself.
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
