package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/text"

	"northstar/api/apiv1"
	"northstar/client"
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
		{"risk", a.paint(p.Risk)},
		{"affected", plural(p.Affected.Roles, "role") + ", " + plural(p.Affected.Sessions, "session")},
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

// plural returns a number with its noun.
func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// section prints an empty line and a table, or nothing without items.
func section[T any](a *app, header []string, items []T, row func(T) []any) error {
	if len(items) == 0 {
		return nil
	}
	fmt.Fprintln(a.stdout)
	return tableOf(a, header, items, row)
}

type recoverCmd struct {
	Survivors []string `required:"" placeholder:"ID" help:"All surviving nodes, comma-separated."`
	Confirm   string   `required:"" placeholder:"CLUSTER_ID" help:"The cluster's ID, as shown by status."`
	changeFlags
}

// recoverTimeout is the maximum duration of a recovery on the survivors.
const recoverTimeout = 60 * time.Second

func (r *recoverCmd) Run(a *app) error {
	body := apiv1.Recover{Survivors: r.Survivors, Confirm: r.Confirm, Reason: r.Reason, PlanID: r.Plan}
	if r.DryRun {
		return a.plan(with((*client.Client).PlanRecover, body))
	}
	if body.Reason == "" { // the API requires a reason, an interactive call does not
		body.Reason = "northstarctl recover, without --reason"
	}
	p, err := request(a, "asking the survivors", with((*client.Client).PlanRecover, body))
	switch {
	case err != nil:
		return err
	case p.Refusal != nil:
		return fmt.Errorf("refused: %s: %s", p.Refusal.Name, p.Refusal.Detail)
	}
	if err := a.confirm("Plan: %s.\n%s\n", p.Summary, strings.Join(p.Warnings, "\n")); err != nil {
		return err
	}
	body.PlanID, body.Force = p.PlanID, true
	return show(a, "recovering", func(c *client.Client, ctx context.Context) (apiv1.RecoverResult, error) {
		ctx, cancel := context.WithTimeout(ctx, recoverTimeout+a.Timeout)
		defer cancel()
		return c.Recover(ctx, body)
	}, a.showRecovered)
}

func (a *app) showRecovered(res apiv1.RecoverResult) error {
	fmt.Fprintf(a.stdout, "generation %d of cluster %s, recovery %s\nleader     %s, term %d, revision %d\n\n",
		res.Generation, res.ClusterID, res.RecoveryID, res.RecoveredID, res.Term, res.Revision)
	var rows [][]any
	for _, s := range res.Survivors {
		rows = append(rows, []any{s.ID, s.LastTerm, s.LastIndex, s.Outcome})
	}
	for _, id := range res.LostIDs {
		rows = append(rows, []any{id, "-", "-", "lost: wipe and re-admit, or remove"})
	}
	if err := a.table([]string{"id", "last term", "last index", "outcome"}, rows); err != nil {
		return err
	}
	fmt.Fprintln(a.stdout)
	for _, w := range res.Warnings {
		fmt.Fprintln(a.stdout, a.colour(text.FgYellow, w))
	}
	return nil
}
