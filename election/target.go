package election

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"northstar/cluster"
)

// CaughtUp is how many log entries a node may be behind the leader to be fit to
// take over: what is in flight under load.
const CaughtUp = 16

// Peer is what a leader knows of one voter other than itself.
type Peer struct {
	Member         cluster.Member
	Healthy        bool
	Reasons        []string // why not
	LagEntries     uint64
	NoTransfer     string    // why leadership cannot be handed to it; "": it can
	FitSince       time.Time // since when it has been fit without a break; zero: it is not
	Disk           cluster.DiskState
	DiskKnown      bool // Disk is a recent word of that node
	Connected      bool
	IsVoter        bool
	SelfIneligible bool // it says that it may not stand: it drains, or its disk is sick
}

// Fit says whether a peer could lead now, and why not.
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
		return false, "it says that it may not lead"
	case p.DiskKnown && (p.Disk.Stalled || p.Disk.ReadOnly):
		return false, "its disk is stalled or full"
	case p.NoTransfer != "":
		return false, p.NoTransfer
	case p.LagEntries > CaughtUp:
		return false, fmt.Sprintf("%d entries behind", p.LagEntries)
	}
	return true, ""
}

// LeaderView is what a leader looks at when it asks itself whether another node
// should lead.
type LeaderView struct {
	Now   time.Time
	Self  cluster.Member
	Peers []Peer // in any order
	// Delay is how long a better placed node has to be fit.
	Delay time.Duration
	// NotBefore is when the cooldown after the last attempt ends.
	NotBefore time.Time
	Paused    bool
	Params    Params
}

// PriorityTarget gives the node that leadership should be moved to because it has a
// higher priority than this leader, "" when there is none, and the reason.
func PriorityTarget(in LeaderView) (target cluster.NodeID, reason string) {
	var better []Peer
	var why []string
	for _, p := range in.Peers {
		if p.Member.Priority <= in.Self.Priority {
			continue
		}
		fit, unfit := p.Fit()
		switch {
		case !fit:
			why = append(why, fmt.Sprintf("%s: %s", p.Member.ID, unfit))
		case p.DiskKnown && in.Params.Slow(p.Disk):
			why = append(why, fmt.Sprintf("%s: its disk is slow (p99 %v)", p.Member.ID, round(p.Disk.FsyncP99)))
		case p.FitSince.IsZero() || in.Now.Sub(p.FitSince) < in.Delay:
			why = append(why, fmt.Sprintf("%s: fit for less than %v", p.Member.ID, in.Delay))
		default:
			better = append(better, p)
		}
	}
	switch {
	case len(better) == 0 && len(why) == 0:
		return "", "no node has a higher priority"
	case len(better) == 0:
		slices.Sort(why)
		return "", strings.Join(why, "; ")
	case in.Paused:
		return "", "automatic failover is paused"
	case in.Now.Before(in.NotBefore):
		return "", fmt.Sprintf("cooling down for %v", round(in.NotBefore.Sub(in.Now)))
	}
	best := preferred(better)
	return best.Member.ID, fmt.Sprintf("node %s has priority %d, the leader %s %d; fit for %v", best.Member.ID, best.Member.Priority, in.Self.ID, in.Self.Priority, round(in.Now.Sub(best.FitSince)))
}

// ranksAbove is the one of the highest priority, and of those the least behind.
func preferred(peers []Peer) Peer {
	return slices.MinFunc(peers, func(a, b Peer) int {
		return cmp.Or(cmp.Compare(b.Member.Priority, a.Member.Priority), cmp.Compare(a.LagEntries, b.LagEntries), cmp.Compare(a.Member.ID, b.Member.ID))
	})
}

// FullDiskTarget gives the node that leadership should be moved to because this
// leader's disk has too little space left to take writes, "" when there is none,
// and the reason.
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
	return preferred(able).Member.ID, fmt.Sprintf("the disk of the leader %s is full: it can take no writes", in.Self.ID)
}

// maxCooldown bounds how rarely a take-over that keeps failing is tried.
const maxCooldown = 10 * time.Minute

// Cooldown is how long to wait after an attempt to move leadership: the delay
// after one that worked, and twice as long after each that did not.
func Cooldown(last, delay time.Duration, worked bool) time.Duration {
	if worked || last <= 0 {
		return delay
	}
	return min(2*last, max(maxCooldown, delay))
}

// Slow disks: when a leader with a slow one hands over.
const (
	slowFor          = 90 * time.Second // longer than one bad moment stays in the p99 of a minute
	slowDiskInterval = 10 * time.Minute // between two such hand-overs in the cluster
	slowFactor       = 4                // the other disk has to be so much faster
)

// OwnDisk is what a leader knows of its own disk.
type OwnDisk struct {
	cluster.DiskState
	SlowSince time.Time // since when it has been slow without a break; zero: it is not
	Moved     time.Time // when leadership was last moved for a slow disk, anywhere; zero: never
}

// SlowDiskTarget gives the node that leadership should be moved to because this
// leader's disk is slow and that node's is not, "" when there is none, and the
// reason.
func SlowDiskTarget(in LeaderView, own OwnDisk) (target cluster.NodeID, reason string) {
	disk := own.DiskState
	if !in.Params.Slow(disk) || own.SlowSince.IsZero() {
		return "", "the disk is not slow"
	}
	if slow := in.Now.Sub(own.SlowSince); slow < slowFor {
		return "", fmt.Sprintf("the disk has been slow for %v only", round(slow))
	}
	var healthier []Peer
	for _, peer := range in.Peers {
		fit, _ := peer.Fit()
		if fit && peer.DiskKnown && !peer.FitSince.IsZero() && peer.Disk.FsyncP99*slowFactor <= disk.FsyncP99 {
			healthier = append(healthier, peer)
		}
	}
	switch {
	case len(healthier) == 0:
		return "", fmt.Sprintf("the disk is slow (%v), and no other fit voter has one that is much faster", round(disk.FsyncP99))
	case in.Paused:
		return "", "automatic failover is paused"
	case !own.Moved.IsZero() && in.Now.Sub(own.Moved) < slowDiskInterval:
		return "", fmt.Sprintf("leadership was moved for a slow disk %v ago", round(in.Now.Sub(own.Moved)))
	case in.Now.Before(in.NotBefore):
		return "", fmt.Sprintf("cooling down for %v", round(in.NotBefore.Sub(in.Now)))
	}
	best := slices.MinFunc(healthier, func(a, b Peer) int {
		return cmp.Or(cmp.Compare(b.Member.Priority, a.Member.Priority), cmp.Compare(a.Disk.FsyncP99, b.Disk.FsyncP99), cmp.Compare(a.Member.ID, b.Member.ID))
	})
	return best.Member.ID, fmt.Sprintf("the leader's disk is slow: p99 %v against %v on node %s", round(disk.FsyncP99), round(best.Disk.FsyncP99), best.Member.ID)
}
