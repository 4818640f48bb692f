package main

import (
	"northstar/api/apiv1"
	"northstar/client"
)

type auditCmd struct {
	Since string `placeholder:"SEQ" help:"Only records after the one with this seq."`
	Limit int    `default:"100" help:"Maximum number: the newest records, or the first ones after --since."`
	Class string `help:"Only calls of operators (to /admin) or of clients (all others, and forbidden ones)."`
	Who   string `placeholder:"NAME" help:"Only calls of this token or certificate."`
	Stale bool   `help:"Read locally from the contacted node, also without a leader (may be stale)."`
}

func (c *auditCmd) Run(a *app) error {
	switch {
	case c.Limit < 1 || c.Limit > apiv1.MaxListLimit:
		return usagef("--limit: must be 1 to %d (got %d)", apiv1.MaxListLimit, c.Limit)
	case c.Class != "" && c.Class != "operators" && c.Class != "clients":
		return usagef("--class: must be operators or clients (got %q)", c.Class)
	}
	q := client.AuditQuery{Since: c.Since, Limit: c.Limit, Class: c.Class, Who: c.Who, Stale: c.Stale}
	return show(a, "asking for the audit log", with((*client.Client).Audit, q), func(log apiv1.Audit) error {
		return tableOf(a, []string{"when", "who", "role", "from", "what", "result", "reason"}, log.Items,
			func(r apiv1.AuditRecord) []any {
				what := r.What
				if r.DryRun {
					what += " (dry run)"
				}
				result := r.Result
				if r.Delayed {
					result += " (delayed)"
				}
				return []any{formatTime(&r.When), orDash(r.Who), r.Role, r.From, what, result, orDash(r.Reason)}
			})
	})
}
