// Package election is the policy of elections: who should lead and why, which
// survivor stands first, which pre-vote is refused, when leadership moves. It
// is pure: no clock, no goroutine, no I/O, and every verdict says its reason.
//
// Nothing here is needed for safety. A verdict starts an election early, or has
// one start later; votes, log checks and terms stay Raft's.
package election

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"northstar/cluster"
)

// Stagger is how long each place in the ranking waits behind the one before it.
// At half of it the second deposed the first, who had just been elected.
const Stagger = 20 * time.Millisecond

// Recheck is when to ask again after a poll that found too few who agree.
const Recheck = 2 * time.Millisecond

// Why an election was held, as records, events and metrics name it.
const (
	TriggerConnectionLost = "connection_lost"
	TriggerTimeout        = "timeout"
	TriggerDiskStall      = "disk_stall"
	TriggerPriority       = "priority"
	TriggerTransfer       = "transfer"
	TriggerManual         = "manual"
	TriggerEmergency      = "emergency"
)

// Params are the cluster's times.
type Params struct {
	TimeoutMin time.Duration // a leader heard within it is alive
	// Lease says that the leader may hold a lease: also a dead one counts as
	// lost only when it has been silent for TimeoutMin, which is longer than any
	// lease with its drift.
	Lease bool
}

// minSyncSamples is from how many operations on a percentile says something: of
// fewer, p99 is the slowest of them, and one bad moment of a node that has just
// started would make it slow for a minute.
const minSyncSamples = 200

// Slow says whether a disk works and is too slow for a leader.
func (p Params) Slow(d cluster.DiskState) bool {
	return d.FsyncP99 > p.TimeoutMin/3 && d.Syncs >= minSyncSamples
}

// ineligibleReason says why the node that makes this claim must not be chosen as leader,
// "" when it may.
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

// compare orders two claims by who should lead: < 0 when a should. order is the
// place in the server list, where the later comes first: the library asks for
// votes in that order and writes its own vote in its turn.
func (p Params) compare(a, b cluster.Claim, order func(cluster.NodeID) int) int {
	slow := func(c cluster.Claim) int {
		if p.Slow(c.Disk) {
			return 1
		}
		return 0
	}
	return cmp.Or(
		cmp.Compare(b.LastLogTerm, a.LastLogTerm),
		cmp.Compare(b.LastLogIndex, a.LastLogIndex),
		cmp.Compare(slow(a), slow(b)),
		cmp.Compare(b.Priority, a.Priority),
		cmp.Compare(order(b.NodeID), order(a.NodeID)),
	)
}

// Ranked is one place of a ranking.
type Ranked struct {
	ID  cluster.NodeID
	Why string
}

// ranksAbove says whether a should lead rather than b once its log is as new.
func (p Params) ranksAbove(a, b cluster.Claim, servers []cluster.Server) bool {
	if lessUpToDate(a, b) {
		a.LastLogTerm, a.LastLogIndex = b.LastLogTerm, b.LastLogIndex
	}
	return p.compare(a, b, serverIndex(servers)) < 0
}

// RanksBelow says whether a comes behind b whatever becomes of their logs: by the logs as
// they are, and were they the same.
func (p Params) RanksBelow(a, b cluster.Claim, servers []cluster.Server) bool {
	return p.compare(b, a, serverIndex(servers)) < 0 && !p.ranksAbove(a, b, servers)
}

func serverIndex(servers []cluster.Server) (order func(cluster.NodeID) int) {
	return func(id cluster.NodeID) int {
		return slices.IndexFunc(servers, func(s cluster.Server) bool { return s.ID == id })
	}
}

// rank orders the claims of those who may stand, the best first.
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
	return s
}

// isVoter says whether id counts towards the quorum.
func isVoter(servers []cluster.Server, id cluster.NodeID) bool {
	s, ok := cluster.FindServer(servers, id)
	return ok && s.Suffrage == cluster.Voter
}
