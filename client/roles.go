package client

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"northstar/api/apiv1"
	"northstar/cluster"
)

// campaignSlack is the time that a campaign may take in addition to its wait in the queue.
const campaignSlack = 10 * time.Second

// CampaignRole makes a session campaign for a role, and waits as long as the request says. It survives leader
// changes and keeps its place. ErrRoleHeld: the session was not elected; the error's problem names the holder.
//
// If the credentials are refused while it waits, it asks once more with those that the client has by then.
func (c *Client) CampaignRole(ctx context.Context, role string, r Campaign) (Role, error) {
	wait, began := time.Duration(r.WaitMS)*time.Millisecond, time.Now()
	ctx, cancel := context.WithTimeout(ctx, wait+campaignSlack)
	defer cancel()
	res, err := c.campaignRole(ctx, role, r)
	if wait == 0 || !cluster.IsCode(err, cluster.CodeUnauthenticated) {
		return res, err
	}
	c.closeIdleConnections() // they have shown the old certificate
	r.WaitMS = max(0, wait-time.Since(began)).Milliseconds()
	return c.campaignRole(ctx, role, r)
}

func (c *Client) campaignRole(ctx context.Context, role string, r Campaign) (Role, error) {
	timeout := time.Duration(r.WaitMS)*time.Millisecond + campaignSlack
	q := &call{
		op: "campaign for role " + role, retryClass: idempotentWrite, method: http.MethodPost,
		path: rolePath(role) + "/campaign", attemptTimeout: timeout, long: r.WaitMS > 0,
	}
	return sendJSON[Role](ctx, c, q, r)
}

// ResignRole releases a role, or a session's place in its queue.
func (c *Client) ResignRole(ctx context.Context, role, session string) (RoleResult, error) {
	return decode[RoleResult](c.do(ctx, &call{
		op: "resign from role " + role, retryClass: nonIdempotentWrite, method: http.MethodDelete, path: rolePath(role),
		query: url.Values{"session_id": {session}}, hasTimeoutParam: true,
	}))
}

// AcknowledgeRevocation acknowledges the revocation of a tenure: the client has stopped acting for it, so that others
// may be elected. A tenure with another token is not affected. ErrFenced: there is nothing to acknowledge.
func (c *Client) AcknowledgeRevocation(ctx context.Context, role, session string, token uint64) error {
	_, err := c.do(ctx, &call{
		op: "acknowledge the loss of role " + role, retryClass: idempotentWrite, method: http.MethodDelete,
		path: rolePath(role), hasTimeoutParam: true,
		query: url.Values{"session_id": {session}, "token": {strconv.FormatUint(token, 10)}},
	})
	return err
}

// GetRole returns the holder of a role and the candidates in its queue. ErrNotFound: the role is vacant.
func (c *Client) GetRole(ctx context.Context, role string) (Role, error) {
	return get[Role](ctx, c, &call{op: "role " + role, path: rolePath(role), hasTimeoutParam: true})
}

// InspectRole returns a role with its queue, also without a holder. It returns ErrNotFound for an unknown role.
func (c *Client) InspectRole(ctx context.Context, role string) (Role, error) {
	return get[Role](ctx, c, &call{
		op: "role " + role, path: rolePath(role), query: params("all", "true"), hasTimeoutParam: true,
	})
}

// Roles lists the held roles, or with all also the vacant ones, after the given name ("": from the first).
func (c *Client) Roles(ctx context.Context, all bool, after string) (Roles, error) {
	query := params("limit", limitParam(apiv1.MaxListLimit), "after", after)
	if all {
		query.Set("all", "true")
	}
	return get[Roles](ctx, c, &call{
		op: "list roles", path: apiv1.PathRoles, query: query, hasTimeoutParam: true, limit: maxListResponse,
	})
}

// RoleHistory returns the past holders of a role, newest first.
func (c *Client) RoleHistory(ctx context.Context, role string) (RoleHistory, error) {
	q := &call{op: "history of role " + role, path: rolePath(role) + "/history", hasTimeoutParam: true}
	return get[RoleHistory](ctx, c, q)
}

