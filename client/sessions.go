package client

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"northstar/api/apiv1"
)

// CreateSession starts a session. One that is lost on the way is gone after its
// TTL, so that the request may be sent again.
func (c *Client) CreateSession(ctx context.Context, s apiv1.SessionCreate) (apiv1.SessionCreated, error) {
	return sendJSON[apiv1.SessionCreated](ctx, c, &call{op: "create session", retryClass: idempotentWrite, method: http.MethodPost, path: apiv1.PathSessions, hasTimeoutParam: true}, s)
}

// RenewSession renews a session: it lives for its TTL, counted from when this call
// was made at the earliest. ErrSessionEnded when it does not live any more.
func (c *Client) RenewSession(ctx context.Context, id string) (apiv1.Renewal, error) {
	return decode[apiv1.Renewal](c.do(ctx, &call{op: "renew session " + id, retryClass: leaderRead, method: http.MethodPost, path: sessionPath(id) + "/renew", hasTimeoutParam: true}))
}

// RenewSessions renews up to 1000 sessions at once.
func (c *Client) RenewSessions(ctx context.Context, ids []string) (apiv1.RenewedMany, error) {
	q := &call{op: fmt.Sprintf("renew %d sessions", len(ids)), retryClass: leaderRead, method: http.MethodPost, path: apiv1.PathRenew, hasTimeoutParam: true}
	return sendJSON[apiv1.RenewedMany](ctx, c, q, apiv1.RenewMany{SessionIDs: ids})
}

// EndSession ends a session and frees what it holds. ErrSessionEnded when it does
// not live any more.
func (c *Client) EndSession(ctx context.Context, id string) error {
	_, err := c.do(ctx, &call{op: "end session " + id, retryClass: nonIdempotentWrite, method: http.MethodDelete, path: sessionPath(id), hasTimeoutParam: true})
	return err
}

// GetSession reads a session and what it holds.
func (c *Client) GetSession(ctx context.Context, id string) (apiv1.Session, error) {
	return decode[apiv1.Session](c.do(ctx, &call{op: "session " + id, retryClass: leaderRead, method: http.MethodGet, path: sessionPath(id), hasTimeoutParam: true}))
}

func sessionPath(id string) string { return apiv1.PathSessions + "/" + url.PathEscape(id) }

// sendJSON sends q with a JSON body and reads the answer.
func sendJSON[T any](ctx context.Context, c *Client, q *call, body any) (T, error) {
	data, err := json.Marshal(body)
	if err != nil {
		var none T
		return none, fmt.Errorf("%s: encode: %w", q.op, err)
	}
	q.body = data
	q.header = http.Header{"Content-Type": {apiv1.TypeJSON}}
	return decode[T](c.do(ctx, q))
}

// PutNode registers an application node, or says what it is now.
func (c *Client) PutNode(ctx context.Context, id string, n apiv1.NodePut) (apiv1.Node, error) {
	q := &call{op: "register node " + id, retryClass: idempotentWrite, method: http.MethodPut, path: apiv1.PathNodes + "/" + url.PathEscape(id), hasTimeoutParam: true}
	return sendJSON[apiv1.Node](ctx, c, q, n)
}

// NodeFilter says which application nodes to list; the zero value: all.
type NodeFilter struct {
	Status     string // joining, active, draining or dead
	Role       string
	Capability string
}

// Nodes lists the application nodes, at most apiv1.MaxListLimit of them, after the
// ID that is given ("": from the first).
func (c *Client) Nodes(ctx context.Context, f NodeFilter, after string) (apiv1.Nodes, error) {
	query := url.Values{"limit": {fmt.Sprint(apiv1.MaxListLimit)}}
	for name, v := range map[string]string{"status": f.Status, "role": f.Role, "capability": f.Capability, "after": after} {
		if v != "" {
			query.Set(name, v)
		}
	}
	return decode[apiv1.Nodes](c.do(ctx, &call{op: "list nodes", retryClass: leaderRead, method: http.MethodGet, path: apiv1.PathNodes, query: query, hasTimeoutParam: true, limit: maxListResponse}))
}

// RemoveNode takes an application node out of the registry.
func (c *Client) RemoveNode(ctx context.Context, id string) error {
	_, err := c.do(ctx, &call{op: "remove node " + id, retryClass: nonIdempotentWrite, method: http.MethodDelete, path: apiv1.PathNodes + "/" + url.PathEscape(id), hasTimeoutParam: true})
	return err
}

// campaignSlack is what a campaign may take beside its wait in the queue.
const campaignSlack = 10 * time.Second
