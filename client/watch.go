package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"northstar/api/apiv1"
)

// Change is one change of a key.
type Change struct {
	Key      string
	Value    []byte // empty when Deleted
	Revision uint64
	Deleted  bool // otherwise it was put
	// More: the next change has the same revision, because one transaction made both. A watch that continues after
	// that revision would miss it.
	More bool
}

// WatchOptions are the options of Watch.
type WatchOptions struct {
	// Since is the revision after which changes are yielded, such as that of a list or of the last change received.
	Since uint64
	// FromNow yields, instead, the changes after the iteration begins: every change acknowledged after that moment.
	FromNow bool
}

// Watch yields the changes of the keys with a prefix, each once and in order of revision, while ctx lasts. If the
// node that serves the watch fails, hangs or loses the cluster, another node continues it. An error is the last
// value. ErrCompacted: the changes are no longer kept, or a backup was restored. The reader may be slow, within the
// kept history.
func (c *Client) Watch(ctx context.Context, prefix string, opts WatchOptions) iter.Seq2[Change, error] {
	q := &call{op: strings.TrimSpace("watch " + prefix), path: apiv1.PathWatch, query: url.Values{"prefix": {prefix}}}
	return watch(ctx, c, q, opts, func(e event) (Change, uint64, error) {
		ch, err := changeOf(e)
		ch.More = e.id != strconv.FormatUint(ch.Revision, 10)
		return ch, ch.Revision, err
	})
}

// watchPosition is how far a watch has come. The events of one revision may be cut off after any of them, and then all
// come again.
type watchPosition struct {
	since          uint64 // every event up to here has been yielded
	revision       uint64 // of the newest event
	yielded, index int    // events of that revision: yielded, and received on this connection
}

// isNew notes an event and reports whether it has not been yielded yet.
func (p *watchPosition) isNew(revision uint64, last bool) bool {
	if revision <= p.since {
		return false
	}
	if revision != p.revision {
		p.revision, p.yielded, p.index = revision, 0, 0
	}
	p.index++
	fresh := p.index > p.yielded
	p.yielded = max(p.yielded, p.index)
	if last {
		p.since = revision
	}
	return fresh
}

// progress notes that every event up to the revision id has been received.
func (p *watchPosition) progress(id string) error {
	revision, err := strconv.ParseUint(id, 10, 64)
	if err != nil {
		return fmt.Errorf("id of the stream: %w", err)
	}
	p.since = max(p.since, revision)
	return nil
}

// watch sends q and yields the events, each once and in order of revision, as Watch describes. parse returns the
// change and its revision.
func watch[T any](
	ctx context.Context, c *Client, q *call, opts WatchOptions, parse func(event) (T, uint64, error),
) iter.Seq2[T, error] {
	q.retryClass, q.method = localRead, http.MethodGet
	return func(yield func(T, error) bool) {
		var none T
		at := watchPosition{since: opts.Since}
		if opts.FromNow {
			// With a revision, "now" survives a node that fails before the first change.
			page, err := c.ListPage(ctx, q.query.Get("prefix"), ListOptions{Limit: 1})
			if err != nil {
				yield(none, err)
				return
			}
			at.since = page.Revision
		}
		resume := func(q *call) {
			at.index = 0
			q.query.Set("since", strconv.FormatUint(at.since, 10))
		}
		err := c.follow(ctx, q, resume, func(e event) (bool, error) {
			if e.onlyID {
				return false, at.progress(e.id)
			}
			ch, revision, err := parse(e)
			switch {
			case err != nil:
				return true, fmt.Errorf("%s: %w", q.op, err)
			case !at.isNew(revision, e.id == strconv.FormatUint(revision, 10)):
				return false, nil
			}
			return !yield(ch, nil), nil
		})
		if err != nil {
			yield(none, err)
		}
	}
}

func changeOf(e event) (Change, error) {
	ch := Change{Deleted: e.name == apiv1.EventDelete}
	if e.name != apiv1.EventPut && e.name != apiv1.EventDelete {
		return ch, fmt.Errorf("event must be %s or %s (got %q)", apiv1.EventPut, apiv1.EventDelete, e.name)
	}
	var data apiv1.Change
	if err := json.Unmarshal(e.data, &data); err != nil {
		return ch, fmt.Errorf("decode change: %w", err)
	}
	ch.Key, ch.Value, ch.Revision = data.Key, data.Value, data.Revision
	if ch.Revision == 0 {
		return ch, fmt.Errorf("change of %q has no revision", ch.Key)
	}
	return ch, nil
}

// FollowEvents yields the nodes' events while ctx lasts. It starts after since, the Seq of an event; "" starts now.
// kind, if not empty, selects one event type. A node remembers only the events of its current process. If it fails,
// FollowEvents continues with new events. ErrCompacted: since belongs to an ended process, or is no longer kept.
func (c *Client) FollowEvents(ctx context.Context, since, kind string) iter.Seq2[Event, error] {
	q := &call{
		op: "events", retryClass: localRead, method: http.MethodGet, path: apiv1.PathEvents,
		query: params("type", kind),
	}
	resume := func(q *call) {
		if since != "" {
			q.header.Set("Last-Event-ID", since)
		}
	}
	return func(yield func(Event, error) bool) {
		for n := 0; ; n++ {
			received := since == "" // or it starts now
			var isOld func(Event) bool
			var err error
			if since == "" {
				since, isOld, err = c.eventsNow(ctx, kind)
			}
			if err == nil {
				err = c.follow(ctx, q, resume, func(e event) (bool, error) {
					if e.onlyID {
						return false, nil
					}
					var ev Event
					if err := json.Unmarshal(e.data, &ev); err != nil {
						return true, fmt.Errorf("decode event: %w", err)
					}
					received = true
					since = ev.Seq
					return (isOld == nil || !isOld(ev)) && !yield(ev, nil), nil
				})
				if err == nil {
					return
				}
			}
			if received && errors.Is(err, ErrCompacted) && pause(ctx, backoff(n, 0)) == nil {
				since = ""
				continue
			}
			yield(Event{}, err)
			return
		}
	}
}

// eventsNow returns the position after the newest event. Any node can continue from it, so that "now" survives a node
// that fails before the first event. Nodes that do not answer have no position in it: isOld reports whether an event of
// theirs is from before, by their clock and this one.
func (c *Client) eventsNow(ctx context.Context, kind string) (since string, isOld func(Event) bool, err error) {
	now := time.Now()
	page, err := get[Events](ctx, c, &call{
		op: "events", retryClass: localRead, path: apiv1.PathEvents, query: params("type", kind, "limit", "1"),
	})
	isOld = func(e Event) bool { return slices.Contains(page.Missing, e.Node) && e.At.Before(now) }
	return page.Next, isOld, err
}

// Observe yields the current holder of a role, then each change, once and in order, until ctx ends with its error. It
// survives the failure of nodes. After a gap longer than the kept history, it continues with the holder at that time.
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
	r, err := decode[Role](a, nil)
	return holderOf(r), revision, err
}

func holderOf(r Role) Holder {
	h := Holder{Role: r.Role, Name: r.Holder, Session: r.SessionID, Token: r.Token, Value: r.Value}
	if r.AcquiredAt != nil {
		h.AcquiredAt = *r.AcquiredAt
	}
	return h
}