func rolePath(role string) string { return apiv1.PathRoles + "/" + url.PathEscape(role) }

// RoleChange is one election or vacancy of a role.
type RoleChange struct {
	RoleEvent
	Elected bool // false: vacated
}

// WatchRole yields the elections and vacancies of a role, each once and in order, as Watch does for keys.
func (c *Client) WatchRole(ctx context.Context, role string, opts WatchOptions) iter.Seq2[RoleChange, error] {
	q := &call{op: "watch role " + role, path: rolePath(role) + "/watch", query: url.Values{}}
	return watch(ctx, c, q, opts, func(e event) (RoleChange, uint64, error) {
		ch := RoleChange{Elected: e.name == apiv1.EventElected}
		if err := json.Unmarshal(e.data, &ch.RoleEvent); err != nil {
			return ch, 0, fmt.Errorf("decode event: %w", err)
		}
		return ch, ch.Revision, nil
	})
}

// CreateSession starts a session. The request may be sent again: a session whose response was lost ends after its
// TTL.
func (c *Client) CreateSession(ctx context.Context, s SessionCreate) (SessionCreated, error) {
	q := &call{
		op: "create session", retryClass: idempotentWrite, method: http.MethodPost, path: apiv1.PathSessions,
		hasTimeoutParam: true,
	}
	return sendJSON[SessionCreated](ctx, c, q, s)
}

// RenewSession renews a session. It then lives for its TTL, counted from this call or later. ErrSessionEnded: the
// session has ended.
func (c *Client) RenewSession(ctx context.Context, id string) (Renewal, error) {
	return c.renewSession(ctx, id, false)
}

func (c *Client) renewSession(ctx context.Context, id string, urgent bool) (Renewal, error) {
	return decode[Renewal](c.do(ctx, &call{
		op: "renew session " + id, method: http.MethodPost, path: sessionPath(id) + "/renew", hasTimeoutParam: true,
		urgent: urgent,
	}))
}

// RenewSessions renews up to 1000 sessions.
func (c *Client) RenewSessions(ctx context.Context, ids []string) (RenewedMany, error) {
	return c.renewSessions(ctx, ids, false)
}

func (c *Client) renewSessions(ctx context.Context, ids []string, urgent bool) (RenewedMany, error) {
	q := &call{
		op: fmt.Sprintf("renew %d sessions", len(ids)), method: http.MethodPost, path: apiv1.PathRenew,
		hasTimeoutParam: true, urgent: urgent,
	}
	return sendJSON[RenewedMany](ctx, c, q, apiv1.RenewMany{SessionIDs: ids})
}

// EndSession ends a session and frees what it holds. ErrSessionEnded: the session had ended before.
func (c *Client) EndSession(ctx context.Context, id string) error {
	return c.remove(ctx, "end session "+id, sessionPath(id))
}

// GetSession reads a session and what it holds.
func (c *Client) GetSession(ctx context.Context, id string) (SessionInfo, error) {
	return get[SessionInfo](ctx, c, &call{op: "session " + id, path: sessionPath(id), hasTimeoutParam: true})
}

// Sessions lists the live sessions, oldest first, at most apiv1.MaxListLimit of them, after the given ID ("": from
// the first).
func (c *Client) Sessions(ctx context.Context, after string) (Sessions, error) {
	return get[Sessions](ctx, c, &call{
		op: "list sessions", path: apiv1.PathSessions, hasTimeoutParam: true, limit: maxListResponse,
		query: params("limit", limitParam(apiv1.MaxListLimit), "after", after),
	})
}

// EndSessions ends sessions of an identity, or those whose name has a prefix, or those with both; one of the two is
// required. One call ends at most 1000 of them: More in the result asks for another call. After ErrOutcomeUnknown it
// may be called again, and then does not list what the earlier call has ended.
func (c *Client) EndSessions(ctx context.Context, identity, prefix string) (SessionsEnded, error) {
	return decode[SessionsEnded](c.do(ctx, &call{
		op: "end sessions", retryClass: nonIdempotentWrite, method: http.MethodDelete, path: apiv1.PathSessions,
		query: params("identity", identity, "prefix", prefix), hasTimeoutParam: true,
	}))
}

