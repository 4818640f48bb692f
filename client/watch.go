package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"northstar/api/apiv1"
)

// Change is one change of a key.
type Change struct {
	apiv1.Change      // Value is empty when Deleted
	Deleted      bool // else it was put
}

// WatchOptions of Watch.
type WatchOptions struct {
	// Since is the revision after which changes are wanted, such as that of a
	// list or of the last change seen.
	Since uint64
	// FromNow wants, instead, those after the moment in which the going through
	// begins: every change acknowledged after that is seen.
	FromNow bool
}

// Watch goes through the changes of the keys with a prefix, each once and in
// order of revision, for as long as ctx lasts. When the node that serves it
// dies, hangs or loses the cluster, another one carries on where it stopped.
// An error ends it, as the last thing it yields: ErrCompacted when the changes
// wanted are no longer kept, or a backup was restored. Reading slowly is
// allowed, down to that.
func (c *Client) Watch(ctx context.Context, prefix string, opts WatchOptions) iter.Seq2[Change, error] {
	return func(yield func(Change, error) bool) {
		if err := c.watch(ctx, prefix, opts, func(ch Change) bool { return yield(ch, nil) }); err != nil {
			yield(Change{}, err)
		}
	}
}

// watch calls each until it says false, which is no error.
func (c *Client) watch(ctx context.Context, prefix string, opts WatchOptions, each func(Change) bool) error {
	since := opts.Since
	if opts.FromNow {
		// Only a revision makes "now" survive a node that dies before the
		// first change.
		page, err := c.ListPage(ctx, prefix, ListOptions{Limit: 1})
		if err != nil {
			return err
		}
		since = page.Revision
	}
	q := &call{op: strings.TrimSpace("watch " + prefix), retryClass: localRead, method: http.MethodGet, path: apiv1.PathWatch, query: url.Values{"prefix": {prefix}}}
	resume := func(q *call) { q.query.Set("since", strconv.FormatUint(since, 10)) }
	return c.follow(ctx, q, resume, func(e event) (bool, error) {
		ch, err := changeOf(e)
		switch {
		case err != nil:
			return true, fmt.Errorf("%s: %w", q.op, err)
		case ch.Revision <= since:
			return false, nil
		}
		since = ch.Revision
		return !each(ch), nil
	})
}

func changeOf(e event) (Change, error) {
	ch := Change{Deleted: e.name == apiv1.EventDelete}
	if e.name != apiv1.EventPut && e.name != apiv1.EventDelete {
		return ch, fmt.Errorf("event %q: want %s or %s", e.name, apiv1.EventPut, apiv1.EventDelete)
	}
	if err := json.Unmarshal(e.data, &ch.Change); err != nil {
		return ch, fmt.Errorf("decode change: %w", err)
	}
	if ch.Revision == 0 {
		return ch, fmt.Errorf("change of %q has no revision", ch.Key)
	}
	return ch, nil
}

// FollowEvents goes through what happens on the nodes, for as long as ctx
// lasts, beginning after since, the Seq of an event, or with what happens from
// now on when that is "". kind, when not empty, wants events of that type
// only. A node remembers only what happened while it ran: when the one that is
// asked dies, this goes on with what happens from then on. ErrCompacted says
// that since itself is of a process that is gone, or is no longer kept.
func (c *Client) FollowEvents(ctx context.Context, since, kind string) iter.Seq2[apiv1.Event, error] {
	q := &call{op: "events", retryClass: localRead, method: http.MethodGet, path: apiv1.PathEvents, query: eventsQuery("", kind)}
	resume := func(q *call) {
		if since != "" {
			q.header.Set("Last-Event-ID", since)
		}
	}
	return func(yield func(apiv1.Event, error) bool) {
		for {
			got := false
			err := c.follow(ctx, q, resume, func(e event) (bool, error) {
				var ev apiv1.Event
				if err := json.Unmarshal(e.data, &ev); err != nil {
					return true, fmt.Errorf("decode event: %w", err)
				}
				got = true
				since = ev.Seq
				return !yield(ev, nil), nil
			})
			if err == nil {
				return
			}
			if !got || !errors.Is(err, ErrCompacted) {
				yield(apiv1.Event{}, err)
				return
			}
			since = ""
		}
	}
}
