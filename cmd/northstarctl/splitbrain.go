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
	Node   string `arg:"" optional:"" placeholder:"HOST:PORT" help:"Show what this node sees; without it, any node that answers."`
	Check  bool   `help:"Check now, instead of showing the last check."`
	Reason string `help:"Why, for the record; with --check."`
}

func (s *splitBrainCmd) Run(a *app) error {
	if s.Reason != "" && !s.Check {
		return usagef("--reason: only a check has one: add --check")
	}
	r, err := request(a, "comparing what the members say", func(ctx context.Context, c *client.Client) (apiv1.SplitBrain, error) {
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
	return fmt.Errorf("the verdict of node %s is %s", r.CheckedBy, r.Verdict)
}

func (a *app) printSplitBrain(r apiv1.SplitBrain) error {
	colours := map[string]text.Color{"ok": text.FgGreen, "unreachable": text.FgYellow}
	paint := func(verdict string) string {
		if c, ok := colours[verdict]; ok {
			return a.colour(c, verdict)
		}
		return a.colour(text.FgRed, verdict)
	}
	fmt.Fprintf(a.stdout, "%s, says node %s at %s\n", paint(r.Verdict), r.CheckedBy, r.CheckedAt.UTC().Format(timeForm))
	for _, f := range r.Findings {
		line := paint(f.Verdict) + ": " + f.Detail
		if f.Refusing {
			line += "; this node serves nobody because of it"
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
	return a.table([]string{"node", "source", "address", "leads", "term", "leader", "age", "cluster, or why not"}, rows)
}

func leads(c apiv1.SplitBrainClaim) string {
	if c.Term == 0 {
		return "-"
	}
	return yesNo(c.Leads)
}

// age is how old a claim was when it was judged.
func age(now, at time.Time) string {
	return fmt.Sprintf("%d ms", max(0, now.Sub(at).Milliseconds()))
}
