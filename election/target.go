package election

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"northstar/cluster"
)

// CaughtUp is the maximum lag of a target, in log entries: what is in flight under load.
const CaughtUp = 16

// Peer is what a leader knows of another voter.
type Peer struct {
	Member         cluster.Member
	Healthy        bool
	Reasons        []string // why it is not healthy
	LagEntries     uint64
	NoTransfer     string    // why leadership cannot be transferred to it; "": it can
	FitSince       time.Time // since when it has been fit without interruption; zero: it is not
	Disk           cluster.DiskState
	DiskKnown      bool // Disk is from a recent claim
	IsVoter        bool
	SelfIneligible bool // its claim says that it is ineligible: draining, or a bad disk
}

// Fit reports whether a peer could lead now, and why not.
func (p Peer) Fit() (ok bool, reason string) {
	switch {
	case !p.IsVoter:
		return false, "not a voter"
	case p.Member.Priority <= 0:
		return false, "priority 0"
	case !p.Member.Eligible:
		return false, "not eligible"
	case p.Member.Lifecycle != cluster.Active:
		return false, string(p.Member.Lifecycle)
	case !p.Healthy:
		return false, "not healthy: " + strings.Join(p.Reasons, "; ")
	case p.SelfIneligible:
		return false, "its claim says that it is not eligible"
	case p.DiskKnown && (p.Disk.Stalled || p.Disk.ReadOnly):
		return false, "its disk is stalled or full"
	case p.NoTransfer != "":
		return false, p.NoTransfer
	case p.LagEntries > CaughtUp:
		return false, fmt.Sprintf("%d entries behind", p.LagEntries)
	}
	return true, ""
}

// LeaderView is what a leader uses to decide whether another node should lead.
type LeaderView struct {
	Now   time.Time
	Self  cluster.Member
	Peers []Peer // in any order
	// Delay is how long a better target must have been fit.
	Delay time.Duration
	// NotBefore is when the cooldown after the last attempt ends.
	NotBefore time.Time
	Paused    bool
	Disk      cluster.DiskState // of this node
	// Left is the node that leadership has left for its slow disk, less than SlowDiskInterval ago; "": none.
	Left   cluster.NodeID
	Params Params
}

// comparePlace orders two members by where the leader should be: < 0 if a should lead rather than b.
func (p Params) comparePlace(a, b cluster.Member) int {
	return cmp.Or(cmp.Compare(b.Priority, a.Priority), cmp.Compare(p.zoneRank(a.ID), p.zoneRank(b.ID)))
}

// PriorityTarget returns a node with a higher priority, or with the same one in a preferred zone, that should take
// over, or "", and the reason.
func PriorityTarget(in LeaderView) (target cluster.NodeID, reason string) {
	var better []Peer
	var why []string
	for _, p := range in.Peers {
		if in.Params.comparePlace(p.Member, in.Self) >= 0 {
			continue
		}
		fit, unfit := p.Fit()
		switch {
		case !fit:
			why = append(why, fmt.Sprintf("%s: %s", p.Member.ID, unfit))
		case p.Member.ID == in.Left:
			why = append(why, fmt.Sprintf("%s: its disk was slow less than %v ago", p.Member.ID, SlowDiskInterval))
		case p.DiskKnown && in.Params.Slow(p.Disk):
			why = append(why, fmt.Sprintf("%s: its disk is slow (p99 %v)", p.Member.ID, round(p.Disk.FsyncP99)))
		case p.DiskKnown && muchSlower(p.Disk, in.Disk):
			why = append(why, fmt.Sprintf("%s: its disk is slower than this one (p99 %v against %v)", p.Member.ID,
				round(p.Disk.FsyncP99), round(in.Disk.FsyncP99)))
		case p.FitSince.IsZero() || in.Now.Sub(p.FitSince) < in.Delay:
			why = append(why, fmt.Sprintf("%s: fit for less than %v", p.Member.ID, in.Delay))
		default:
			better = append(better, p)
		}
	}
	switch {
	case len(better) == 0 && len(why) == 0:
		return "", "no node has a higher priority" + in.Params.orZone()
	case len(better) == 0:
		slices.Sort(why)
		return "", strings.Join(why, "; ")
	case in.Paused:
		return "", "automatic failover is paused"
	case in.Now.Before(in.NotBefore):
		return "", fmt.Sprintf("cooling down for %v", round(in.NotBefore.Sub(in.Now)))
	}
	best := in.Params.preferred(better)
	if best.Member.Priority == in.Self.Priority {
		return best.Member.ID, fmt.Sprintf("node %s is in zone %q, which is preferred to %q of the leader %s; fit for %v",
			best.Member.ID, best.Member.Zone, in.Self.Zone, in.Self.ID, round(in.Now.Sub(best.FitSince)))
	}
	return best.Member.ID, fmt.Sprintf("node %s has priority %d, the leader %s %d; fit for %v", best.Member.ID,
		best.Member.Priority, in.Self.ID, in.Self.Priority, round(in.Now.Sub(best.FitSince)))
}

// orZone completes a reason about priorities.
func (p Params) orZone() string {
	if p.ZoneRanks == nil {
		return ""
	}
	return ", or the same one in a preferred zone"
}

