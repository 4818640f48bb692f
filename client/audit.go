package client

import (
	"context"

	"northstar/api/apiv1"
)

// AuditQuery selects records of the audit log. The zero value selects the newest 100.
type AuditQuery struct {
	Since string // Seq of a record, or Next of a response: only later records
	Limit int    // 0: the server's default
	Class string // operators or clients; "": both
	Who   string // name of a token or certificate
	Stale bool   // read from the contacted node, also without a leader
}

// Audit returns records of the audit log, oldest first.
func (c *Client) Audit(ctx context.Context, q AuditQuery) (apiv1.Audit, error) {
	query := params("since", q.Since, "class", q.Class, "who", q.Who, "limit", limitParam(q.Limit))
	class := leaderRead
	if q.Stale {
		query.Set("consistency", apiv1.Stale)
		class = localRead
	}
	return get[apiv1.Audit](ctx, c, &call{op: "audit", retryClass: class, path: apiv1.PathAudit, query: query})
}
