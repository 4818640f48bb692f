package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"strconv"

	"northstar/api/apiv1"
)

// Observe yields who holds a role now, then each change, once and in order, for as
// long as ctx lasts, whose error ends it. Nodes that die cost nothing; after an
// absence for longer than changes are kept it goes on with who holds the role then.
func (c *Client) Observe(ctx context.Context, role string) iter.Seq2[Holder, error] {
	return func(yield func(Holder, error) bool) {
		var last Holder
		told := false
		for n := 0; ; n++ {
			now, revision, err := c.holder(ctx, role)
			if err == nil {
				if !told || now.Token != last.Token {
					last, told = now, true
					if !yield(now, nil) {
						return
					}
				}
				var stopped bool
				stopped, err = c.observeFrom(ctx, role, revision, func(h Holder) bool { last = h; return yield(h, nil) })
				if stopped {
					return
				}
			}
			if ctx.Err() != nil || c.ctx.Err() != nil || isPermanent(err) {
				yield(Holder{}, err)
				return
			}
			if e := pause(ctx, backoff(n, 0)); e != nil {
				yield(Holder{}, &interruptedError{op: "observe role " + role, ctx: e, last: err})
				return
			}
		}
	}
}

// observeFrom goes through the changes after a revision; stopped: each said false.
func (c *Client) observeFrom(ctx context.Context, role string, since uint64, each func(Holder) bool) (stopped bool, err error) {
	for ch, err := range c.WatchRole(ctx, role, WatchOptions{Since: since}) {
		if err != nil {
			return false, err
		}
		h := Holder{Role: role, Cause: ch.Cause}
		if ch.Elected {
			h = Holder{Role: role, Name: ch.Holder, Session: ch.SessionID, Token: ch.Token, Value: ch.Value, AcquiredAt: ch.AcquiredAt}
		}
		if !each(h) {
			return true, nil
		}
	}
	return false, nil
}

// holder reads who holds a role, and the revision at which that was so.
func (c *Client) holder(ctx context.Context, role string) (Holder, uint64, error) {
	a, err := c.do(ctx, &call{op: "role " + role, retryClass: leaderRead, method: http.MethodGet, path: rolePath(role), hasTimeoutParam: true})
	vacant := errors.Is(err, ErrNotFound) && a != nil
	if err != nil && !vacant {
		return Holder{}, 0, err
	}
	revision, err := strconv.ParseUint(a.header.Get(apiv1.HeaderRevision), 10, 64)
	if err != nil {
		return Holder{}, 0, fmt.Errorf("role %s: answer of %s: %w", role, a.node, err)
	}
	h := Holder{Role: role}
	if vacant {
		return h, revision, nil
	}
	var r apiv1.Role
	if err := json.Unmarshal(a.body, &r); err != nil {
		return Holder{}, 0, fmt.Errorf("role %s: answer of %s: %w", role, a.node, err)
	}
	return holderOf(r), revision, nil
}

func holderOf(r apiv1.Role) Holder {
	h := Holder{Role: r.Role, Name: r.Holder, Session: r.SessionID, Token: r.Token, Value: r.Value}
	if r.AcquiredAt != nil {
		h.AcquiredAt = *r.AcquiredAt
	}
	return h
}
