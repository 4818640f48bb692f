package main

import (
	"context"
	"fmt"

	"github.com/jedib0t/go-pretty/v6/text"

	"northstar/api/apiv1"
	"northstar/client"
)

// plan asks for a plan and shows it. What would be refused is an error then, so
// that a script can ask.
func (a *app) plan(call func(context.Context, *client.Client) (apiv1.Plan, error)) error {
	p, err := request(a, "asking for a plan", call)
	if err != nil {
		return err
	}
	if err := a.printResult(p, func() error { return a.showPlan(p) }); err != nil {
		return err
	}
	if r := p.Refusal; r != nil {
		return fmt.Errorf("it would be refused: %s: %s", r.Name, r.Detail)
	}
	return nil
}

// showPlan shows a plan to people.
func (a *app) showPlan(p apiv1.Plan) error {
	gap := "not known: no such case is on record"
	if p.ExpectedGapMS != nil && p.WorstGapMS != nil {
		gap = fmt.Sprintf("%d ms, at most %d ms (%d on record)", *p.ExpectedGapMS, *p.WorstGapMS, p.GapSamples)
	}
	rows := [][]any{
		{"plan", p.PlanID},
		{"would be done", p.Summary},
		{"term", p.Term},
		{"leader", orDash(p.LeaderID)},
		{"about", orDash(p.TargetID)},
		{"risk", a.risk(p.Risk)},
		{"affected", fmt.Sprintf("%d roles, %d sessions", p.Affected.Roles, p.Affected.Sessions)},
	}
	if p.How != "" || len(p.Candidates) > 0 { // somebody else is to lead
		rows = append(rows, []any{"writes wait", gap})
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
		if err := a.table([]string{"candidate", "eligible", "voter", "priority", "lag", "ruled out by"}, rows); err != nil {
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
