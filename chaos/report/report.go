// Package report shows what happened to a cluster: as text, and as one page of
// HTML with a lane for each node, its leaderships by term, the faults that hit it, the
// time in which no write was acknowledged, and the operations that show what is
// wrong. Simulated and real clusters are shown alike.
package report

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"time"
)

// Report is one run of a cluster. Times are since its beginning.
type Report struct {
	Title         string        `json:"title"`
	ReplayCommand string        `json:"replay_command,omitempty"` // the command that runs it again; "": there is none
	Length        time.Duration `json:"length"`
	Nodes         []string      `json:"nodes"`
	Violations    []string      `json:"violations"` // what was violated; empty: nothing
	Faults        []Fault       `json:"faults"`
	Leaderships   []Leadership  `json:"leaderships"`
	Gaps          []Gap         `json:"gaps"`          // longer ones, in which no write was acknowledged
	Ops           []Op          `json:"ops"`           // that show what is broken
	SLO           string        `json:"slo,omitempty"` // how soon there were leaders and writes; "": not measured
	Details       string        `json:"details,omitempty"`
}

// Fault is one thing that went wrong. An empty node is all of them.
type Fault struct {
	Node string        `json:"node"`
	What string        `json:"what"`
	From time.Duration `json:"from"`
	To   time.Duration `json:"to"`
}

// Leadership is the time in which a node was seen to act as leader of a term.
type Leadership struct {
	Node string        `json:"node"`
	Term uint64        `json:"term"`
	From time.Duration `json:"from"`
	To   time.Duration `json:"to"`
}

// Gap is a time without an acknowledged write.
type Gap struct {
	From time.Duration `json:"from"`
	To   time.Duration `json:"to"`
}

// Op is one operation of a client.
type Op struct {
	What string        `json:"what"`
	From time.Duration `json:"from"`
	To   time.Duration `json:"to"`
}

// shownGap is from when on a time without an acknowledged write is shown.
const shownGap = 300 * time.Millisecond

// GapsOf finds the gaps between acknowledgements, up to the end of the run.
func GapsOf(acks []time.Duration, end time.Duration) (gaps []Gap) {
	acks = slices.Sorted(slices.Values(acks))
	if len(acks) == 0 {
		return []Gap{{0, end}}
	}
	last := acks[0]
	for _, at := range append(acks[1:], end) {
		if at-last >= shownGap {
			gaps = append(gaps, Gap{last, at})
		}
		last = at
	}
	return gaps
}

// Text writes the report for a terminal: what is broken, and then faults, leaderships
// and gaps in the order of their beginning.
func (r Report) Text(w io.Writer) error {
	type line struct {
		at   time.Duration
		text string
	}
	var lines []line
	for _, f := range r.Faults {
		lines = append(lines, line{f.From, fmt.Sprintf("fault    %s", f.What)})
	}
	for _, g := range r.Leaderships {
		lines = append(lines, line{g.From, fmt.Sprintf("leader   %s, term %d, for %v", g.Node, g.Term,
			(g.To - g.From).Round(time.Millisecond))})
	}
	for _, g := range r.Gaps {
		lines = append(lines,
			line{g.From, fmt.Sprintf("gap      no write acknowledged for %v", (g.To - g.From).Round(time.Millisecond))})
	}
	for _, o := range r.Ops {
		lines = append(lines, line{o.From, "op       " + o.What})
	}
	slices.SortStableFunc(lines, func(a, b line) int { return cmp.Compare(a.at, b.at) })
	p := &printer{w: w}
	p.printf("%s\n", r.Title)
	for _, b := range r.Violations {
		p.printf("  VIOLATED: %s\n", b)
	}
	if r.SLO != "" {
		p.printf("  %s\n", r.SLO)
	}
	for _, l := range lines {
		p.printf("%12v  %s\n", l.at.Round(time.Microsecond), l.text)
	}
	if r.ReplayCommand != "" {
		p.printf("again: %s\n", r.ReplayCommand)
	}
	return p.err
}

// printer writes until the first error.
type printer struct {
	w   io.Writer
	err error
}

func (p *printer) printf(format string, args ...any) {
	if p.err == nil {
		_, p.err = fmt.Fprintf(p.w, format, args...)
	}
}
