package client

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"sync/atomic"

	"northstar/api/apiv1"
	"northstar/cluster"
)

// Transfer moves leadership, and returns once the target is observed as leader. The context must outlast the
// transfer's own timeout (30 s by default).
func (c *Client) Transfer(ctx context.Context, t apiv1.Transfer) (apiv1.TransferResult, error) {
	t.DryRun = false
	return admin[apiv1.TransferResult](ctx, c, "transfer", http.MethodPost, apiv1.PathTransfer, t)
}

// PlanTransfer returns what Transfer would do, and changes nothing. The same request with the plan's ID carries the
// plan out.
func (c *Client) PlanTransfer(ctx context.Context, t apiv1.Transfer) (apiv1.Plan, error) {
	t.DryRun = true
	return admin[apiv1.Plan](ctx, c, "plan a transfer", http.MethodPost, apiv1.PathTransfer, t)
}

// Failover moves leadership through any node that responds. The leader transfers it if possible; otherwise an
// election does.
func (c *Client) Failover(ctx context.Context, f apiv1.Failover) (apiv1.TransferResult, error) {
	f.DryRun = false
	return sendOrder[apiv1.TransferResult](ctx, c, "failover", apiv1.PathFailover, f)
}

// PlanFailover returns what Failover would do, and changes nothing.
func (c *Client) PlanFailover(ctx context.Context, f apiv1.Failover) (apiv1.Plan, error) {
	f.DryRun = true
	return sendOrder[apiv1.Plan](ctx, c, "plan a failover", apiv1.PathFailover, f)
}

// EmergencyFailover makes a node start an election immediately, through any node that responds. If the voters
// refuse, the *cluster.Error in the error has their votes.
func (c *Client) EmergencyFailover(ctx context.Context, e apiv1.Emergency) (apiv1.TransferResult, error) {
	e.DryRun = false
	return sendOrder[apiv1.TransferResult](ctx, c, "emergency failover", apiv1.PathEmergency, e)
}

// PlanEmergency returns what EmergencyFailover would do, and changes nothing.
func (c *Client) PlanEmergency(ctx context.Context, e apiv1.Emergency) (apiv1.Plan, error) {
	e.DryRun = true
	return sendOrder[apiv1.Plan](ctx, c, "plan an emergency failover", apiv1.PathEmergency, e)
}

// Recover recovers from a permanent loss of quorum, through any survivor. The context should last for a minute.
func (c *Client) Recover(ctx context.Context, r apiv1.Recover) (apiv1.RecoverResult, error) {
	r.DryRun = false
	return sendOrder[apiv1.RecoverResult](ctx, c, "recover", apiv1.PathRecover, r)
}

// PlanRecover returns what Recover would do, and changes nothing.
func (c *Client) PlanRecover(ctx context.Context, r apiv1.Recover) (apiv1.Plan, error) {
	r.DryRun = true
	return sendOrder[apiv1.Plan](ctx, c, "plan a recovery", apiv1.PathRecover, r)
}

// sendOrder sends an admin call that any node accepts to a node that has just responded, because the leader may be
// hung. It tries another node only if the request was not sent.
func sendOrder[T any](ctx context.Context, c *Client, op, path string, body any) (T, error) {
	var none T
	ctx, cancel := c.callContext(ctx)
	defer cancel()
	q := &call{op: op, retryClass: nonIdempotentWrite, method: http.MethodPost, path: path}
	if err := q.setJSON(body); err != nil {
		return none, err
	}
	last := errors.New(c.finder.unreachableReason())
	probing, stop := context.WithTimeout(ctx, probeTimeout)
	defer stop()
	for node, err := range c.finder.askAll(probing, c.nodes.urls()) {
		if err != nil {
			continue
		}
		var sent atomic.Bool
		a := c.doAttempt(ctx, q, node, &sent)
		v := classify(q, a)
		if !v.noResponse || a.sent {
			return decode[T](a, q.conclude(a, v))
		}
		last = a.err
	}
	problem := cluster.Errorf(cluster.CodeNoLeader, "no node responds: %w", cmp.Or(context.Cause(ctx), last))
	return none, &Error{Op: op, Retry: true, Problem: problem}
}
