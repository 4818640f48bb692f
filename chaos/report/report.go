// Package report shows what happened to a cluster: as text, and as one page of HTML with a lane for each node, its
// leaderships by term, the faults that hit it, the time in which no write was acknowledged, and the operations that
// show what is wrong. Simulated and real clusters are shown alike.
package report

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"slices"
	"time"

	"northstar/chaos/check"
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
type Leadership = check.Leadership

// Gap is a longer time without an acknowledged write.
type Gap = check.FaultInterval

// Op is one operation of a client.
type Op struct {
	What string        `json:"what"`
	From time.Duration `json:"from"`
	To   time.Duration `json:"to"`
}

// GapsOf finds the gaps between acknowledgements, up to the end of the run.
func GapsOf(acks []time.Duration, end time.Duration) []Gap {
	acks = slices.Sorted(slices.Values(acks))
	from := time.Duration(0)
	if len(acks) > 0 {
		from = acks[0]
	}
	return check.Outages(acks, from, end)
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
	var b bytes.Buffer
	fmt.Fprintln(&b, r.Title)
	for _, v := range r.Violations {
		fmt.Fprintf(&b, "  VIOLATED: %s\n", v)
	}
	if r.SLO != "" {
		fmt.Fprintf(&b, "  %s\n", r.SLO)
	}
	for _, l := range lines {
		fmt.Fprintf(&b, "%12v  %s\n", l.at.Round(time.Microsecond), l.text)
	}
	if r.ReplayCommand != "" {
		fmt.Fprintf(&b, "again: %s\n", r.ReplayCommand)
	}
	_, err := b.WriteTo(w)
	return err
}
