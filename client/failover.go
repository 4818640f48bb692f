package client

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"sync/atomic"

	"northstar/api/apiv1"
	"northstar/cluster"
)

// Transfer moves leadership, and returns once the target is seen leading. The
// context should last longer than the transfer's own timeout (30 s unless the
// request says otherwise).
func (c *Client) Transfer(ctx context.Context, t apiv1.Transfer) (apiv1.TransferResult, error) {
	t.DryRun = false
	return admin[apiv1.TransferResult](ctx, c, "transfer", http.MethodPost, apiv1.PathTransfer, t)
}

// PlanTransfer says what Transfer would do, and does nothing. The same request
// with the plan's ID does exactly that.
func (c *Client) PlanTransfer(ctx context.Context, t apiv1.Transfer) (apiv1.Plan, error) {
	t.DryRun = true
	return admin[apiv1.Plan](ctx, c, "plan a transfer", http.MethodPost, apiv1.PathTransfer, t)
}

// Failover moves leadership through any node that answers: by the leader where
// that can take part, else by an election.
func (c *Client) Failover(ctx context.Context, f apiv1.Failover) (apiv1.TransferResult, error) {
	f.DryRun = false
	return sendOrder[apiv1.TransferResult](ctx, c, "failover", apiv1.PathFailover, f)
}

// PlanFailover says what Failover would do, and does nothing.
func (c *Client) PlanFailover(ctx context.Context, f apiv1.Failover) (apiv1.Plan, error) {
	f.DryRun = true
	return sendOrder[apiv1.Plan](ctx, c, "plan a failover", apiv1.PathFailover, f)
}

// EmergencyFailover makes a node stand for election at once, through any node
// that answers. When the voters refuse, the *cluster.Error in the error has
// their votes.
func (c *Client) EmergencyFailover(ctx context.Context, e apiv1.Emergency) (apiv1.TransferResult, error) {
	e.DryRun = false
	return sendOrder[apiv1.TransferResult](ctx, c, "emergency failover", apiv1.PathEmergency, e)
}

// PlanEmergency says what EmergencyFailover would do, and does nothing.
func (c *Client) PlanEmergency(ctx context.Context, e apiv1.Emergency) (apiv1.Plan, error) {
	e.DryRun = true
	return sendOrder[apiv1.Plan](ctx, c, "plan an emergency failover", apiv1.PathEmergency, e)
}

// Recover recovers a quorum that is lost for good, through any survivor. The
// context should last for a minute.
func (c *Client) Recover(ctx context.Context, r apiv1.Recover) (apiv1.RecoverResult, error) {
	r.DryRun = false
	return sendOrder[apiv1.RecoverResult](ctx, c, "recover", apiv1.PathRecover, r)
}

// PlanRecover says what Recover would do, and does nothing.
func (c *Client) PlanRecover(ctx context.Context, r apiv1.Recover) (apiv1.Plan, error) {
	r.DryRun = true
	return sendOrder[apiv1.Plan](ctx, c, "plan a recovery", apiv1.PathRecover, r)
}

// sendOrder sends a call that any node takes, leader or not, to a node that has just
// shown that it answers: the leader, which may hang, is the last to be relied on
// here. It is sent again only where it never left.
func sendOrder[T any](ctx context.Context, c *Client, op, path string, body any) (T, error) {
	var none T
	ctx, cancel := c.callContext(ctx)
	defer cancel()
	data, err := json.Marshal(body)
	if err != nil {
		return none, fmt.Errorf("%s: encode: %w", op, err)
	}
	q := &call{op: op, retryClass: nonIdempotentWrite, method: http.MethodPost, path: path, body: data, header: http.Header{"Content-Type": {apiv1.TypeJSON}}}
	last := fmt.Errorf("%s", c.finder.unreachableReason())
	for node := range c.responsiveNodes(ctx) {
		var sent atomic.Bool
		a := c.doAttempt(ctx, q, node, &sent)
		switch v := classify(q, a); {
		case v.err == nil:
			return decode[T](a, nil)
		case v.noResponse && !a.sent:
			last = a.err
		case v.mayHaveApplied:
			return none, q.unknown(v.err)
		default:
			return none, q.failed(a, v.err)
		}
	}
	return none, &Error{Op: op, Retry: true, Problem: cluster.Errorf(cluster.CodeNoLeader, "no node answers: %w", firstError(context.Cause(ctx), last))}
}

// responsiveNodes asks all nodes whether they are there, and gives them in the order of
// their answers, for as long as a probe may take.
func (c *Client) responsiveNodes(ctx context.Context) func(yield func(node string) bool) {
	return func(yield func(string) bool) {
		ctx, cancel := context.WithTimeout(ctx, probeTimeout)
		defer cancel()
		urls := c.nodes.urls()
		answers := make(chan string, len(urls))
		for _, url := range urls {
			if !c.spawn(func() {
				if a := c.doAttempt(ctx, &call{op: "leader", method: http.MethodGet, path: apiv1.PathLeader}, url, nil); a.err == nil {
					answers <- url
				} else {
					answers <- ""
				}
			}) {
				return
			}
		}
		for range urls {
			select {
			case node := <-answers:
				if node != "" && !yield(node) {
					return
				}
			case <-ctx.Done():
				return
			}
		}
	}
}
