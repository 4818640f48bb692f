package client

import (
	"context"
	"fmt"
	"net/http"
	"net/url"

	"northstar/api/apiv1"
)

// CreateSession starts a session. The request may be sent again: a session whose response was lost ends after its
// TTL.
func (c *Client) CreateSession(ctx context.Context, s apiv1.SessionCreate) (apiv1.SessionCreated, error) {
	q := &call{
		op: "create session", retryClass: idempotentWrite, method: http.MethodPost, path: apiv1.PathSessions,
		hasTimeoutParam: true,
	}
	return sendJSON[apiv1.SessionCreated](ctx, c, q, s)
}

// RenewSession renews a session. It then lives for its TTL, counted from this call or later. ErrSessionEnded: the
// session has ended.
func (c *Client) RenewSession(ctx context.Context, id string) (apiv1.Renewal, error) {
	return decode[apiv1.Renewal](c.do(ctx, &call{
		op: "renew session " + id, method: http.MethodPost, path: sessionPath(id) + "/renew", hasTimeoutParam: true,
	}))
}

// RenewSessions renews up to 1000 sessions.
func (c *Client) RenewSessions(ctx context.Context, ids []string) (apiv1.RenewedMany, error) {
	q := &call{
		op: fmt.Sprintf("renew %d sessions", len(ids)), method: http.MethodPost, path: apiv1.PathRenew,
		hasTimeoutParam: true,
	}
	return sendJSON[apiv1.RenewedMany](ctx, c, q, apiv1.RenewMany{SessionIDs: ids})
}

// EndSession ends a session and frees what it holds. ErrSessionEnded: the session had ended before.
func (c *Client) EndSession(ctx context.Context, id string) error {
	return c.remove(ctx, "end session "+id, sessionPath(id))
}

// GetSession reads a session and what it holds.
func (c *Client) GetSession(ctx context.Context, id string) (apiv1.Session, error) {
	return get[apiv1.Session](ctx, c, &call{op: "session " + id, path: sessionPath(id), hasTimeoutParam: true})
}

func sessionPath(id string) string { return apiv1.PathSessions + "/" + url.PathEscape(id) }

func nodePath(id string) string { return apiv1.PathNodes + "/" + url.PathEscape(id) }

// remove sends a DELETE. It is sent again only if the previous attempt certainly did nothing.
func (c *Client) remove(ctx context.Context, op, path string) error {
	_, err := c.do(ctx, &call{
		op: op, retryClass: nonIdempotentWrite, method: http.MethodDelete, path: path, hasTimeoutParam: true,
	})
	return err
}

// PutNode registers or updates an application node.
func (c *Client) PutNode(ctx context.Context, id string, n apiv1.NodePut) (apiv1.Node, error) {
	q := &call{
		op: "register node " + id, retryClass: idempotentWrite, method: http.MethodPut, path: nodePath(id),
		hasTimeoutParam: true,
	}
	return sendJSON[apiv1.Node](ctx, c, q, n)
}

// NodeFilter selects application nodes; the zero value selects all.
type NodeFilter struct {
	Status     string // joining, active, draining or dead
	Role       string
	Capability string
}

// Nodes lists the application nodes, at most apiv1.MaxListLimit of them, after the given ID ("": from the first).
func (c *Client) Nodes(ctx context.Context, f NodeFilter, after string) (apiv1.Nodes, error) {
	query := params("limit", limitParam(apiv1.MaxListLimit),
		"status", f.Status, "role", f.Role, "capability", f.Capability, "after", after)
	return get[apiv1.Nodes](ctx, c, &call{
		op: "list nodes", path: apiv1.PathNodes, query: query, hasTimeoutParam: true, limit: maxListResponse,
	})
}

// RemoveNode removes an application node from the registry.
func (c *Client) RemoveNode(ctx context.Context, id string) error {
	return c.remove(ctx, "remove node "+id, nodePath(id))
}
