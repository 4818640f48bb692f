package check

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// Leadership is the period in which a node was observed to lead a term.
type Leadership struct {
	Node     string
	Term     uint64
	From, To time.Duration
}

// Run holds the observations of a cluster from its first leader to End.
type Run struct {
	Nodes       int
	Leaderships []Leadership
	Faults      []FaultInterval // periods in which a node, or all nodes, could not take part
	WriteAcks   []time.Duration // acknowledgements of the availability writers at all nodes
	// from the request of such a write to its acknowledgement by the leader; may be empty
	LeaderWrites []FaultInterval
	End          time.Duration
}

// The service level objectives: the share of elections that end within ElectionSLO once a majority can elect, and the
// share of the time outside failovers in which writes succeed.
const (
	ElectionSLO = time.Second
	SLOTarget   = 0.999
)

// recoveryGrace is how long a fault may have consequences after its end. A follower that missed heartbeats may start an
// election and depose a leader that has recovered.
const recoveryGrace = 300 * time.Millisecond

// minOutage is the shortest period without an acknowledged write that counts as an outage.
const minOutage = 300 * time.Millisecond

// SLOReport sums up the measurements of runs.
type SLOReport struct {
	Elections []time.Duration `json:"elections"` // from the time when a majority could elect to the election
	Failovers time.Duration   `json:"failovers"` // sum of failovers, each until a write was acknowledged
	Total     time.Duration   `json:"total"`     // time outside failovers
	Down      time.Duration   `json:"down"`      // part of Total without a write
	// of one run: elections that took longer than ElectionSLO, with the previous leader
	Late   []FaultInterval `json:"-"`
	Silent []FaultInterval `json:"-"` // of one run: the periods summed up in Down
}

// Add adds the measurements of another run.
func (f *SLOReport) Add(o SLOReport) {
	f.Elections = append(f.Elections, o.Elections...)
	f.Failovers, f.Total, f.Down = f.Failovers+o.Failovers, f.Total+o.Total, f.Down+o.Down
}

// ElectionRatio returns the share of elections that ended within ElectionSLO.
func (f *SLOReport) ElectionRatio() float64 {
	soon := 0
	for _, took := range f.Elections {
		if took <= ElectionSLO {
			soon++
		}
	}
	return float64(soon) / float64(max(1, len(f.Elections)))
}

// Available returns the share of the time outside failovers in which writes succeeded.
func (f *SLOReport) Available() float64 { return 1 - float64(f.Down)/float64(max(1, f.Total)) }

// Violations describes the missed objectives; "" if there are none.
func (f *SLOReport) Violations() string {
	switch {
	case len(f.Elections) > 0 && f.ElectionRatio() < SLOTarget:
		return fmt.Sprintf("%.3f %% of %d elections within %v of a majority being able to elect, want %.1f %%",
			100*f.ElectionRatio(), len(f.Elections), ElectionSLO, 100*SLOTarget)
	case f.Total > 0 && f.Available() < SLOTarget:
		return fmt.Sprintf(
			"writes were taken for %.3f %% of the time outside failovers (not for %v of %v), want %.1f %%",
			100*f.Available(), f.Down, f.Total, 100*SLOTarget)
	}
	return ""
}

func (f *SLOReport) String() string {
	took := slices.Sorted(slices.Values(f.Elections))
	if len(took) == 0 {
		return "no elections to measure"
	}
	at := func(q float64) time.Duration { return took[int(q*float64(len(took)-1))].Round(time.Millisecond) }
	return fmt.Sprintf(
		"%d elections, %.3f %% within %v of a majority being able to elect (p50 %v, p99 %v, max %v); writes taken for %.4f %% of %v outside failovers (those: %v)",
		len(took), 100*f.ElectionRatio(), ElectionSLO, at(0.5), at(0.99), at(1), 100*f.Available(),
		f.Total.Round(time.Second), f.Failovers.Round(time.Millisecond))
}

