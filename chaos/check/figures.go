package check

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// Reign is the time in which a node was seen to lead a term.
type Reign struct {
	Node     string
	Term     uint64
	From, To time.Duration
}

// Run is what was seen of a cluster from its first leader to End.
type Run struct {
	Nodes  int
	Reigns []Reign
	Hits   []Hit           // while a node, or all, could not take part
	Acks   []time.Duration // of writes that were asked for all the time, of every node
	Served []Hit           // from when such a write was asked for until a node acknowledged it as leader; may be empty
	End    time.Duration
}

// What is promised: so much of the elections within SoonElected of a majority
// being able to elect, and so much of the time outside failovers with writes.
const (
	SoonElected = time.Second
	Promised    = 0.999
)

// settling is how long after a fault has ended its consequences may show: a
// follower that had heard nothing stands, and deposes a leader that is well again.
const settling = 300 * time.Millisecond

// unavailable is from when on a time without an acknowledged write counts.
const unavailable = 300 * time.Millisecond

// Figures sum up runs.
type Figures struct {
	Elections []time.Duration `json:"elections"` // each from when a majority could elect until it had
	Failovers time.Duration   `json:"failovers"` // the time that failovers took, until a write was acknowledged
	Total     time.Duration   `json:"total"`     // the time without those
	Down      time.Duration   `json:"down"`      // of that, without a write
	Late      []Hit           `json:"-"`         // of one run: the elections that took longer than SoonElected, with the leader before each
	Silent    []Hit           `json:"-"`         // of one run: the times that Down sums up
}

// Add adds what another run gave.
func (f *Figures) Add(o Figures) {
	f.Elections = append(f.Elections, o.Elections...)
	f.Failovers, f.Total, f.Down = f.Failovers+o.Failovers, f.Total+o.Total, f.Down+o.Down
}

// Soon is the part of the elections that was over within SoonElected.
func (f *Figures) Soon() float64 {
	soon := 0
	for _, took := range f.Elections {
		if took <= SoonElected {
			soon++
		}
	}
	return float64(soon) / float64(max(1, len(f.Elections)))
}

// Available is the part of the time outside failovers in which writes were taken.
func (f *Figures) Available() float64 { return 1 - float64(f.Down)/float64(max(1, f.Total)) }

// Missed says what is less than promised; "" when nothing is.
func (f *Figures) Missed() string {
	switch {
	case len(f.Elections) > 0 && f.Soon() < Promised:
		return fmt.Sprintf("%.3f %% of %d elections within %v of a majority being able to elect, want %.1f %%", 100*f.Soon(), len(f.Elections), SoonElected, 100*Promised)
	case f.Total > 0 && f.Available() < Promised:
		return fmt.Sprintf("writes were taken for %.3f %% of the time outside failovers (not for %v of %v), want %.1f %%", 100*f.Available(), f.Down, f.Total, 100*Promised)
	}
	return ""
}

func (f *Figures) String() string {
	took := slices.Sorted(slices.Values(f.Elections))
	if len(took) == 0 {
		return "no elections to measure"
	}
	at := func(q float64) time.Duration { return took[int(q*float64(len(took)-1))].Round(time.Millisecond) }
	return fmt.Sprintf("%d elections, %.3f %% within %v of a majority being able to elect (p50 %v, p99 %v, max %v); writes taken for %.4f %% of %v outside failovers (those: %v)",
		len(took), 100*f.Soon(), SoonElected, at(0.5), at(0.99), at(1), 100*f.Available(), f.Total.Round(time.Second), f.Failovers.Round(time.Millisecond))
}

// Measure takes the figures of one run.
func Measure(r Run) (f Figures) {
	reigns := r.byTerm()
	acks := slices.Sorted(slices.Values(r.Acks))
	if len(reigns) == 0 {
		return f
	}
	without := r.withoutMajority()
	failovers := slices.Clone(without)
	for i, now := range reigns {
		if i > 0 {
			began := max(r.lost(reigns[i-1], now), able(without, now.From))
			f.elected(Hit{reigns[i-1].Node, min(began, now.From), now.From})
			failovers = append(failovers, Hit{From: min(began, now.From), To: now.From})
		}
	}
	last := reigns[len(reigns)-1]
	if began := max(r.lost(last, Reign{From: r.End}), able(without, r.End)); r.End-began > SoonElected {
		f.elected(Hit{last.Node, began, r.End}) // nobody has followed
		failovers = append(failovers, Hit{From: began, To: r.End})
	}
	for i := range failovers { // it is over with the first write
		to := r.End
		if at, _ := slices.BinarySearch(acks, failovers[i].To); at < len(acks) {
			to = acks[at]
		}
		failovers[i].To = to
	}
	failovers = append(failovers, r.spared(reigns)...)
	f.outside(merge(failovers), append(acks, r.End), reigns[0].From, r.End)
	return f
}

