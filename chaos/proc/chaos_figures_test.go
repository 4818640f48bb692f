package proc

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"northstar/chaos/check"
	timeline "northstar/chaos/report"
)

// probe writes to one node repeatedly.
func (s *suite) probe(ctx context.Context, n *Node) {
	for ctx.Err() == nil {
		within, cancel := context.WithTimeout(ctx, time.Second)
		sent := s.now()
		a, err := put(within, n, "probe-"+n.ID, "x")
		cancel()
		if err == nil && a.Status == http.StatusOK {
			by := s.at(cmp.Or(a.Leader, n.HTTP))
			s.mu.Lock()
			if now := s.now(); s.end == 0 {
				s.availabilityAcks, s.leaderWrites = append(s.availabilityAcks, now),
					append(s.leaderWrites, check.FaultInterval{Node: by, From: sent, To: now})
			}
			s.mu.Unlock()
		}
		pause(20 * time.Millisecond)
	}
}

// at returns the node with an HTTP address.
func (s *suite) at(http string) string {
	i := slices.IndexFunc(s.cluster.Nodes, func(n *Node) bool { return n.HTTP == http })
	if i < 0 {
		s.t.Errorf("an answer is said to be of %s, which is no node's address", http)
		return ""
	}
	return s.cluster.Nodes[i].ID
}

// measured returns the end of the measured time. Later analysis delays the probes, which must not count as an outage.
// The caller holds the lock.
func (s *suite) measured() time.Duration { return cmp.Or(s.end, s.now()) }

// slo measures the results of the probes. Each fault counts as one that keeps its node from taking part. The caller
// holds the lock.
func (s *suite) slo() *check.SLOReport {
	run := check.Run{
		Nodes: len(s.cluster.Nodes), Faults: s.faultIntervals(), WriteAcks: s.availabilityAcks,
		LeaderWrites: s.leaderWrites, End: s.measured(),
	}
	for _, r := range s.leaderships {
		run.Leaderships = append(run.Leaderships, check.Leadership(r))
	}
	f := check.MeasureSLO(run)
	return &f
}

// faultIntervals returns the faults as intervals of nodes. The caller holds the lock.
func (s *suite) faultIntervals() (hits []check.FaultInterval) {
	for _, f := range s.faults {
		hits = append(hits, check.FaultInterval{Node: f.Node, From: f.From, To: f.To})
	}
	return hits
}

// gaps returns the longer periods without an acknowledged write. The caller holds the lock.
func (s *suite) gaps() []timeline.Gap {
	return timeline.GapsOf(slices.Concat(s.acks, s.availabilityAcks), s.measured())
}

// summary describes the faults, and the time without an acknowledged write around each kind.
func (s *suite) summary() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	gaps := map[string][]time.Duration{}
	all := s.gaps()
	for i, f := range s.faults {
		longest := time.Duration(0)
		for _, g := range all {
			if g.From < f.To+time.Second && g.To > f.From {
				longest = max(longest, g.To-g.From)
			}
		}
		gaps[s.faultKinds[i]] = append(gaps[s.faultKinds[i]], longest)
	}
	var b strings.Builder
	fmt.Fprintf(&b,
		"seed %d, %d nodes: %d faults in %v, %d operations, %d acknowledged writes, %d terms with a leader, %d violations; longest time without an acknowledged write (under 300 ms counts as none):\n",
		s.seed, len(s.cluster.Nodes), len(s.faults), s.measured().Round(time.Second), s.ops, len(s.acks),
		len(s.leaders), len(s.violations))
	for _, kind := range slices.Sorted(maps.Keys(gaps)) {
		g := gaps[kind]
		slices.Sort(g)
		at := func(q float64) time.Duration { return g[int(q*float64(len(g)-1))].Round(time.Millisecond) }
		fmt.Fprintf(&b, "  %-16s %4d times: p50 %v, p99 %v, max %v\n", kind, len(g), at(0.5), at(0.99), at(1))
	}
	f := s.slo()
	fmt.Fprintf(&b, "  %v; %v; %v\n", f, &s.stalls, &s.waits)
	for _, h := range f.Late {
		fmt.Fprintf(&b, "  late: no leader after %s for %v\n", h.Node, s.around(h))
	}
	for _, h := range f.Silent {
		fmt.Fprintf(&b, "  silent: no write for %v\n", s.around(h))
	}
	return b.String()
}

// around describes an interval: its length and what happened in it.
func (s *suite) around(h check.FaultInterval) string {
	took := func(d time.Duration) time.Duration { return d.Round(time.Millisecond) }
	what := fmt.Sprintf("%v from %v on", took(h.To-h.From), took(h.From))
	for _, f := range s.faults {
		if f.From < h.To && f.To+time.Second > h.From {
			what += fmt.Sprintf("; %s at %v to %v", f.What, took(f.From), took(f.To))
		}
	}
	from, to := s.start.Add(h.From), s.start.Add(h.To)
	if still := s.stalls.within(from, to); still > 0 {
		what += fmt.Sprintf("; the machine stood still for %v of it", took(still))
	}
	return what + fmt.Sprintf("; the nodes' threads waited %v for a processor", took(s.waits.within(from, to)))
}

// logged returns what the nodes logged around some intervals, for the first few of them.
func (s *suite) logged(times []check.FaultInterval) string {
	const most, margin, layout = 10, 200 * time.Millisecond, "2006-01-02T15:04:05.000Z"
	var b strings.Builder
	for _, h := range times[:min(most, len(times))] {
		fmt.Fprintf(&b, "=== %v\n", s.around(h))
		from, to := s.start.Add(h.From-margin).UTC().Format(layout), s.start.Add(h.To+margin).UTC().Format(layout)
		for _, n := range s.cluster.Nodes {
			fmt.Fprintf(&b, "--- %s\n", n.ID)
			for line := range strings.Lines(s.cluster.Log(n)) {
				if line >= from && line < to {
					b.WriteString(line)
				}
			}
		}
	}
	return b.String()
}
