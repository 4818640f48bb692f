package health

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"northstar/cluster"
)

// Input is what a judgement is made from.
type Input struct {
	Now  time.Time
	Self cluster.NodeStatus
	// Raft is what Raft's traffic shows of the peers: on the leader of all,
	// elsewhere of the leader only. Refusals are in it on every node.
	Raft  []cluster.PeerStatus
	Seen  map[cluster.NodeID]cluster.Seen // what the peers say of themselves
	Limit time.Duration                   // how long a peer may be silent
}

// Assess makes the report. On the leader, contact and lag are what Raft shows,
// as that is what its writes depend on, and so is any node's contact with the
// leader. Otherwise a node goes by what the peers say of themselves, and takes
// for the end of the log the furthest that it has heard of.
func Assess(in Input) Report {
	r := Report{At: in.Now, Self: in.Self.Disk, Peers: map[cluster.NodeID]Peer{}}
	end := in.Self.LastLogIndex
	for _, s := range in.Seen {
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
	seen := in.Seen[id]
	p := Peer{
		PeerStatus: cluster.PeerStatus{ID: id}, Claimed: !seen.At.IsZero(),
		Claim: seen.Claim, Connected: seen.Connected, RTT: seen.RTT,
	}
	if i := slices.IndexFunc(in.Raft, func(p cluster.PeerStatus) bool { return p.ID == id }); i >= 0 {
		p.PeerStatus = in.Raft[i]
		p.Reasons = slices.Clone(p.Reasons)
	}
	if in.Self.Role != cluster.Leader {
		if p.Claimed {
			p.LagEntries = end - seen.Claim.LastLogIndex
		}
		if id != in.Self.LeaderID {
			p.hear(in.Now, seen.At, in.Limit)
		}
	}
	if p.Claimed && p.Claim.Disk.Stalled {
		p.Reasons = append(p.Reasons, "disk is stalled")
	}
	if p.Claimed && p.Claim.Disk.ReadOnly {
		p.Reasons = append(p.Reasons, "disk is full: read-only")
	}
	if p.Claimed && p.Claim.Refusing {
		p.Reasons = append(p.Reasons, "is part of a split brain and refuses service")
	}
	if p.Claimed && p.Claim.Draining && p.NoTransfer == "" {
		p.NoTransfer = fmt.Sprintf("node %s is draining", id) // it refuses, and may be about to stop
	}
	p.Healthy = len(p.Reasons) == 0
	return p
}

const silentFor = "silent for "

// hear judges by when the peer last said something of itself.
func (p *Peer) hear(now, last time.Time, limit time.Duration) {
	if !p.Claimed {
		p.Reasons = append(p.Reasons, "not heard from yet")
		return
	}
	p.Contacted, p.LastContact = true, now.Sub(last)
	// A node without a leader asks them by itself, and may have found the same.
	known := slices.ContainsFunc(p.Reasons, func(r string) bool { return strings.HasPrefix(r, silentFor) })
	if p.LastContact > limit && !known {
		p.Reasons = append(p.Reasons, silentFor+p.LastContact.Round(time.Millisecond).String())
	}
}
