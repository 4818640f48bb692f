package api

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"

	"northstar/api/apiv1"
	"northstar/api/problem"
	"northstar/cluster"
	"northstar/state"
)

var auditClasses = map[string]state.AuditClass{"clients": state.AuditClients, "operators": state.AuditOperators}

// listAudit serves GET /admin/audit: the newest records, or those after since, in both cases oldest first.
func listAudit(c *request) error {
	limit, err := c.queryLimit(apiv1.DefaultListLimit)
	if err != nil {
		return err
	}
	class, filtered := auditClasses[c.query.Get("class")]
	if c.query.Has("class") && !filtered {
		return problem.BadRequest("class: must be clients or operators (got %q)", c.query.Get("class"))
	}
	var since uint64
	if c.query.Has("since") {
		if since, err = strconv.ParseUint(c.query.Get("since"), 10, 64); err != nil {
			return problem.BadRequest("since: must be the seq of a record (got %q)", c.query.Get("since"))
		}
	}
	who := c.query.Get("who")
	wanted := func(r *state.AuditRecord) bool {
		return (!filtered || r.Class == class) && (who == "" || r.Who == who)
	}
	return c.read(func(v *state.View) error {
		return c.reply(auditPage(v, c.query.Has("since"), since, limit, wanted))
	})
}

func auditPage(v *state.View, from bool, since uint64, limit int, wanted func(*state.AuditRecord) bool) apiv1.Audit {
	counts := v.AuditCounts()
	out := apiv1.Audit{
		Items: []apiv1.AuditRecord{},
		Dropped: apiv1.AuditDropped{
			Clients:   counts.Dropped[state.AuditClients],
			Operators: counts.Dropped[state.AuditOperators], Lost: counts.Lost,
		},
	}
	if from {
		last := since
		for r := range v.AuditAfter(since) {
			if len(out.Items) == limit {
				break
			}
			last = r.Seq
			if wanted(r) {
				out.Items = append(out.Items, wireAudit(r))
			}
		}
		out.Next = strconv.FormatUint(last, 10)
		return out
	}
	last := uint64(0)
	for r := range v.AuditBackward {
		last = max(last, r.Seq)
		if wanted(r) {
			out.Items = append(out.Items, wireAudit(r))
		}
		if len(out.Items) == limit {
			break
		}
	}
	slices.Reverse(out.Items)
	out.Next = strconv.FormatUint(last, 10)
	return out
}

func wireAudit(r *state.AuditRecord) apiv1.AuditRecord {
	from, via, _ := strings.Cut(r.From, viaText)
	code := (&cluster.Error{Code: r.Code, Status: r.Status}).Shown() // as the client saw it
	out := apiv1.AuditRecord{
		Seq: strconv.FormatUint(r.Seq, 10), When: unixNano(r.At), Class: "clients", Node: string(r.Node), Who: r.Who,
		Role: r.Role, From: from, ForwardedBy: via, What: r.What,
		Reason: r.Reason, Result: "ok", Status: r.Status, Code: int(code), Detail: r.Detail, DryRun: r.DryRun,
		Delayed: r.Delayed,
	}
	if r.Class == state.AuditOperators {
		out.Class = "operators"
	}
	if r.Request != "" {
		// a record of a later version may not be readable: leave the request out
		_ = json.Unmarshal([]byte(r.Request), &out.Request)
	}
	if code != 0 {
		out.Result = code.Name()
	}
	return out
}
