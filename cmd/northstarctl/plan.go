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
	header := []string{"candidate", "eligible", "voter", "priority", "lag", "not eligible because"}
	if err := section(a, header, p.Candidates, func(c apiv1.TargetCandidate) []any {
		return []any{c.ID, yesNo(c.Eligible), yesNo(c.Voter), c.Priority, c.LagEntries, orDash(c.Reason)}
	}); err != nil {
		return err
	}
	header = []string{"survivor", "voter", "last term", "last index"}
	if err := section(a, header, p.Survivors, func(s apiv1.Survivor) []any {
		return []any{s.ID, yesNo(s.Voter), s.LastTerm, s.LastIndex}
	}); err != nil || p.Refusal == nil {
		return err
	}
	return section(a, []string{"voter", "would grant", "reason"}, p.Refusal.Votes, func(v apiv1.Vote) []any {
		return []any{v.VoterID, yesNo(v.Granted), orDash(v.Reason)}
	})
}

// section prints an empty line and a table, or nothing without items.
func section[T any](a *app, header []string, items []T, row func(T) []any) error {
	if len(items) == 0 {
		return nil
	}
	fmt.Fprintln(a.stdout)
	return tableOf(a, header, items, row)
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
