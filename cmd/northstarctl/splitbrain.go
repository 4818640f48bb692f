package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jedib0t/go-pretty/v6/text"

	"northstar/api/apiv1"
	"northstar/client"
)

type splitBrainCmd struct {
	Node   string `arg:"" optional:"" placeholder:"HOST:PORT" help:"Ask this node; default: any responsive node."`
	Check  bool   `help:"Check now instead of showing the latest report."`
	Reason string `help:"Reason, for the audit log; with --check."`
}

func (s *splitBrainCmd) Run(a *app) error {
	if s.Reason != "" && !s.Check {
		return usagef("--reason: requires --check")
	}
	r, err := request(a, "running split-brain check",
		func(c *client.Client, ctx context.Context) (apiv1.SplitBrain, error) {
			if s.Check {
				return c.CheckSplitBrain(ctx, s.Node, apiv1.SplitBrainCheck{Reason: s.Reason})
			}
			return c.SplitBrain(ctx, s.Node)
		})
	if err != nil {
		return err
	}
	if err := a.printResult(r, func() error { return a.printSplitBrain(r) }); err != nil {
		return err
	}
	switch r.Verdict {
	case "ok", "unreachable":
		return nil
	}
	return fmt.Errorf("node %s: verdict %s", r.CheckedBy, r.Verdict)
}

func (a *app) printSplitBrain(r apiv1.SplitBrain) error {
	colours := map[string]text.Color{"ok": text.FgGreen, "unreachable": text.FgYellow}
	paint := func(verdict string) string {
		if c, ok := colours[verdict]; ok {
			return a.colour(c, verdict)
		}
		return a.colour(text.FgRed, verdict)
	}
	fmt.Fprintf(a.stdout, "verdict %s (node %s, checked at %s)\n", paint(r.Verdict), r.CheckedBy,
		formatTime(&r.CheckedAt))
	for _, f := range r.Findings {
		line := paint(f.Verdict) + ": " + f.Detail
		if f.Refusing {
			line += "; this node rejects reads and writes"
		}
		fmt.Fprintln(a.stdout, line)
	}
	fmt.Fprintln(a.stdout)
	rows := make([][]any, 0, len(r.Claims))
	for _, c := range r.Claims {
		row := []any{c.NodeID, c.Source, orDash(c.Address), "-", "-", "-", age(r.CheckedAt, c.At), c.Error}
		if c.Error == "" {
			row[3], row[7] = leads(c), fmt.Sprintf("%s, generation %d", orDash(c.ClusterID), c.Generation)
			if c.Term > 0 {
				row[4], row[5] = c.Term, orDash(c.LeaderID)
			}
		}
		rows = append(rows, row)
	}
	return a.table([]string{"node", "source", "address", "leads", "term", "leader", "age", "cluster / error"}, rows)
}

func leads(c apiv1.SplitBrainClaim) string {
	if c.Term == 0 {
		return "-"
	}
	return yesNo(c.Leads)
}

// age returns how old a claim was when it was checked.
func age(now, at time.Time) string {
	return fmt.Sprintf("%d ms", max(0, now.Sub(at).Milliseconds()))
}
