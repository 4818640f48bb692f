package client

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"strconv"

	"northstar/api/apiv1"
)

// Observe yields the current holder of a role, then each change, once and in order, until ctx ends with its error.
// It survives the failure of nodes. After a gap longer than the kept history, it continues with the holder at that
// time.
func (c *Client) Observe(ctx context.Context, role string) iter.Seq2[Holder, error] {
	return func(yield func(Holder, error) bool) {
		var last Holder
		reported := false
		for n := 0; ; n++ {
			now, revision, err := c.holder(ctx, role)
			if err == nil {
				if !reported || now.Token != last.Token {
					last, reported = now, true
					if !yield(now, nil) {
						return
					}
				}
				for ch, broken := range c.WatchRole(ctx, role, WatchOptions{Since: revision}) {
					if err = broken; err != nil {
						break
					}
					if last = holderAfter(ch, role); !yield(last, nil) {
						return
					}
				}
			}
			if ctx.Err() != nil || c.ctx.Err() != nil || isPermanent(err) {
				yield(Holder{}, err)
				return
			}
			if e := pause(ctx, backoff(n, 0)); e != nil {
				yield(Holder{}, interrupted("observe role "+role, e, err))
				return
			}
		}
	}
}

func holderAfter(ch RoleChange, role string) Holder {
	if !ch.Elected {
		return Holder{Role: role, Cause: ch.Cause}
	}
	return Holder{
		Role: role, Name: ch.Holder, Session: ch.SessionID, Token: ch.Token, Value: ch.Value,
		AcquiredAt: ch.AcquiredAt,
	}
}

// holder returns the holder of a role, and the revision of that state.
func (c *Client) holder(ctx context.Context, role string) (Holder, uint64, error) {
	a, err := c.do(ctx, &call{op: "role " + role, method: http.MethodGet, path: rolePath(role), hasTimeoutParam: true})
	vacant := errors.Is(err, ErrNotFound) && a != nil
	if err != nil && !vacant {
		return Holder{}, 0, err
	}
	revision, err := strconv.ParseUint(a.header.Get(apiv1.HeaderRevision), 10, 64)
	if err != nil {
		return Holder{}, 0, fmt.Errorf("role %s: response of %s: %w", role, a.node, err)
	}
	if vacant {
		return Holder{Role: role}, revision, nil
	}
	r, err := decode[apiv1.Role](a, nil)
	return holderOf(r), revision, err
}

func holderOf(r apiv1.Role) Holder {
	h := Holder{Role: r.Role, Name: r.Holder, Session: r.SessionID, Token: r.Token, Value: r.Value}
	if r.AcquiredAt != nil {
		h.AcquiredAt = *r.AcquiredAt
	}
	return h
}