// MeasureSLO measures one run.
func MeasureSLO(r Run) (f SLOReport) {
	leaderships := r.leadershipsByTerm()
	acks := slices.Sorted(slices.Values(r.WriteAcks))
	if len(leaderships) == 0 {
		return f
	}
	without := r.withoutMajority()
	failovers := slices.Clone(without)
	for i, now := range leaderships {
		if i > 0 {
			began := max(r.leaderLostAt(leaderships[i-1], now), electableSince(without, now.From))
			f.elected(FaultInterval{leaderships[i-1].Node, min(began, now.From), now.From})
			failovers = append(failovers, FaultInterval{From: min(began, now.From), To: now.From})
		}
	}
	last := leaderships[len(leaderships)-1]
	if began := max(r.leaderLostAt(last, Leadership{From: r.End}),
		electableSince(without, r.End)); r.End-began > ElectionSLO {
		f.elected(FaultInterval{last.Node, began, r.End}) // no leader followed
		failovers = append(failovers, FaultInterval{From: began, To: r.End})
	}
	for i := range failovers { // a failover ends with the first write
		to := r.End
		if at, _ := slices.BinarySearch(acks, failovers[i].To); at < len(acks) {
			to = acks[at]
		}
		failovers[i].To = to
	}
	failovers = append(failovers, r.avoidedFailovers(leaderships)...)
	f.outside(mergeIntervals(failovers), append(acks, r.End), leaderships[0].From, r.End)
	return f
}

// elected records the duration of an election and the previous leader.
func (f *SLOReport) elected(h FaultInterval) {
	f.Elections = append(f.Elections, h.To-h.From)
	if h.To-h.From > ElectionSLO {
		f.Late = append(f.Late, h)
	}
}

// leadershipsByTerm returns the leaderships sorted by term, one for each term.
func (r Run) leadershipsByTerm() (leaderships []Leadership) {
	for _, l := range slices.SortedFunc(slices.Values(r.Leaderships), func(a, b Leadership) int {
		return cmp.Or(cmp.Compare(a.Term, b.Term), cmp.Compare(a.From, b.From))
	}) {
		if n := len(leaderships); n > 0 && leaderships[n-1].Term == l.Term {
			leaderships[n-1].To = max(leaderships[n-1].To, l.To) // observed again
			continue
		}
		leaderships = append(leaderships, l)
	}
	return leaderships
}

// leaderLostAt returns when a leader was lost: at the start of the fault, or when it was last observed to lead. A
// leader that still takes writes has not been lost yet, for example if it does not reach one follower.
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

// avoidedFailovers returns the periods in which a leader failed and recovered before another one was elected. Each is
// at most as long as a failover may take.
func (r Run) avoidedFailovers(leaderships []Leadership) (times []FaultInterval) {
	for _, h := range r.Faults {
		for i, l := range leaderships {
			end := min(h.To, h.From+ElectionSLO)
			followed := i+1 < len(leaderships) && leaderships[i+1].From <= end
			if h.Node == l.Node && l.From <= h.From && h.From <= l.To && !followed {
				times = append(times, FaultInterval{From: h.From, To: end})
			}
		}
	}
	return times
}

// withoutMajority returns the periods in which fewer than a majority could take part.
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

// electableSince returns since when a majority has been able to elect, as of the given time.
func electableSince(without []FaultInterval, at time.Duration) (since time.Duration) {
	for _, w := range without {
		if w.From < at {
			since = max(since, min(w.To, at))
		}
	}
	return since
}

// mergeIntervals joins sorted periods that overlap or touch.
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

// outside measures the time between two times that is not part of a failover, and its outages.
func (f *SLOReport) outside(failovers []FaultInterval, acks []time.Duration, from, to time.Duration) {
	for _, o := range append(failovers, FaultInterval{From: to, To: to}) {
		if end := min(o.From, to); end > from {
			f.Total += end - from
			for _, s := range Outages(acks, from, end) {
				f.Down += s.To - s.From
				f.Silent = append(f.Silent, s)
			}
		}
		f.Failovers += max(0, min(o.To, to)-max(o.From, from))
		from = max(from, o.To)
	}
}

// Outages returns the periods of at least 300 ms between two times without an acknowledgement. acks are sorted.
func Outages(acks []time.Duration, from, to time.Duration) (down []FaultInterval) {
	first, _ := slices.BinarySearch(acks, from)
	end, _ := slices.BinarySearch(acks, to)
	last := from
	for _, next := range append(slices.Clone(acks[first:max(first, end)]), to) {
		if next-last >= minOutage {
			down = append(down, FaultInterval{From: last, To: next})
		}
		last = next
	}
	return down
}
