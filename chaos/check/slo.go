package check

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// Leadership is the time in which a node was seen to lead a term.
type Leadership struct {
	Node     string
	Term     uint64
	From, To time.Duration
}

// Run is what was seen of a cluster from its first leader to End.
type Run struct {
	Nodes        int
	Leaderships  []Leadership
	Faults       []FaultInterval // while a node, or all, could not take part
	WriteAcks    []time.Duration // of writes that were asked for all the time, of every node
	LeaderWrites []FaultInterval // from when such a write was asked for until a node acknowledged it as leader; may be empty
	End          time.Duration
}

// What is promised: so much of the elections within ElectionSLO of a majority
// being able to elect, and so much of the time outside failovers with writes.
const (
	ElectionSLO = time.Second
	SLOTarget   = 0.999
)

// recoveryGrace is how long after a fault has ended its consequences may show: a
// follower that had heard nothing stands, and deposes a leader that is well again.
const recoveryGrace = 300 * time.Millisecond

// minOutage is from when on a time without an acknowledged write counts.
const minOutage = 300 * time.Millisecond

// SLOReport sum up runs.
type SLOReport struct {
	Elections []time.Duration `json:"elections"` // each from when a majority could elect until it had
	Failovers time.Duration   `json:"failovers"` // the time that failovers took, until a write was acknowledged
	Total     time.Duration   `json:"total"`     // the time without those
	Down      time.Duration   `json:"down"`      // of that, without a write
	Late      []FaultInterval `json:"-"`         // of one run: the elections that took longer than ElectionSLO, with the leader before each
	Silent    []FaultInterval `json:"-"`         // of one run: the times that Down sums up
}

// Add adds what another run gave.
func (f *SLOReport) Add(o SLOReport) {
	f.Elections = append(f.Elections, o.Elections...)
	f.Failovers, f.Total, f.Down = f.Failovers+o.Failovers, f.Total+o.Total, f.Down+o.Down
}

// ElectionRatio is the part of the elections that was over within ElectionSLO.
func (f *SLOReport) ElectionRatio() float64 {
	soon := 0
	for _, took := range f.Elections {
		if took <= ElectionSLO {
			soon++
		}
	}
	return float64(soon) / float64(max(1, len(f.Elections)))
}

// Available is the part of the time outside failovers in which writes were taken.
func (f *SLOReport) Available() float64 { return 1 - float64(f.Down)/float64(max(1, f.Total)) }

// Violations reports what is less than promised; "" when nothing is.
func (f *SLOReport) Violations() string {
	switch {
	case len(f.Elections) > 0 && f.ElectionRatio() < SLOTarget:
		return fmt.Sprintf("%.3f %% of %d elections within %v of a majority being able to elect, want %.1f %%", 100*f.ElectionRatio(), len(f.Elections), ElectionSLO, 100*SLOTarget)
	case f.Total > 0 && f.Available() < SLOTarget:
		return fmt.Sprintf("writes were taken for %.3f %% of the time outside failovers (not for %v of %v), want %.1f %%", 100*f.Available(), f.Down, f.Total, 100*SLOTarget)
	}
	return ""
}

func (f *SLOReport) String() string {
	took := slices.Sorted(slices.Values(f.Elections))
	if len(took) == 0 {
		return "no elections to measure"
	}
	at := func(q float64) time.Duration { return took[int(q*float64(len(took)-1))].Round(time.Millisecond) }
	return fmt.Sprintf("%d elections, %.3f %% within %v of a majority being able to elect (p50 %v, p99 %v, max %v); writes taken for %.4f %% of %v outside failovers (those: %v)",
		len(took), 100*f.ElectionRatio(), ElectionSLO, at(0.5), at(0.99), at(1), 100*f.Available(), f.Total.Round(time.Second), f.Failovers.Round(time.Millisecond))
}

// MeasureSLO takes the figures of one run.
func MeasureSLO(r Run) (f SLOReport) {
	reigns := r.leadershipsByTerm()
	acks := slices.Sorted(slices.Values(r.WriteAcks))
	if len(reigns) == 0 {
		return f
	}
	without := r.withoutMajority()
	failovers := slices.Clone(without)
	for i, now := range reigns {
		if i > 0 {
			began := max(r.leaderLostAt(reigns[i-1], now), electableSince(without, now.From))
			f.elected(FaultInterval{reigns[i-1].Node, min(began, now.From), now.From})
			failovers = append(failovers, FaultInterval{From: min(began, now.From), To: now.From})
		}
	}
	last := reigns[len(reigns)-1]
	if began := max(r.leaderLostAt(last, Leadership{From: r.End}), electableSince(without, r.End)); r.End-began > ElectionSLO {
		f.elected(FaultInterval{last.Node, began, r.End}) // nobody has followed
		failovers = append(failovers, FaultInterval{From: began, To: r.End})
	}
	for i := range failovers { // it is over with the first write
		to := r.End
		if at, _ := slices.BinarySearch(acks, failovers[i].To); at < len(acks) {
			to = acks[at]
		}
		failovers[i].To = to
	}
	failovers = append(failovers, r.avoidedFailovers(reigns)...)
	f.outside(mergeIntervals(failovers), append(acks, r.End), reigns[0].From, r.End)
	return f
}

