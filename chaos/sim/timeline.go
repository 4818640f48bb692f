package sim

import (
	"fmt"
	"strings"
	"sync"
	"time"

	"northstar/chaos/check"
	"northstar/chaos/report"
	"northstar/cluster"
)

// timeline collects what a report of a world shows: faults, reigns,
// acknowledgements. It may be added to from any goroutine.
type timeline struct {
	start time.Time

	mu     sync.Mutex
	faults []report.Fault
	reigns []report.Reign
	byTerm map[uint64]int // place in reigns, by term
	acks   []time.Duration
}

func newTimeline(start time.Time) *timeline {
	return &timeline{start: start, byTerm: map[uint64]int{}}
}

// fault takes note of a fault that begins now. What hits more than one node is in
// no node's lane.
func (t *timeline) fault(f Fault) {
	node := nodeName(f.A)
	switch f.Kind {
	case KillAll, Split, Loss, LossReply, Delay, LateReply, Repeat, Lie, PauseAuto, Recover:
		node = ""
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Since(t.start)
	t.faults = append(t.faults, report.Fault{Node: node, What: f.String(), From: now, To: now + f.For})
}

// leads takes note of a message of a leader.
func (t *timeline) leads(id cluster.NodeID, term uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Since(t.start)
	i, known := t.byTerm[term]
	if !known || t.reigns[i].Node != string(id) {
		i = len(t.reigns)
		t.byTerm[term] = i
		t.reigns = append(t.reigns, report.Reign{Node: string(id), Term: term, From: now})
	}
	t.reigns[i].To = now
}

func (t *timeline) acked() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.acks = append(t.acks, time.Since(t.start))
}

// timelineOf is the report of a world that has ended.
func (w *World) timelineOf(violations []check.Violation, figures *check.Figures) report.Report {
	t := w.timeline
	t.mu.Lock()
	defer t.mu.Unlock()
	r := report.Report{
		Title:  fmt.Sprintf("Simulated cluster of %d nodes, seed %d", w.cfg.Nodes, w.cfg.Seed),
		Length: w.cfg.Length, Faults: t.faults, Reigns: t.reigns, Gaps: report.GapsOf(t.acks, w.cfg.Length),
	}
	if figures != nil {
		r.Figures = figures.String()
	}
	for _, id := range w.ids() {
		r.Nodes = append(r.Nodes, string(id))
	}
	for _, v := range violations {
		r.Broken = append(r.Broken, v.Error())
		for _, o := range v.Ops {
			to := o.End
			if o.Outcome == check.Unknown {
				to = o.Begin
			}
			r.Ops = append(r.Ops, report.Op{What: o.String(), From: o.Begin, To: to})
		}
	}
	var details strings.Builder
	w.Report(&details)
	r.Details = details.String()
	return r
}
