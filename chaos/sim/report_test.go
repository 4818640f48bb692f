package sim

import (
	"fmt"
	"io"
	"strings"
	"time"

	"northstar/chaos/check"
	"northstar/chaos/report"
	"northstar/state"
)

// How many of the last of each a report shows.
const (
	shownElections = 8
	shownMessages  = 60
)

// elections describes the last elections that the member which has applied most
// knows of, with the votes and their reasons.
func (sim *Simulation) elections() (lines []string) {
	var newest *state.View
	for _, m := range sim.members {
		if v := m.lastView(); v != nil && (newest == nil || v.AppliedIndex() > newest.AppliedIndex()) {
			newest = v
		}
	}
	if newest == nil {
		return nil
	}
	all := newest.Elections()
	for _, e := range all[max(0, len(all)-shownElections):] {
		lines = append(lines, fmt.Sprintf("%12v  %s leads term %d, by %s: %s; votes %s",
			time.Unix(0, e.LedAt).Sub(sim.start), e.Node, e.Term, e.Trigger, e.Reason, e.Votes))
	}
	return lines
}

// Report writes what is needed to understand a failure: the violations, the
// last faults and events, and the last log lines of each node.
func (sim *Simulation) Report(out io.Writer) {
	sim.mu.Lock()
	violations := sim.violations
	sim.mu.Unlock()
	_, _ = fmt.Fprintf(out, "seed %d, %d nodes\n", sim.cfg.Seed, sim.cfg.Nodes)
	for _, v := range violations {
		_, _ = fmt.Fprintf(out, "  %v\n", v)
		for _, o := range v.Ops {
			_, _ = fmt.Fprintf(out, "    %v\n", o)
		}
	}
	section(out, "last elections, as the cluster recorded them", sim.elections())
	votes, others := sim.rpc.last(shownMessages)
	section(out, "last messages of elections", votes)
	section(out, "last other messages", others)
	section(out, "last events", sim.events.last(80))
	for _, m := range sim.members {
		section(out, string(m.id)+", last lines", m.log.last(40))
	}
}

// timelineOf is the report of a run that has ended.
func (sim *Simulation) timelineOf(violations []check.Violation, figures *check.SLOReport) report.Report {
	t := sim.timeline
	t.mu.Lock()
	defer t.mu.Unlock()
	r := report.Report{
		Title:  fmt.Sprintf("Simulated cluster of %d nodes, seed %d", sim.cfg.Nodes, sim.cfg.Seed),
		Length: sim.cfg.Length, Faults: t.faults, Leaderships: t.leaderships,
		Gaps: report.GapsOf(t.acks, sim.cfg.Length),
	}
	if figures != nil {
		r.SLO = figures.String()
	}
	for _, id := range idsOf(sim.members) {
		r.Nodes = append(r.Nodes, string(id))
	}
	for _, v := range violations {
		r.Violations = append(r.Violations, v.Error())
		for _, o := range v.Ops {
			to := o.End
			if o.Outcome == check.Unknown {
				to = o.Begin
			}
			r.Ops = append(r.Ops, report.Op{What: o.String(), From: o.Begin, To: to})
		}
	}
	var details strings.Builder
	sim.Report(&details)
	r.Details = details.String()
	return r
}

// section writes lines under a heading.
func section[T any](out io.Writer, heading string, lines []T) {
	_, _ = fmt.Fprintf(out, "  %s:\n", heading)
	for _, line := range lines {
		_, _ = fmt.Fprintln(out, "   ", line)
	}
}

// last returns the last n lines.
func (t *trace) last(n int) []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.lines.last(n)
}

// lastView is the member's state when it was last looked at.
func (m *member) lastView() *state.View {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.view
}

// last returns the newest messages, of elections and others.
func (r *rpcFaults) last(n int) (elections, others []sent) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.sent.elections.last(n), r.sent.others.last(n)
}