// SessionsEnd selects the sessions that EndSessionsWith ends: one by its ID, or as EndSessions those of an identity,
// with a prefix of the name, or both.
type SessionsEnd struct {
	ID               string
	Identity, Prefix string
	Reason           string // for the audit log
	DryRun           bool   // end nothing: the result is what would end
}

// EndSessionsWith ends sessions with a reason, or plans that. With a Reason or a DryRun it needs nodes that know them.
func (c *Client) EndSessionsWith(ctx context.Context, e SessionsEnd) (SessionsEnded, error) {
	q := &call{
		op: "end sessions", retryClass: nonIdempotentWrite, method: http.MethodDelete, path: apiv1.PathSessions,
		query: params("identity", e.Identity, "prefix", e.Prefix), hasTimeoutParam: true,
	}
	if e.DryRun {
		q.retryClass = idempotentWrite
	}
	body := apiv1.SessionEnd{Reason: e.Reason, DryRun: e.DryRun}
	if e.ID == "" {
		return sendJSON[SessionsEnded](ctx, c, q, body)
	}
	q.op, q.path, q.query = "end session "+e.ID, sessionPath(e.ID), url.Values{}
	one, err := sendJSON[apiv1.SessionEnded](ctx, c, q, body)
	if err != nil {
		return SessionsEnded{}, err
	}
	return SessionsEnded{
		SessionIDs: []string{one.SessionID}, DryRun: one.DryRun, Roles: one.Roles, Keys: one.Keys,
	}, nil
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
func (c *Client) PutNode(ctx context.Context, id string, n NodePut) (Node, error) {
	q := &call{
		op: "register node " + id, retryClass: idempotentWrite, method: http.MethodPut, path: nodePath(id),
		hasTimeoutParam: true,
	}
	return sendJSON[Node](ctx, c, q, n)
}

// NodeFilter selects application nodes; the zero value selects all.
type NodeFilter struct {
	Status     string // joining, active, draining or dead
	Role       string
	Capability string
}

// Nodes lists the application nodes, at most apiv1.MaxListLimit of them, after the given ID ("": from the first).
func (c *Client) Nodes(ctx context.Context, f NodeFilter, after string) (Nodes, error) {
	query := params("limit", limitParam(apiv1.MaxListLimit),
		"status", f.Status, "role", f.Role, "capability", f.Capability, "after", after)
	return get[Nodes](ctx, c, &call{
		op: "list nodes", path: apiv1.PathNodes, query: query, hasTimeoutParam: true, limit: maxListResponse,
	})
}

// RemoveNode removes an application node from the registry.
func (c *Client) RemoveNode(ctx context.Context, id string) error {
	return c.remove(ctx, "remove node "+id, nodePath(id))
}

// GetNode reads an application node. ErrNotFound: no such node is registered.
func (c *Client) GetNode(ctx context.Context, id string) (Node, error) {
	return get[Node](ctx, c, &call{op: "node " + id, path: nodePath(id), hasTimeoutParam: true})
}

// NodeCounts counts the application nodes by status.
func (c *Client) NodeCounts(ctx context.Context) (Counts, error) {
	return get[Counts](ctx, c, &call{op: "count nodes", path: apiv1.PathNodes + "/counts", hasTimeoutParam: true})
}

// NodeChange is one change of an application node.
type NodeChange struct {
	Node         // only ID and Revision when Removed
	Removed bool // otherwise it was registered or updated
}

// WatchNodes yields the changes of the application nodes, each once and in order, as Watch does for keys.
func (c *Client) WatchNodes(ctx context.Context, opts WatchOptions) iter.Seq2[NodeChange, error] {
	q := &call{op: "watch nodes", path: apiv1.PathNodes + "/watch", query: url.Values{}}
	return watch(ctx, c, q, opts, func(e event) (NodeChange, uint64, error) {
		ch := NodeChange{Removed: e.name == apiv1.EventDelete}
		if err := json.Unmarshal(e.data, &ch.Node); err != nil {
			return ch, 0, fmt.Errorf("decode event: %w", err)
		}
		return ch, ch.Revision, nil
	})
}
