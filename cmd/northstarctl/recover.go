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
