package health

import (
	"slices"
	"strings"
	"testing"
	"time"

	"northstar/cluster"
)

var now = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)

const limit = 600 * time.Millisecond

// input is node n1's knowledge of n2 and n3, both healthy.
func input(role cluster.Role, leader cluster.NodeID) Input {
	in := Input{Now: now, MaxSilence: limit, Self: cluster.NodeStatus{
		Identity: cluster.Identity{NodeID: "n1"}, Role: role, LeaderID: leader, LastLogIndex: 90,
		Servers: []cluster.Server{{ID: "n3"}, {ID: "n1"}, {ID: "n2"}},
	}, Claims: map[cluster.NodeID]cluster.ReceivedClaim{}}
	for _, id := range []cluster.NodeID{"n2", "n3"} {
		in.RaftPeers = append(in.RaftPeers, cluster.PeerStatus{ID: id, Healthy: true})
		in.Claims[id] = cluster.ReceivedClaim{
			At: now.Add(-40 * time.Millisecond), Connected: true,
			LastExchange: time.Millisecond, Claim: cluster.Claim{NodeID: id, LastLogIndex: 100},
		}
	}
	in.RaftPeers[0].Contacted, in.RaftPeers[0].LastContact, in.RaftPeers[0].LagEntries = true, 20*time.Millisecond, 7
	return in
}

// assess returns one of the statuses.
func assess(in Input, id cluster.NodeID) cluster.PeerStatus {
	all := Assess(in)
	return all[slices.IndexFunc(all, func(p cluster.PeerStatus) bool { return p.ID == id })]
}

