package main

import (
	"context"

	"northstar/api/apiv1"
	"northstar/client"
)

type auditCmd struct {
	Since string `placeholder:"SEQ" help:"Only what came after the record with this seq."`
	Limit int    `default:"100" help:"At most so many: the newest, or the first after --since."`
	Class string `help:"Only calls of operators (to /admin) or of clients (all others, and what was forbidden)."`
	Who   string `placeholder:"NAME" help:"Only of this token or certificate."`
	Stale bool   `help:"As the node asked has it, also without a leader."`
}

func (c *auditCmd) Run(a *app) error {
	switch {
	case c.Limit < 1 || c.Limit > apiv1.MaxListLimit:
		return usagef("--limit: want 1 to %d, got %d", apiv1.MaxListLimit, c.Limit)
	case c.Class != "" && c.Class != "operators" && c.Class != "clients":
		return usagef("--class: want operators or clients, got %q", c.Class)
	}
	q := client.AuditQuery{Since: c.Since, Limit: c.Limit, Class: c.Class, Who: c.Who, Stale: c.Stale}
	log, err := request(a, "asking for the audit log", func(ctx context.Context, cl *client.Client) (apiv1.Audit, error) {
		return cl.Audit(ctx, q)
	})
	if err != nil {
		return err
	}
	return a.printResult(log, func() error {
		rows := make([][]any, 0, len(log.Items))
		for _, r := range log.Items {
			what := r.What
			if r.DryRun {
				what += " (dry run)"
			}
			result := r.Result
			if r.Delayed {
				result += " (delayed)"
			}
			rows = append(rows, []any{r.When.UTC().Format(timeForm), orDash(r.Who), r.Role, r.From, what, result, orDash(r.Reason)})
		}
		return a.table([]string{"when", "who", "role", "from", "what", "result", "reason"}, rows)
	})
}
