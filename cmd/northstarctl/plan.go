package main

import (
	"fmt"

	"github.com/jedib0t/go-pretty/v6/text"

	"northstar/api/apiv1"
)

// plan requests a plan and prints it. A rejected plan is an error, so that scripts can test for it.
func (a *app) plan(call callFunc[apiv1.Plan]) error {
	p, err := request(a, "asking for a plan", call)
	if err != nil {
		return err
	}
	if err := a.printResult(p, func() error { return a.showPlan(p) }); err != nil {
		return err
	}
	if r := p.Refusal; r != nil {
		return fmt.Errorf("not possible: %s: %s", r.Name, r.Detail)
	}
	return nil
}

// showPlan prints a plan as text.
func (a *app) showPlan(p apiv1.Plan) error {
	gap := "unknown: no comparable election recorded"
	if p.ExpectedGapMS != nil && p.WorstGapMS != nil {
		gap = fmt.Sprintf("%d ms, at most %d ms (%d recorded)", *p.ExpectedGapMS, *p.WorstGapMS, p.GapSamples)
	}
	rows := [][]any{
		{"plan", p.PlanID},
		{"action", p.Summary},
		{"term", p.Term},
		{"leader", orDash(p.LeaderID)},
		{"target", orDash(p.TargetID)},
		{"risk", a.risk(p.Risk)},
		{"affected", fmt.Sprintf("%d roles, %d sessions", p.Affected.Roles, p.Affected.Sessions)},
	}
	if p.How != "" || len(p.Candidates) > 0 { // the plan changes the leader
		rows = append(rows, []any{"expected write gap", gap})
	}
	if p.How != "" {
		rows = append(rows, []any{"by", p.How})
	}
	for _, w := range p.Warnings {
		rows = append(rows, []any{"warning", a.colour(text.FgYellow, w)})
	}
	if err := a.table([]string{"field", "value"}, rows); err != nil {
		return err
	}
	if len(p.Candidates) > 0 {
		fmt.Fprintln(a.stdout)
		rows = nil
		for _, c := range p.Candidates {
			rows = append(rows, []any{c.ID, yesNo(c.Eligible), yesNo(c.Voter), c.Priority, c.LagEntries, orDash(c.Reason)})
		}
		if err := a.table([]string{"candidate", "eligible", "voter", "priority", "lag", "not eligible because"},
			rows); err != nil {
			return err
		}
	}
	if len(p.Survivors) > 0 {
		fmt.Fprintln(a.stdout)
		rows = nil
		for _, s := range p.Survivors {
			rows = append(rows, []any{s.ID, yesNo(s.Voter), s.LastTerm, s.LastIndex})
		}
		if err := a.table([]string{"survivor", "voter", "last term", "last index"}, rows); err != nil {
			return err
		}
	}
	if p.Refusal != nil && len(p.Refusal.Votes) > 0 {
		fmt.Fprintln(a.stdout)
		rows = nil
		for _, v := range p.Refusal.Votes {
			rows = append(rows, []any{v.VoterID, yesNo(v.Granted), orDash(v.Reason)})
		}
		return a.table([]string{"voter", "would grant", "reason"}, rows)
	}
	return nil
}

func (a *app) risk(r string) string {
	switch r {
	case "low":
		return a.colour(text.FgGreen, r)
	case "medium":
		return a.colour(text.FgYellow, r)
	}
	return a.colour(text.FgRed, r)
}