// elected notes an election that took so long, after a node had led.
func (f *Figures) elected(h Hit) {
	f.Elections = append(f.Elections, h.To-h.From)
	if h.To-h.From > SoonElected {
		f.Late = append(f.Late, h)
	}
}

// byTerm gives the reigns in the order of their terms, one of each.
func (r Run) byTerm() (reigns []Reign) {
	for _, l := range slices.SortedFunc(slices.Values(r.Reigns), func(a, b Reign) int {
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

// lost is when a leader was lost that another followed, or nobody: at the beginning
// of what hit it, or when it was last seen to lead. A leader that goes on taking
// writes, as with one follower that it does not reach, has not been lost yet.
func (r Run) lost(l, next Reign) time.Duration {
	at := min(l.To, next.From)
	for _, h := range r.Hits {
		if (h.Node == "" || h.Node == l.Node) && h.From >= l.From && h.From <= next.From && h.To+settling >= l.To {
			at = min(at, h.From)
		}
	}
	for _, s := range r.Served {
		if s.Node == l.Node && s.Node != next.Node && s.From >= l.From && s.To <= next.From {
			at = max(at, s.From)
		}
	}
	return at
}

// spared gives the times in which a leader was hit, and well again before anybody
// followed, or not: as long as a failover may take, and no longer.
func (r Run) spared(reigns []Reign) (times []Hit) {
	for _, h := range r.Hits {
		for i, l := range reigns {
			end := min(h.To, h.From+SoonElected)
			followed := i+1 < len(reigns) && reigns[i+1].From <= end
			if h.Node == l.Node && l.From <= h.From && h.From <= l.To && !followed {
				times = append(times, Hit{From: h.From, To: end})
			}
		}
	}
	return times
}

// withoutMajority gives the times in which fewer than a majority could take part.
func (r Run) withoutMajority() (times []Hit) {
	var marks []time.Duration
	for _, h := range r.Hits {
		marks = append(marks, h.From, h.To)
	}
	slices.Sort(marks)
	for i, from := range marks {
		out := map[string]bool{}
		all := false
		for _, h := range r.Hits {
			if h.From <= from && from < h.To {
				out[h.Node], all = true, all || h.Node == ""
			}
		}
		if (all || r.Nodes-len(out) <= r.Nodes/2) && i+1 < len(marks) {
			times = append(times, Hit{From: from, To: marks[i+1]})
		}
	}
	return merge(times)
}

// able is since when a majority could elect, as of a moment.
func able(without []Hit, at time.Duration) (since time.Duration) {
	for _, w := range without {
		if w.From < at {
			since = max(since, min(w.To, at))
		}
	}
	return since
}

// merge joins times that overlap or touch, in their order.
func merge(times []Hit) (merged []Hit) {
	slices.SortFunc(times, func(a, b Hit) int { return cmp.Compare(a.From, b.From) })
	for _, t := range times {
		if n := len(merged); n > 0 && t.From <= merged[n-1].To {
			merged[n-1].To = max(merged[n-1].To, t.To)
			continue
		}
		merged = append(merged, Hit{From: t.From, To: t.To})
	}
	return merged
}

// outside counts the time from a moment to another that is not in failovers, and
// of that the longer times without an acknowledgement.
func (f *Figures) outside(failovers []Hit, acks []time.Duration, from, to time.Duration) {
	for _, o := range append(failovers, Hit{From: to, To: to}) {
		if end := min(o.From, to); end > from {
			f.Total += end - from
			for _, s := range silence(acks, from, end) {
				f.Down += s.To - s.From
				f.Silent = append(f.Silent, s)
			}
		}
		f.Failovers += max(0, min(o.To, to)-max(o.From, from))
		from = max(from, o.To)
	}
}

// silence is what passed of a time without an acknowledgement, in pieces that are
// long enough to count.
func silence(acks []time.Duration, from, to time.Duration) (down []Hit) {
	first, _ := slices.BinarySearch(acks, from)
	for last := from; last < to; first++ {
		next := to
		if first < len(acks) {
			next = min(to, acks[first])
		}
		if next-last >= unavailable {
			down = append(down, Hit{From: last, To: next})
		}
		last = next
		if first >= len(acks) {
			break
		}
	}
	return down
}