func TestAssess(t *testing.T) {
	seen := func(in *Input, change func(*cluster.ReceivedClaim)) {
		s := in.Claims["n2"]
		change(&s)
		in.Claims["n2"] = s
	}
	tests := []struct {
		name    string
		role    cluster.Role
		leader  cluster.NodeID
		change  func(*Input)
		reason  string // of n2; "" when healthy
		contact time.Duration
		lag     uint64
	}{
		{name: "on a follower, by claims", role: cluster.Follower, leader: "n3", contact: 40 * time.Millisecond},
		{name: "on the leader, by Raft", role: cluster.Leader, leader: "n1", contact: 20 * time.Millisecond, lag: 7},
		{name: "the leader, by Raft", role: cluster.Follower, leader: "n2", contact: 20 * time.Millisecond},
		{
			name: "on the leader, a peer that replays its log", role: cluster.Leader, leader: "n1",
			change: func(in *Input) {
				seen(in, func(s *cluster.ReceivedClaim) { s.Claim.LastLogIndex, s.Claim.AppliedIndex = 5000, 1000 })
			},
			contact: 20 * time.Millisecond, lag: 4000,
		},
		{
			name: "lag behind the longest claimed log", role: cluster.Follower, leader: "n3",
			change:  func(in *Input) { seen(in, func(s *cluster.ReceivedClaim) { s.Claim.LastLogIndex = 41 }) },
			contact: 40 * time.Millisecond, lag: 59,
		},
		{
			name: "not behind what a node had that has gone", role: cluster.Follower, leader: "n2",
			change: func(in *Input) {
				gone := in.Claims["n3"]
				gone.Connected, gone.Claim.LastLogIndex = false, 3000 // uncommitted
				in.Claims["n3"] = gone
			}, contact: 20 * time.Millisecond,
		},
		{
			name: "a node that has gone is not behind with a longer log", role: cluster.Follower, leader: "n3",
			change: func(in *Input) {
				seen(in, func(s *cluster.ReceivedClaim) { s.Connected, s.Claim.LastLogIndex = false, 3000 })
			}, contact: 40 * time.Millisecond,
		},
		{
			name: "lag behind this node's log", role: cluster.Candidate,
			change: func(in *Input) { in.Self.LastLogIndex = 102 }, contact: 40 * time.Millisecond, lag: 2,
		},
		{
			name: "silent", role: cluster.Follower, leader: "n3",
			change: func(in *Input) { seen(in, func(s *cluster.ReceivedClaim) { s.At = now.Add(-limit - 1) }) },
			reason: "silent for 600ms", contact: limit + 1,
		},
		{
			name: "silent for both", role: cluster.Follower,
			change: func(in *Input) {
				in.RaftPeers[0].AddSilence(590 * time.Millisecond)
				seen(in, func(s *cluster.ReceivedClaim) { s.At = now.Add(-limit - 1) })
			}, reason: "silent for 590ms", contact: limit + 1,
		},
		{
			name: "a silent probe does not count on the leader", role: cluster.Leader, leader: "n1",
			change:  func(in *Input) { seen(in, func(s *cluster.ReceivedClaim) { s.At = now.Add(-time.Hour) }) },
			contact: 20 * time.Millisecond, lag: 7,
		},
		{
			name: "not heard from yet", role: cluster.Follower, leader: "n3",
			change: func(in *Input) { delete(in.Claims, "n2") }, reason: "not heard from yet",
			contact: 20 * time.Millisecond,
			lag:     7,
		},
		{
			name: "part of a split brain", role: cluster.Follower, leader: "n3",
			change: func(in *Input) { seen(in, func(s *cluster.ReceivedClaim) { s.Claim.ServiceRefused = true }) },
			reason: "is part of a split brain", contact: 40 * time.Millisecond,
		},
		{
			name: "stalled disk", role: cluster.Leader, leader: "n1",
			change: func(in *Input) { seen(in, func(s *cluster.ReceivedClaim) { s.Claim.Disk.Stalled = true }) },
			reason: "disk is stalled", contact: 20 * time.Millisecond, lag: 7,
		},
		{
			name: "full disk", role: cluster.Follower, leader: "n3",
			change: func(in *Input) { seen(in, func(s *cluster.ReceivedClaim) { s.Claim.Disk.ReadOnly = true }) },
			reason: "read-only", contact: 40 * time.Millisecond,
		},
		{
			name: "refused", role: cluster.Follower, leader: "n3",
			change: func(in *Input) { in.RaftPeers[0].Dead, in.RaftPeers[0].Reasons = true, []string{"was removed"} },
			reason: "was removed", contact: 40 * time.Millisecond,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			in := input(tt.role, tt.leader)
			if tt.change != nil {
				tt.change(&in)
			}
			p := assess(in, "n2")
			if p.Healthy != (tt.reason == "") || len(p.Reasons) > 1 ||
				!strings.Contains(strings.Join(p.Reasons, "; "), tt.reason) {
				t.Errorf("healthy %v for %q, want %q", p.Healthy, p.Reasons, tt.reason)
			}
			if p.LastContact != tt.contact || p.LagEntries != tt.lag {
				t.Errorf("contact %v, lag %d; want %v, %d", p.LastContact, p.LagEntries, tt.contact, tt.lag)
			}
		})
	}
}

// A draining node rejects leadership: it is healthy, but no transfer target.
func TestDrainingPeerIsNoTarget(t *testing.T) {
	in := input(cluster.Leader, "n1")
	if p := assess(in, "n2"); p.TransferBlocked != "" {
		t.Errorf("before: %q", p.TransferBlocked)
	}
	seen := in.Claims["n2"]
	seen.Claim.Draining = true
	in.Claims["n2"] = seen
	if p := assess(in, "n2"); !p.Healthy || p.TransferBlocked != "node n2 is draining" {
		t.Errorf("healthy %v, %q", p.Healthy, p.TransferBlocked)
	}
	in.RaftPeers[0].TransferBlocked = "stuck"
	if p := assess(in, "n2"); p.TransferBlocked != "stuck" {
		t.Errorf("%q", p.TransferBlocked)
	}
}

func TestReportsAreIndependent(t *testing.T) {
	in := input(cluster.Follower, "n3")
	in.RaftPeers[0].Reasons = make([]string, 1, 4)
	r := Assess(in)
	in.RaftPeers[0].Reasons[0] = "changed"
	if r[1].Reasons[0] != "" {
		t.Error("a report shares memory with its input")
	}
	var order []cluster.NodeID
	for _, p := range r {
		order = append(order, p.ID)
	}
	if !slices.Equal(order, []cluster.NodeID{"n3", "n2"}) {
		t.Errorf("order %v, want the configuration's", order)
	}
}