// elected notes an election that took so long, after a node had led.
func (f *SLOReport) elected(h FaultInterval) {
	f.Elections = append(f.Elections, h.To-h.From)
	if h.To-h.From > ElectionSLO {
		f.Late = append(f.Late, h)
	}
}

// leadershipsByTerm returns the leaderships in the order of their terms, one of each.
func (r Run) leadershipsByTerm() (reigns []Leadership) {
	for _, l := range slices.SortedFunc(slices.Values(r.Leaderships), func(a, b Leadership) int {
		return cmp.Or(cmp.Compare(a.Term, b.Term), cmp.Compare(a.From, b.From))
	}) {
		if n := len(reigns); n > 0 && reigns[n-1].Term == l.Term {
			reigns[n-1].To = max(reigns[n-1].To, l.To) // it was seen again
			continue
		}
		reigns = append(reigns, l)
	}
	return reigns
}

// leaderLostAt is when a leader was lost that another followed, or nobody: at the beginning
// of what hit it, or when it was last seen to lead. A leader that goes on taking
// writes, as with one follower that it does not reach, has not been lost yet.
func (r Run) leaderLostAt(l, next Leadership) time.Duration {
	at := min(l.To, next.From)
	for _, h := range r.Faults {
		if (h.Node == "" || h.Node == l.Node) && h.From >= l.From && h.From <= next.From && h.To+recoveryGrace >= l.To {
			at = min(at, h.From)
		}
	}
	for _, s := range r.LeaderWrites {
		if s.Node == l.Node && s.Node != next.Node && s.From >= l.From && s.To <= next.From {
			at = max(at, s.From)
		}
	}
	return at
}

// avoidedFailovers returns the times in which a leader was hit, and well again before anybody
// followed, or not: as long as a failover may take, and no longer.
func (r Run) avoidedFailovers(reigns []Leadership) (times []FaultInterval) {
	for _, h := range r.Faults {
		for i, l := range reigns {
			end := min(h.To, h.From+ElectionSLO)
			followed := i+1 < len(reigns) && reigns[i+1].From <= end
			if h.Node == l.Node && l.From <= h.From && h.From <= l.To && !followed {
				times = append(times, FaultInterval{From: h.From, To: end})
			}
		}
	}
	return times
}

// withoutMajority returns the times in which fewer than a majority could take part.
func (r Run) withoutMajority() (times []FaultInterval) {
	var marks []time.Duration
	for _, h := range r.Faults {
		marks = append(marks, h.From, h.To)
	}
	slices.Sort(marks)
	for i, from := range marks {
		out := map[string]bool{}
		all := false
		for _, h := range r.Faults {
			if h.From <= from && from < h.To {
				out[h.Node], all = true, all || h.Node == ""
			}
		}
		if (all || r.Nodes-len(out) <= r.Nodes/2) && i+1 < len(marks) {
			times = append(times, FaultInterval{From: from, To: marks[i+1]})
		}
	}
	return mergeIntervals(times)
}

// electableSince is since when a majority could elect, as of a moment.
func electableSince(without []FaultInterval, at time.Duration) (since time.Duration) {
	for _, w := range without {
		if w.From < at {
			since = max(since, min(w.To, at))
		}
	}
	return since
}

// mergeIntervals joins times that overlap or touch, in their order.
func mergeIntervals(times []FaultInterval) (merged []FaultInterval) {
	slices.SortFunc(times, func(a, b FaultInterval) int { return cmp.Compare(a.From, b.From) })
	for _, t := range times {
		if n := len(merged); n > 0 && t.From <= merged[n-1].To {
			merged[n-1].To = max(merged[n-1].To, t.To)
			continue
		}
		merged = append(merged, FaultInterval{From: t.From, To: t.To})
	}
	return merged
}

// outside counts the time from a moment to another that is not in failovers, and
// of that the longer times without an acknowledgement.
func (f *SLOReport) outside(failovers []FaultInterval, acks []time.Duration, from, to time.Duration) {
	for _, o := range append(failovers, FaultInterval{From: to, To: to}) {
		if end := min(o.From, to); end > from {
			f.Total += end - from
			for _, s := range writeGaps(acks, from, end) {
				f.Down += s.To - s.From
				f.Silent = append(f.Silent, s)
			}
		}
		f.Failovers += max(0, min(o.To, to)-max(o.From, from))
		from = max(from, o.To)
	}
}

// writeGaps is what passed of a time without an acknowledgement, in pieces that are
// long enough to count.
func writeGaps(acks []time.Duration, from, to time.Duration) (down []FaultInterval) {
	first, _ := slices.BinarySearch(acks, from)
	for last := from; last < to; first++ {
		next := to
		if first < len(acks) {
			next = min(to, acks[first])
		}
		if next-last >= minOutage {
			down = append(down, FaultInterval{From: last, To: next})
		}
		last = next
		if first >= len(acks) {
			break
		}
	}
	return down
}
