// Package election is the policy of elections: who should lead and why, which survivor becomes candidate first,
// which pre-vote is rejected, when leadership moves. It is pure: no clock, no goroutine, no I/O, and each
// decision has a reason.
//
// Safety does not depend on it. A decision starts an election early or delays one; votes, log checks and terms
// are Raft's.
package election

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"northstar/cluster"
)

// Stagger is the delay between two ranks. With half of it, the second candidate deposed the first one.
const Stagger = 20 * time.Millisecond

// Recheck is when to poll again after too few voters agreed.
const Recheck = 2 * time.Millisecond

// Triggers of elections in records, events and metrics.
const (
	TriggerConnectionLost = "connection_lost"
	TriggerTimeout        = "timeout"
	TriggerDiskStall      = "disk_stall"
	TriggerPriority       = "priority"
	TriggerTransfer       = "transfer"
	TriggerManual         = "manual"
	TriggerEmergency      = "emergency"
)

// Params are the cluster's timeouts.
type Params struct {
	TimeoutMin time.Duration // a leader heard within it is alive
	// Lease: the leader may hold a lease. Even a dead leader counts as failed only after a silence of
	// TimeoutMin, which exceeds any lease with its drift.
	Lease bool
	// ZoneRanks is the place of each member's zone in the order of preferred zones; nil: no order.
	ZoneRanks map[cluster.NodeID]int
}

// ZoneRanks returns the place of each member's zone in zones, 0 being the preferred one. All other zones share the last
// place. It returns nil if no zone is preferred.
func ZoneRanks(zones []string, members []cluster.Member) map[cluster.NodeID]int {
	if len(zones) == 0 {
		return nil
	}
	ranks := make(map[cluster.NodeID]int, len(members))
	for _, m := range members {
		ranks[m.ID] = len(zones)
		if i := slices.Index(zones, m.Zone); i >= 0 {
			ranks[m.ID] = i
		}
	}
	return ranks
}

// zoneRank returns the place of a member's zone; a node without a record comes last.
func (p Params) zoneRank(id cluster.NodeID) int {
	rank, known := p.ZoneRanks[id]
	if !known && p.ZoneRanks != nil {
		return math.MaxInt
	}
	return rank
}

// minSyncSamples is the minimum number of operations for a meaningful percentile. With fewer, p99 is the
// slowest one, and one bad moment after a start would mark the disk as slow for a minute.
const minSyncSamples = 200

// minFewSyncs is the minimum number of operations of a disk that is taken for a faster one. Of fewer than 100, its p99
// is the slowest, so the disk seems slower than it is. A leader whose disk takes 100 ms lets its cluster append no more
// than some 200 times a minute.
const minFewSyncs = 32

// Slow reports whether a working disk is too slow for a leader.
func (p Params) Slow(d cluster.DiskState) bool {
	return d.FsyncP99 > p.TimeoutMin/3 && d.Syncs >= minSyncSamples
}

// ineligibleReason returns why the claiming node must not be chosen as leader, "" if it may.
func ineligibleReason(c cluster.Claim) string {
	switch {
	case !c.IsVoter:
		return "not a voter"
	case c.Priority <= 0:
		return "priority 0"
	case !c.Eligible:
		return "not eligible"
	case c.Draining || c.Lifecycle == cluster.Draining:
		return "draining"
	case c.Lifecycle == cluster.Dead:
		return "refused by the cluster"
	case c.Disk.Stalled:
		return "disk stalled"
	case c.Disk.ReadOnly:
		return "disk full"
	}
	return ""
}

// compare orders two claims by who should lead: < 0 if a should. order is the index in the server list; the
// later server comes first. raft.Raft requests votes in list order and writes its own vote in its turn.
func (p Params) compare(a, b cluster.Claim, order func(cluster.NodeID) int) int {
	return cmp.Or(
		cmp.Compare(b.LastLogTerm, a.LastLogTerm),
		cmp.Compare(b.LastLogIndex, a.LastLogIndex),
		cluster.CompareBool(a.Replaying() > 0, b.Replaying() > 0),
		cluster.CompareBool(p.Slow(a.Disk), p.Slow(b.Disk)),
		cmp.Compare(b.Priority, a.Priority),
		cmp.Compare(p.zoneRank(a.NodeID), p.zoneRank(b.NodeID)),
		cmp.Compare(order(b.NodeID), order(a.NodeID)),
	)
}

// Ranked is one entry of a ranking.
type Ranked struct {
	ID  cluster.NodeID
	Why string
}

// ranksAbove reports whether a should lead rather than b if their logs are equal.
func (p Params) ranksAbove(a, b cluster.Claim, servers []cluster.Server) bool {
	if lessUpToDate(a, b) {
		a.LastLogTerm, a.LastLogIndex = b.LastLogTerm, b.LastLogIndex
	}
	return p.compare(a, b, serverIndex(servers)) < 0
}

// RanksBelow reports whether a ranks below b with the present logs and also with equal logs.
func (p Params) RanksBelow(a, b cluster.Claim, servers []cluster.Server) bool {
	return p.compare(b, a, serverIndex(servers)) < 0 && !p.ranksAbove(a, b, servers)
}

func serverIndex(servers []cluster.Server) (order func(cluster.NodeID) int) {
	return func(id cluster.NodeID) int {
		return slices.IndexFunc(servers, func(s cluster.Server) bool { return s.ID == id })
	}
}

// rank returns the claims of eligible nodes, the best first.
func (p Params) rank(claims []cluster.Claim, servers []cluster.Server) []Ranked {
	order := serverIndex(servers)
	fit := slices.DeleteFunc(slices.Clone(claims), func(c cluster.Claim) bool { return ineligibleReason(c) != "" })
	slices.SortFunc(fit, func(a, b cluster.Claim) int { return p.compare(a, b, order) })
	ranking := make([]Ranked, len(fit))
	for i, c := range fit {
		ranking[i] = Ranked{c.NodeID, p.describe(c)}
	}
	return ranking
}

func (p Params) describe(c cluster.Claim) string {
	s := fmt.Sprintf("log %d/%d, priority %d", c.LastLogTerm, c.LastLogIndex, c.Priority)
	if p.Slow(c.Disk) {
		s += ", slow disk"
	}
	if left := c.Replaying(); left > 0 {
		s += fmt.Sprintf(", %d entries to apply", left)
	}
	return s
}

// isVoter reports whether id counts towards the quorum.
func isVoter(servers []cluster.Server, id cluster.NodeID) bool {
	s, ok := cluster.FindServer(servers, id)
	return ok && s.Suffrage == cluster.Voter
}