// preferred returns the best placed peer, and of equal ones that with the least lag.
func (p Params) preferred(peers []Peer) Peer {
	return slices.MinFunc(peers, func(a, b Peer) int {
		return cmp.Or(p.comparePlace(a.Member, b.Member), cmp.Compare(a.LagEntries, b.LagEntries),
			cmp.Compare(a.Member.ID, b.Member.ID))
	})
}

// FullDiskTarget returns the node that should take over because this leader's disk is full, or "", and the reason.
func FullDiskTarget(in LeaderView, disk cluster.DiskState) (target cluster.NodeID, reason string) {
	if !disk.ReadOnly {
		return "", "there is space on the disk"
	}
	var able []Peer
	for _, p := range in.Peers {
		if fit, _ := p.Fit(); fit {
			able = append(able, p)
		}
	}
	switch {
	case len(able) == 0:
		return "", "the disk is full, and no other voter is fit to lead"
	case in.Paused:
		return "", "automatic failover is paused"
	}
	return in.Params.preferred(able).Member.ID, fmt.Sprintf("the disk of the leader %s is full: it can take no writes",
		in.Self.ID)
}

// maxCooldown limits the pause after repeated failures to transfer leadership.
const maxCooldown = 10 * time.Minute

// Cooldown returns the pause after an attempt to move leadership: the delay, twice the last one after a failure.
func Cooldown(last, delay time.Duration, worked bool) time.Duration {
	if worked || last <= 0 {
		return delay
	}
	return min(2*last, max(maxCooldown, delay))
}

// Limits for a leader that transfers leadership because of its slow disk.
const (
	slowFor          = 90 * time.Second // longer than one bad moment affects the p99 of a minute
	SlowDiskInterval = 10 * time.Minute // between two such transfers in the cluster, and until a preferred node returns
	slowFactor       = 4                // how much faster the other disk must be
	backFactor       = 2                // how much slower a preferred node's disk may not be
	// noticeable is the least time of a sync for which leadership moves.
	noticeable = 5 * time.Millisecond
)

// slowDiskReason begins the reason of a transfer by SlowDiskTarget.
const slowDiskReason = "the leader's disk is slow: "

// IsSlowDisk reports whether an election was a transfer by SlowDiskTarget.
func IsSlowDisk(trigger, reason string) bool {
	return trigger == TriggerDiskStall && strings.HasPrefix(reason, slowDiskReason)
}

// muchSlower reports whether the disk of a preferred node is so much slower than this leader's that leadership would
// soon move back.
func muchSlower(its, own cluster.DiskState) bool {
	return its.Syncs >= minSyncSamples && own.Syncs >= minSyncSamples && its.FsyncP99 >= noticeable &&
		its.FsyncP99 >= backFactor*own.FsyncP99
}

// OwnDisk is what a leader knows of its own disk.
type OwnDisk struct {
	cluster.DiskState
	SlowSince time.Time // since when it has been slow without interruption; zero: it is not
	Moved     time.Time // the last transfer for a slow disk, by any node; zero: never
}

// SlowDiskTarget returns the node that should take over because only this leader's disk is slow, or "", and why.
func SlowDiskTarget(in LeaderView, own OwnDisk) (target cluster.NodeID, reason string) {
	disk := own.DiskState
	healthier, measured := in.withDisksBelow(disk.RecentSync), fmt.Sprintf("median %v against p99",
		round(disk.RecentSync))
	if disk.RecentSync < noticeable || len(healthier) == 0 {
		if !in.Params.Slow(disk) || own.SlowSince.IsZero() {
			return "", "the disk is not slow"
		}
		if slow := in.Now.Sub(own.SlowSince); slow < slowFor {
			return "", fmt.Sprintf("the disk has been slow for %v only", round(slow))
		}
		healthier, measured = in.withDisksBelow(disk.FsyncP99), fmt.Sprintf("p99 %v against", round(disk.FsyncP99))
	}
	switch {
	case len(healthier) == 0:
		return "", fmt.Sprintf("the disk is slow (%v), and no other fit voter has one that is much faster",
			round(disk.FsyncP99))
	case in.Paused:
		return "", "automatic failover is paused"
	case !own.Moved.IsZero() && in.Now.Sub(own.Moved) < SlowDiskInterval:
		return "", fmt.Sprintf("leadership was moved for a slow disk %v ago", round(in.Now.Sub(own.Moved)))
	case in.Now.Before(in.NotBefore):
		return "", fmt.Sprintf("cooling down for %v", round(in.NotBefore.Sub(in.Now)))
	}
	best := slices.MinFunc(healthier, func(a, b Peer) int {
		return cmp.Or(in.Params.comparePlace(a.Member, b.Member), cmp.Compare(a.Disk.FsyncP99, b.Disk.FsyncP99),
			cmp.Compare(a.Member.ID, b.Member.ID))
	})
	return best.Member.ID, fmt.Sprintf("%s%s %v on node %s", slowDiskReason, measured,
		round(best.Disk.FsyncP99), best.Member.ID)
}

// withDisksBelow returns the fit voters whose syncs are much faster than d, by enough of them.
func (in LeaderView) withDisksBelow(d time.Duration) (faster []Peer) {
	for _, peer := range in.Peers {
		fit, _ := peer.Fit()
		if fit && peer.DiskKnown && !peer.FitSince.IsZero() && peer.Disk.Syncs >= minFewSyncs &&
			peer.Disk.FsyncP99*slowFactor <= d {
			faster = append(faster, peer)
		}
	}
	return faster
}
