package api

import (
	"context"
	"encoding/json"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"northstar/api/apiv1"
	"northstar/cluster"
	"northstar/state"
)

// Auditor keeps the records of calls that put nothing through the log.
type Auditor interface {
	// Record keeps a record some time soon.
	Record(state.AuditRecord)
	// RecordDurable returns once the record is durable, or after a few seconds.
	RecordDurable(context.Context, state.AuditRecord)
}

// auditFields is what the audit record of a call has from its body.
type auditFields struct {
	request string // the body itself, of a call to /admin
	Reason  string `json:"reason"`
	DryRun  bool   `json:"dry_run"`
}

// captureAuditFields keeps what an operator asks for.
func (c *request) captureAuditFields(body []byte) {
	if !c.administrative() {
		return
	}
	var n auditFields
	if json.Unmarshal(body, &n) == nil { // else it is answered with what is wrong with it
		n.request = string(body)
		c.auditFields = n
	}
}

func (c *request) administrative() bool { return strings.HasPrefix(c.route.pattern, "/admin/") }

// proposeHere puts a command through the log here, and with it the record of this
// call.
func (c *request) proposeHere(ctx context.Context, cmd state.Command) (state.Result, error) {
	if c.isAudited(http.StatusOK, 0) {
		r := c.record()
		cmd.Audit = &r
	}
	result, err := c.s.cluster.Propose(ctx, cmd)
	if err == nil && cmd.Audit != nil {
		c.audited = true
	}
	return result, err
}

// isAudited says whether the call is recorded by this node, when it is answered
// so.
func (c *request) isAudited(status int, code cluster.Code) bool {
	switch {
	case c.s.deps.Audit == nil, c.route == nil, c.route.skipAudit, c.audited:
		return false
	case status == http.StatusTemporaryRedirect: // the call itself comes to another node
		return false
	case c.forwarded && code == cluster.CodeNoLeader: // who sent it here goes on, and records how it ended
		return false
	}
	return c.caller.name != "" && c.mutates() || status == http.StatusForbidden
}

// record is what is known of the call before its answer.
func (c *request) record() state.AuditRecord {
	r := state.AuditRecord{
		Class: state.AuditClients, Node: c.s.deps.Node.ID, Who: c.caller.name, Role: string(c.caller.role), From: c.from,
		What: c.r.Method + " " + c.r.URL.EscapedPath(), Request: c.auditFields.request, Reason: c.auditFields.Reason, DryRun: c.auditFields.DryRun,
	}
	if c.caller.node != "" {
		r.Role = "node"
	} else if c.administrative() {
		r.Class = state.AuditOperators
	}
	r.What = r.What[:min(len(r.What), state.MaxAuditText)]
	return r
}

// audit records the call as it is about to be answered. Operators' calls are
// answered only when their record is safe.
func (c *request) audit(status int) {
	var code cluster.Code
	if c.failed != nil {
		code = c.failed.Code
	}
	if !c.isAudited(status, code) {
		return
	}
	c.audited = true
	r := c.record()
	r.At, r.Status, r.Code = time.Now().UnixNano(), status, code
	if c.failed != nil {
		r.Detail = c.failed.Detail
	}
	if status == http.StatusForbidden {
		r.Class = state.AuditClients // so that nobody pushes out the records of operators
	}
	if r.Class == state.AuditOperators {
		c.s.deps.Audit.RecordDurable(context.WithoutCancel(c.r.Context()), r)
	} else {
		c.s.deps.Audit.Record(r)
	}
}

// callerAddress is where a call comes from: what a forwarding node says, when
// that is believed.
func callerAddress(r *http.Request, believed bool) string {
	if said := r.Header.Get(apiv1.HeaderCaller); said != "" && believed {
		if addr, err := netip.ParseAddrPort(said); err == nil {
			return addr.String()
		}
	}
	return r.RemoteAddr
}

// Values of ?class= of GET /admin/audit.
var auditClasses = map[string]state.AuditClass{"clients": state.AuditClients, "operators": state.AuditOperators}

// listAudit serves GET /admin/audit: the newest records, or those after since,
// in either case oldest first.
func listAudit(c *request) error {
	limit, err := c.queryLimit(apiv1.DefaultListLimit)
	if err != nil {
		return err
	}
	class, filtered := auditClasses[c.query.Get("class")]
	if c.query.Has("class") && !filtered {
		return badRequest("class: want clients or operators, got %q", c.query.Get("class"))
	}
	var since uint64
	if c.query.Has("since") {
		if since, err = strconv.ParseUint(c.query.Get("since"), 10, 64); err != nil {
			return badRequest("since: want the seq of a record, got %q", c.query.Get("since"))
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

// auditPage is a page of the log.
func auditPage(v *state.View, from bool, since uint64, limit int, wanted func(*state.AuditRecord) bool) apiv1.Audit {
	counts := v.AuditCounts()
	out := apiv1.Audit{
		Items:   []apiv1.AuditRecord{},
		Dropped: apiv1.AuditDropped{Clients: counts.Dropped[state.AuditClients], Operators: counts.Dropped[state.AuditOperators], Lost: counts.Lost},
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
	var newest []*state.AuditRecord
	last := uint64(0)
	for r := range v.AuditBackward {
		last = max(last, r.Seq)
		if wanted(r) {
			newest = append(newest, r)
		}
		if len(newest) == limit {
			break
		}
	}
	for i := len(newest) - 1; i >= 0; i-- {
		out.Items = append(out.Items, wireAudit(newest[i]))
	}
	out.Next = strconv.FormatUint(last, 10)
	return out
}

func wireAudit(r *state.AuditRecord) apiv1.AuditRecord {
	out := apiv1.AuditRecord{
		Seq: strconv.FormatUint(r.Seq, 10), When: unixNano(r.At), Class: "clients", Node: string(r.Node), Who: r.Who, Role: r.Role, From: r.From, What: r.What,
		Reason: r.Reason, Result: "ok", Status: r.Status, Code: int(r.Code), Detail: r.Detail, DryRun: r.DryRun, Delayed: r.Delayed,
	}
	if r.Class == state.AuditOperators {
		out.Class = "operators"
	}
	if r.Request != "" {
		_ = json.Unmarshal([]byte(r.Request), &out.Request) // of a later version, perhaps: without it
	}
	if r.Code != 0 {
		out.Result = r.Code.Name()
	}
	return out
}
