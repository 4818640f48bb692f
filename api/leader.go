package api

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"northstar/api/apiv1"
	"northstar/api/forward"
	"northstar/api/token"
	"northstar/cluster"
	"northstar/state"
)

// Auditor keeps the audit records of calls that write no command to the log.
type Auditor interface {
	// Record stores a record asynchronously.
	Record(state.AuditRecord)
	// RecordDurable returns once the record is durable, or after a few seconds.
	RecordDurable(context.Context, state.AuditRecord)
}

type auditFields struct {
	request string // the body of a call to /admin
	Reason  string `json:"reason"`
	DryRun  bool   `json:"dry_run"`
}

func (c *request) captureAuditFields(body []byte) {
	if !c.administrative() {
		return
	}
	var n auditFields
	if json.Unmarshal(body, &n) == nil { // an invalid body is answered with its error
		n.request = string(body)
		c.auditFields = n
	}
}

func (c *request) administrative() bool { return c.route.Role == token.Operator }

// onLeader has the leader serve the request. A nil error means that work.Local succeeded here.
func (c *request) onLeader(ctx context.Context, work forward.Request) error {
	work.Client, work.HTTP, work.Body = c, c.r, c.body
	work.Redirect, work.Forwarded = c.redirect, c.forwarded
	return c.s.forward.Serve(ctx, work)
}

// Caller implements forward.Client.
func (c *request) Caller() forward.Caller {
	out := forward.Caller{Address: c.from, Authorization: c.r.Header.Get("Authorization")}
	if c.caller.name != "" {
		out.Identity = c.caller.header()
	}
	return out
}

// sendTo has another node serve the request, and copies its response.
func (c *request) sendTo(ctx context.Context, id cluster.NodeID, addr string, body []byte) error {
	node := &forward.Leader{ID: id, Changed: context.Background()}
	return c.s.forward.Send(ctx, node, addr, &forward.Request{
		Client: c, HTTP: c.r, Write: true, Body: body,
	})
}

// Proposals proposes commands. Methods may be called by any goroutine; their errors are *cluster.Error.
type Proposals interface {
	// Propose returns once the command is applied here, or is known not to be. CodeNoLeader: it is not applied.
	// CodeOutcomeUnknown: it may be applied.
	Propose(ctx context.Context, c state.Command) (state.Result, error)
	// AwaitAppliedEverywhere returns once every reachable node has applied what this node has applied.
	AwaitAppliedEverywhere(ctx context.Context)
}

// propose proposes a command, here or at the leader. idempotent: it may be applied twice.
func (c *request) propose(cmd state.Command, idempotent bool) (result state.Result, err error) {
	number, end, err := c.number(&cmd)
	if err != nil {
		return result, err
	}
	defer end()
	err = c.onLeader(c.ctx, forward.Request{
		Write: true, Idempotent: idempotent || cmd.Idempotency != nil, Number: number,
		Local: func(ctx context.Context) (err error) {
			result, err = c.proposeHere(ctx, cmd)
			return err
		},
	})
	switch {
	case err != nil:
		return result, err
	case result.Err != nil && result.Role != nil:
		return result, c.heldError(result.Err, result.Role)
	case result.Err != nil:
		return result, result.Err
	}
	return result, nil
}

// proposeValid is propose for a command that the body decides: an invalid one is refused here.
func (c *request) proposeValid(cmd state.Command, idempotent bool) (state.Result, error) {
	if err := cmd.Validate(); err != nil {
		return state.Result{}, err
	}
	return c.propose(cmd, idempotent)
}

// proposeHere proposes a command here, with the audit record of this call.
func (c *request) proposeHere(ctx context.Context, cmd state.Command) (state.Result, error) {
	if err := c.checkCommand(ctx, &cmd); err != nil {
		return state.Result{}, err
	}
	if c.isAudited(http.StatusOK, 0) {
		r := c.record()
		cmd.Audit = &r
	}
	result, err := c.s.deps.Proposals.Propose(ctx, cmd)
	if err == nil && cmd.Audit != nil {
		c.audited = true
	}
	if err == nil && result.Err != nil && cmd.Idempotency != nil && c.forwarded {
		c.Header()[apiv1.HeaderDecided] = []string{"1"}
	}
	return result, err
}

// AnsweredElsewhere implements forward.Client.
func (c *request) AnsweredElsewhere(code cluster.Code) {
	c.audited = true
	if code == cluster.CodeOutcomeUnknown {
		c.s.deps.Metrics.OutcomeUnknown()
	}
}

// isAudited reports whether this node records the call.
func (c *request) isAudited(status int, code cluster.Code) bool {
	switch {
	case c.route == nil, c.audited, c.route.SkipAudit && status != http.StatusForbidden:
		return false
	case status == http.StatusTemporaryRedirect: // the client sends the call to another node
		return false
	case c.ofNode() && (code == cluster.CodeNoLeader || c.repeated && code == cluster.CodeOutcomeUnknown):
		return false // the forwarding node retries, and records the result
	}
	// A request without an identity is only counted: it could fill the log.
	return c.caller.name != "" && (c.write || c.recordRead || status == http.StatusForbidden)
}

// ofNode reports whether another node has forwarded the request, or made it. A client may say so, too: it must not keep
// its calls out of the log. Where nodes forward tokens, they are not told from clients.
func (c *request) ofNode() bool {
	return c.forwarded && (c.via != "" || c.caller.node != "" || c.s.forward.ForwardToken)
}

// record returns the audit record of the call before its response.
func (c *request) record() state.AuditRecord {
	r := state.AuditRecord{
		Class: state.AuditClients, Node: c.s.deps.Node.ID, Who: c.caller.name, Role: string(c.caller.role),
		From:    auditFrom(c.from, c.via),
		What:    c.r.Method + " " + c.r.URL.EscapedPath(),
		Request: c.auditFields.request, Reason: c.auditFields.Reason, DryRun: c.auditFields.DryRun,
	}
	if c.caller.node != "" {
		r.Role = "node"
	} else if c.administrative() {
		r.Class = state.AuditOperators
	}
	r.What = r.What[:min(len(r.What), state.MaxAuditText)]
	if len(r.Request) > state.MaxAuditText { // a command with such a record would be refused
		r.Request = ""
	}
	return r
}

const viaText = " via "

// auditFrom returns the origin of a record: the caller's address and, if another node forwarded the call, that node.
func auditFrom(address, via string) string {
	if via == "" {
		return address
	}
	return address + viaText + via
}

// audit records the call before its response. An operator's call is answered only when its record is durable.
func (c *request) audit(status int) {
	var code cluster.Code
	if c.failed != nil {
		code = c.failed.Shown()
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
		r.Class = state.AuditClients // an unauthorized client must not evict records of operators
		ok, skipped := c.s.refusals.allow(c.caller.header(), time.Now())
		if !ok {
			c.s.deps.Metrics.Audit("limited", 1)
			return
		}
		if skipped > 0 {
			r.Detail += fmt.Sprintf(" (%d more refusals of this caller are not recorded)", skipped)
		}
	}
	if r.Class == state.AuditOperators {
		c.s.deps.Audit.RecordDurable(context.WithoutCancel(c.r.Context()), r)
	} else {
		c.s.deps.Audit.Record(r)
	}
}
