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
)

// campaignSlack is the time that a campaign may take in addition to its wait in the queue.
const campaignSlack = 10 * time.Second

// CampaignRole makes a session campaign for a role, and waits as long as the request says. It survives leader
// changes and keeps its place. ErrRoleHeld: the session was not elected; the error's problem names the holder.
func (c *Client) CampaignRole(ctx context.Context, role string, r apiv1.Campaign) (apiv1.Role, error) {
	timeout := time.Duration(r.WaitMS)*time.Millisecond + campaignSlack
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	q := &call{
		op: "campaign for role " + role, retryClass: idempotentWrite, method: http.MethodPost,
		path: rolePath(role) + "/campaign", attemptTimeout: timeout,
	}
	return sendJSON[apiv1.Role](ctx, c, q, r)
}

// ResignRole releases a role, or a session's place in its queue.
func (c *Client) ResignRole(ctx context.Context, role, session string) (apiv1.RoleResult, error) {
	return decode[apiv1.RoleResult](c.do(ctx, &call{
		op: "resign from role " + role, retryClass: nonIdempotentWrite, method: http.MethodDelete, path: rolePath(role),
		query: url.Values{"session_id": {session}}, hasTimeoutParam: true,
	}))
}

// AcknowledgeRevocation acknowledges the revocation of a tenure: the client has stopped acting for it, so that
// others may be elected. It does not affect a tenure with another token. ErrFenced: there is nothing to
// acknowledge.
func (c *Client) AcknowledgeRevocation(ctx context.Context, role, session string, token uint64) error {
	_, err := c.do(ctx, &call{
		op: "acknowledge the loss of role " + role, retryClass: idempotentWrite, method: http.MethodDelete,
		path: rolePath(role), hasTimeoutParam: true,
		query: url.Values{"session_id": {session}, "token": {strconv.FormatUint(token, 10)}},
	})
	return err
}

// GetRole returns the holder of a role and the candidates in its queue. ErrNotFound: the role is vacant.
func (c *Client) GetRole(ctx context.Context, role string) (apiv1.Role, error) {
	return get[apiv1.Role](ctx, c, &call{op: "role " + role, path: rolePath(role), hasTimeoutParam: true})
}

// Roles lists the held roles, or with all also the vacant ones, after the given name ("": from the first).
func (c *Client) Roles(ctx context.Context, all bool, after string) (apiv1.Roles, error) {
	query := params("limit", limitParam(apiv1.MaxListLimit), "after", after)
	if all {
		query.Set("all", "true")
	}
	return get[apiv1.Roles](ctx, c, &call{
		op: "list roles", path: apiv1.PathRoles, query: query, hasTimeoutParam: true, limit: maxListResponse,
	})
}

// RoleHistory returns the past holders of a role, newest first.
func (c *Client) RoleHistory(ctx context.Context, role string) (apiv1.RoleHistory, error) {
	q := &call{op: "history of role " + role, path: rolePath(role) + "/history", hasTimeoutParam: true}
	return get[apiv1.RoleHistory](ctx, c, q)
}

func rolePath(role string) string { return apiv1.PathRoles + "/" + url.PathEscape(role) }

// RoleChange is one election or vacancy of a role.
type RoleChange struct {
	apiv1.RoleEvent
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
