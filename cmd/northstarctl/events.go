package main

import (
	"fmt"
	"iter"
	"slices"
	"strings"

	"northstar/api/apiv1"
	"northstar/client"
	"northstar/cluster"
)

type eventsCmd struct {
	Follow bool   `short:"f" help:"Print events as they happen, until Ctrl-C."`
	Since  string `placeholder:"SEQ" help:"Only events after the one with this seq."`
	Type   string `help:"Only events of this type: election, failover, transfer, member, health, splitbrain, role, disk, quota or node."`
}

func (e *eventsCmd) Run(a *app) error {
	if e.Type != "" && !slices.Contains(cluster.EventTypes, e.Type) {
		return usagef("--type: must be one of %s (got %q)", strings.Join(cluster.EventTypes, ", "), e.Type)
	}
	if e.Follow {
		return e.follow(a)
	}
	list, err := request(a, "asking for events", with2((*client.Client).Events, e.Since, e.Type))
	if err != nil {
		return err
	}
	a.warnMissing("events", list.Missing)
	return a.printResult(list, func() error {
		return tableOf(a, []string{"time", "node", "type", "term", "message"}, list.Items, func(ev apiv1.Event) []any {
			return []any{formatTime(&ev.At), ev.Node, ev.Type, ev.Term, ev.Message}
		})
	})
}

func (e *eventsCmd) follow(a *app) error {
	return follow(a, func(c *client.Client) iter.Seq2[apiv1.Event, error] {
		return c.FollowEvents(a.ctx, e.Since, e.Type)
	}, func(ev apiv1.Event) (any, string) {
		return ev, fmt.Sprintf("%s  %-8s %-10s %s", formatTime(&ev.At), ev.Node, ev.Type,
			cluster.Printable(ev.Message))
	})
}

// warnMissing warns that the response lacks what only unreachable nodes have.
func (a *app) warnMissing(what string, nodes []string) {
	if len(nodes) > 0 {
		fmt.Fprintf(a.stderr, "northstarctl: warning: %s of unreachable nodes are missing: %s\n", what,
			strings.Join(nodes, ", "))
	}
}

type auditCmd struct {
	Since string `placeholder:"SEQ" help:"Only records after the one with this seq."`
	Limit int    `default:"100" help:"Maximum number: the newest records, or the first ones after --since."`
	Class string `enum:"operators,clients,all" default:"operators" help:"Calls of operators (to /admin), of clients (all others, and forbidden ones), or all."`
	Who   string `placeholder:"NAME" help:"Only calls of this token or certificate."`
	Stale bool   `help:"Read locally from the contacted node, also without a leader (may be stale)."`
}

func (c *auditCmd) Run(a *app) error {
	if c.Limit < 1 || c.Limit > apiv1.MaxListLimit {
		return usagef("--limit: must be 1 to %d (got %d)", apiv1.MaxListLimit, c.Limit)
	}
	q := client.AuditQuery{Since: c.Since, Limit: c.Limit, Class: c.Class, Who: c.Who, Stale: c.Stale}
	if c.Class == "all" {
		q.Class = ""
	}
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
