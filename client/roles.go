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

// CampaignRole makes a session campaign for a role, and waits for as long as the
// request says. ErrRoleHeld: it was not elected; the error's problem says who
// holds the role. It goes on across changes of the leader and keeps its place.
func (c *Client) CampaignRole(ctx context.Context, role string, r apiv1.Campaign) (apiv1.Role, error) {
	patience := time.Duration(r.WaitMS)*time.Millisecond + campaignSlack
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	q := &call{op: "campaign for role " + role, retryClass: idempotentWrite, method: http.MethodPost, path: rolePath(role) + "/campaign", attemptTimeout: patience}
	return sendJSON[apiv1.Role](ctx, c, q, r)
}

// ResignRole gives a role back, or a session's place in its queue.
func (c *Client) ResignRole(ctx context.Context, role, session string) (apiv1.RoleResult, error) {
	q := &call{op: "resign from role " + role, retryClass: nonIdempotentWrite, method: http.MethodDelete, path: rolePath(role), query: url.Values{"session_id": {session}}, hasTimeoutParam: true}
	return decode[apiv1.RoleResult](c.do(ctx, q))
}

// AcknowledgeRevocation says that this client knows that a tenure was taken from its
// session, and acts for it no more: from then on others may be elected. A tenure
// with another token is not touched. ErrFenced: there is nothing to acknowledge.
func (c *Client) AcknowledgeRevocation(ctx context.Context, role, session string, token uint64) error {
	query := url.Values{"session_id": {session}, "token": {strconv.FormatUint(token, 10)}}
	_, err := c.do(ctx, &call{op: "acknowledge the loss of role " + role, retryClass: idempotentWrite, method: http.MethodDelete, path: rolePath(role), query: query, hasTimeoutParam: true})
	return err
}

// GetRole reads who holds a role and who waits for it. ErrNotFound when nobody
// holds it.
func (c *Client) GetRole(ctx context.Context, role string) (apiv1.Role, error) {
	return decode[apiv1.Role](c.do(ctx, &call{op: "role " + role, retryClass: leaderRead, method: http.MethodGet, path: rolePath(role), hasTimeoutParam: true}))
}

// Roles lists the roles that somebody holds, with all also the others, after the
// name that is given ("": from the first).
func (c *Client) Roles(ctx context.Context, all bool, after string) (apiv1.Roles, error) {
	query := url.Values{"limit": {fmt.Sprint(apiv1.MaxListLimit)}}
	if all {
		query.Set("all", "true")
	}
	if after != "" {
		query.Set("after", after)
	}
	return decode[apiv1.Roles](c.do(ctx, &call{op: "list roles", retryClass: leaderRead, method: http.MethodGet, path: apiv1.PathRoles, query: query, hasTimeoutParam: true, limit: maxListResponse}))
}

// RoleHistory reads who has held a role, the newest first.
func (c *Client) RoleHistory(ctx context.Context, role string) (apiv1.RoleHistory, error) {
	return decode[apiv1.RoleHistory](c.do(ctx, &call{op: "history of role " + role, retryClass: leaderRead, method: http.MethodGet, path: rolePath(role) + "/history", hasTimeoutParam: true}))
}

func rolePath(role string) string { return apiv1.PathRoles + "/" + url.PathEscape(role) }

// RoleChange is one election or vacancy of a role.
type RoleChange struct {
	apiv1.RoleEvent
	Elected bool // false: vacated
}

// WatchRole goes through the elections and vacancies of a role, each once and in
// order, as Watch does for keys.
func (c *Client) WatchRole(ctx context.Context, role string, opts WatchOptions) iter.Seq2[RoleChange, error] {
	return func(yield func(RoleChange, error) bool) {
		since := opts.Since
		if opts.FromNow {
			page, err := c.ListPage(ctx, "", ListOptions{Limit: 1})
			if err != nil {
				yield(RoleChange{}, err)
				return
			}
			since = page.Revision
		}
		q := &call{op: "watch role " + role, retryClass: localRead, method: http.MethodGet, path: rolePath(role) + "/watch", query: url.Values{}}
		resume := func(q *call) { q.query.Set("since", strconv.FormatUint(since, 10)) }
		err := c.follow(ctx, q, resume, func(e event) (bool, error) {
			ch := RoleChange{Elected: e.name == apiv1.EventElected}
			if err := json.Unmarshal(e.data, &ch.RoleEvent); err != nil {
				return true, fmt.Errorf("%s: decode event: %w", q.op, err)
			}
			if ch.Revision <= since {
				return false, nil
			}
			since = ch.Revision
			return !yield(ch, nil), nil
		})
		if err != nil {
			yield(RoleChange{}, err)
		}
	}
}
