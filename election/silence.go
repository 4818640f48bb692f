package election

import (
	"fmt"
	"maps"
	"time"

	"northstar/cluster"
)

// MinSilence is the shortest silence after which survivors ask each other whether the leader has failed.
const MinSilence = 20 * time.Millisecond

// YieldSilence is that silence of a leader that has said that it sends no appends. What it sent before may arrive
// later.
const YieldSilence = 5 * time.Millisecond

const (
	minMeasured = 30 * time.Millisecond // the lowest measured threshold
	// A threshold is gapFactor/2 times the longest gap between two signs of life.
	gapFactor = 3
	// Gaps are kept by windows, each of so much time in contact with a leader. A window is dropped after maxGapAge.
	gapWindow  = 10 * time.Second
	gapWindows = 12
	maxGapAge  = 10 * time.Minute
	// minContactTime is how long a leader must have been heard before its gaps count. Connections are made then, and
	// those that were cut recover: that tells nothing of the leader.
	minContactTime = time.Second
	// learning is how long a node must have measured gaps before what it measured counts alone.
	learning = time.Second
	// maxPeerAge is how long what another follower has measured counts after it was heard.
	maxPeerAge = 10 * time.Second
	// raiseTime is how long the threshold is TimeoutMin after a needless election.
	raiseTime = 10 * time.Minute
)

// SilenceParams are the settings of a SilenceEstimator.
type SilenceParams struct {
	Fixed      time.Duration // failover.silence; 0: auto
	TimeoutMin time.Duration
	Lease      bool
}

// SilenceEstimator finds for how long this node's leader may be silent, from the gaps between its signs of life.
// The caller passes the time. Not safe for concurrent use.
type SilenceEstimator struct {
	Params SilenceParams

	began   time.Time     // the first sign of life of the present leader; zero: none
	heard   time.Time     // its last one
	stopped time.Duration // for how long this process is known not to have run since then
	windows []gapsSeen
	peers   map[cluster.NodeID]peerThreshold

	raisedUntil time.Time
	raisedBy    uint64 // the newest term of a needless election
}

// gapsSeen is what one window has seen.
type gapsSeen struct {
	until    time.Time // its last sign of life
	longest  time.Duration
	contacts int
	watched  time.Duration
}

// peerThreshold is what another follower has measured.
type peerThreshold struct {
	value time.Duration
	at    time.Time // when it was heard
}

// Follow begins with another leader. Gaps between two leaders' signs of life do not count.
func (e *SilenceEstimator) Follow() { e.began, e.heard, e.stopped = time.Time{}, time.Time{}, 0 }

// HeardFollower records the threshold that another follower of the leader has measured. A node that has not measured
// enough itself begins with it.
func (e *SilenceEstimator) HeardFollower(peer cluster.NodeID, threshold time.Duration, now time.Time) {
	if e.peers == nil {
		e.peers = map[cluster.NodeID]peerThreshold{}
	}
	maps.DeleteFunc(e.peers, func(_ cluster.NodeID, p peerThreshold) bool { return now.Sub(p.at) >= maxPeerAge })
	e.peers[peer] = peerThreshold{threshold, now}
}

// known returns the longest threshold of other followers, at most TimeoutMin, and TimeoutMin if none is known.
func (e *SilenceEstimator) known(now time.Time) (longest time.Duration) {
	for _, p := range e.peers {
		if now.Sub(p.at) < maxPeerAge {
			longest = max(longest, p.value)
		}
	}
	if longest == 0 {
		return e.Params.TimeoutMin
	}
	return min(longest, e.Params.TimeoutMin)
}

// Heard records a sign of life of the leader. The gap before it does not count if this process stopped within it, nor
// while the leader has not been heard for long.
func (e *SilenceEstimator) Heard(now time.Time) {
	if e.began.IsZero() {
		e.began = now
	}
	gap := min(now.Sub(e.heard), e.Params.TimeoutMin)
	counts := now.Sub(e.began) >= minContactTime && gap > 0 && e.stopped == 0
	e.heard, e.stopped = now, 0
	if !counts {
		return
	}
	last := len(e.windows) - 1
	if last < 0 || e.windows[last].watched >= gapWindow {
		if len(e.windows) == gapWindows {
			e.windows = append(e.windows[:0], e.windows[1:]...)
		}
		e.windows = append(e.windows, gapsSeen{})
		last = len(e.windows) - 1
	}
	w := &e.windows[last]
	w.until, w.longest = now, max(w.longest, gap)
	w.contacts++
	w.watched += gap
}

// Stopped records that this process did not run for a while. It is no witness of what the leader did meanwhile.
func (e *SilenceEstimator) Stopped(d time.Duration) { e.stopped += d }

// Needless records the needless election of a term, and reports whether it is news. It raises the threshold for a time.
func (e *SilenceEstimator) Needless(term uint64, now time.Time) (news bool) {
	if term <= e.raisedBy {
		return false
	}
	e.raisedBy, e.raisedUntil = term, now.Add(raiseTime)
	return true
}

