package client

import (
	"context"
	"net/http"
	"net/url"
	"strconv"

	"northstar/api/apiv1"
)

// AuditQuery says which records of the audit log are asked for. The zero value
// is the newest 100.
type AuditQuery struct {
	Since string // the Seq of a record, or an answer's Next: only what came after
	Limit int    // 0: the server's default
	Class string // operators or clients; "": both
	Who   string // name of a token or certificate
	Stale bool   // as the node asked has it, also without a leader
}

// Audit gives records of the audit log, oldest first.
func (c *Client) Audit(ctx context.Context, q AuditQuery) (apiv1.Audit, error) {
	query := url.Values{}
	for name, value := range map[string]string{"since": q.Since, "class": q.Class, "who": q.Who} {
		if value != "" {
			query.Set(name, value)
		}
	}
	if q.Limit > 0 {
		query.Set("limit", strconv.Itoa(q.Limit))
	}
	kind := leaderRead
	if q.Stale {
		query.Set("consistency", apiv1.Stale)
		kind = localRead
	}
	return decode[apiv1.Audit](c.do(ctx, &call{op: "audit", retryClass: kind, method: http.MethodGet, path: apiv1.PathAudit, query: query}))
}