// RaisedBy returns the term of the needless election for which the threshold is raised now, 0 if it is not.
func (e *SilenceEstimator) RaisedBy(now time.Time) uint64 {
	if !now.Before(e.raisedUntil) {
		return 0
	}
	return e.raisedBy
}

// Threshold returns for how long the leader may be silent, and why.
func (e *SilenceEstimator) Threshold(now time.Time) SilenceThreshold {
	p := e.Params
	t := SilenceThreshold{Value: p.TimeoutMin}
	for _, w := range e.windows {
		if now.Sub(w.until) < maxGapAge {
			t.Longest, t.Contacts, t.Watched = max(t.Longest, w.longest), t.Contacts+w.contacts, t.Watched+w.watched
		}
	}
	measured := min(max(t.Longest*gapFactor/2, minMeasured), p.TimeoutMin)
	switch {
	case p.Lease:
		t.Source = SilenceLease
	case p.Fixed > 0:
		t.Source, t.Value = SilenceConfigured, p.Fixed
	case e.RaisedBy(now) > 0:
		t.Source, t.RaisedBy, t.RaisedFor = SilenceRaised, e.raisedBy, e.raisedUntil.Sub(now)
	case t.Watched < learning:
		// It comes down, or goes up, with what is measured.
		t.Source, t.Begun = SilenceLearning, e.known(now)
		step := time.Duration(float64(t.Begun-measured) * t.Watched.Seconds() / learning.Seconds())
		t.Value = max(t.Begun-step, measured)
	default:
		t.Source, t.Value = SilenceMeasured, measured
	}
	return t
}

// Limit returns the silence since the leader's last sign of life that counts as its failure. The time in which this
// process did not run comes on top of the threshold, up to twice TimeoutMin in all.
func (e *SilenceEstimator) Limit(now time.Time) time.Duration {
	return min(e.Threshold(now).Value+e.stopped, 2*e.Params.TimeoutMin)
}

// SilenceSource is where a threshold comes from.
type SilenceSource string

// The sources of a threshold.
const (
	SilenceConfigured SilenceSource = "configured" // failover.silence
	SilenceLearning   SilenceSource = "learning"   // few gaps are known: between Begun and the measured value
	SilenceMeasured   SilenceSource = "measured"
	SilenceRaised     SilenceSource = "raised" // TimeoutMin, after a needless election
	SilenceLease      SilenceSource = "lease"  // TimeoutMin, because the leader may have a lease
)

// SilenceThreshold is for how long the leader may be silent, and why.
type SilenceThreshold struct {
	Value    time.Duration
	Source   SilenceSource
	Longest  time.Duration // the longest gap between two signs of life
	Contacts int           // signs of life
	Watched  time.Duration // the time that they took

	Begun time.Duration // while learning: TimeoutMin, or what other followers have measured

	RaisedBy  uint64        // term of the needless election
	RaisedFor time.Duration // how much longer
}

// Reason returns in words where the threshold comes from.
func (t SilenceThreshold) Reason() string {
	seen := fmt.Sprintf("the longest of %d gaps between signs of life in %v was %v", t.Contacts,
		t.Watched.Round(time.Second), round(t.Longest))
	switch t.Source {
	case SilenceConfigured:
		return "failover.silence"
	case SilenceLease:
		return "election.timeout-min, because of election.lease"
	case SilenceRaised:
		return fmt.Sprintf("election.timeout-min for %v more, because the election of term %d was needless",
			t.RaisedFor.Round(time.Second), t.RaisedBy)
	case SilenceLearning:
		return fmt.Sprintf("begun with %v, from other followers or election.timeout-min, until %v are measured: %s",
			round(t.Begun), learning, seen)
	}
	return seen
}

// String returns the threshold with its reason.
func (t SilenceThreshold) String() string { return fmt.Sprintf("%v (%s)", round(t.Value), t.Reason()) }

// SilenceLimit returns the silence from which a claim counts as a report that the leader has failed: the claiming
// node's own limit. A node of an earlier version names none.
func (p Params) SilenceLimit(c cluster.Claim) time.Duration {
	if p.Lease || c.SilenceLimit <= 0 {
		return p.TimeoutMin
	}
	return max(c.SilenceLimit, YieldSilence)
}

// silent reports whether a claim says that the leader has been silent for too long.
func (p Params) silent(c cluster.Claim) bool { return c.LeaderSilence >= p.SilenceLimit(c) }

// Causes of needless elections, for events and metrics.
const (
	NeedlessLate    = "late"    // the leader was heard again before TimeoutMin was over
	NeedlessStopped = "stopped" // its process had stopped for longer than that, as it says itself
)

// NeedlessCause returns why the election was needless whose old leader was silent for so long and was then heard again;
// "" if it was not. A leader that ran, and was heard again only after TimeoutMin, was cut off from the others.
func NeedlessCause(silent time.Duration, stopped bool, timeoutMin time.Duration) string {
	switch {
	case silent < timeoutMin:
		return NeedlessLate
	case stopped:
		return NeedlessStopped
	}
	return ""
}
