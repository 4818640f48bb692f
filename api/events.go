package api

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"northstar/api/apiv1"
	"northstar/api/problem"
	"northstar/api/stream"
	"northstar/cluster"
)

// listEvents serves GET /v1/events: the journals of all reachable nodes, as JSON or as a stream. Another node that
// asks gets only this node's journal.
func listEvents(c *request) error {
	limit, err := c.queryLimit(apiv1.DefaultListLimit)
	if err != nil {
		return err
	}
	switch c.query.Get("type") {
	case "split-brain", "split_brain": // the contract and the findings use different spellings
		c.query.Set("type", "splitbrain")
	}
	since, typ := c.query.Get("since"), c.query.Get("type")
	// Another node that asks may know types that this node does not.
	if typ != "" && !c.forwarded && !slices.Contains(cluster.EventTypes, typ) {
		return problem.BadRequest("type: want %s, got %q", strings.Join(cluster.EventTypes, ", "), typ)
	}
	if c.wantsStream() {
		return streamEvents(c)
	}
	if c.forwarded {
		own, err := c.s.ownEvents(since, typ, limit)
		if err != nil {
			return err
		}
		return c.reply(own)
	}
	answer, err := c.mergedEvents(c.r.Context(), since, typ, limit)
	if err != nil {
		return err
	}
	return c.reply(answer)
}

// ownEvents returns the events of this node's journal after since; since "" returns the newest.
func (s *Server) ownEvents(since, typ string, limit int) (apiv1.Events, error) {
	own := apiv1.Events{Items: []apiv1.Event{}, Prev: since, Missing: []string{}}
	var items []cluster.Event
	var err error
	if since == "" {
		items, own.Prev, own.Next = s.deps.Journal.Latest(typ, limit)
	} else if items, own.Next, err = s.deps.Journal.Since(since, typ, limit); err != nil {
		return own, err
	}
	for _, e := range items {
		own.Items = append(own.Items, wireEvent(e))
	}
	return own, nil
}

// mergeInterval is how often a stream requests the other nodes' events.
const mergeInterval = 250 * time.Millisecond

func streamEvents(c *request) error {
	since := c.r.Header.Get("Last-Event-ID")
	if since == "" {
		since = c.query.Get("since")
	}
	typ := c.query.Get("type")
	if since == "" { // start now
		now, err := c.mergedEvents(c.r.Context(), "", typ, 1)
		if err != nil {
			return err
		}
		since = now.Next
	}
	pending, err := c.mergedEvents(c.r.Context(), since, typ, watchBatchSize)
	if err != nil {
		return err
	}
	return c.stream(func(ctx context.Context, e *stream.Events) error {
		for len(pending.Items) == 0 {
			// Events of this node are sent immediately, those of others at the next interval.
			if err := c.s.waitOwnEvents(ctx, pending.Next, typ); err != nil {
				return err
			}
			if pending, err = c.mergedEvents(ctx, pending.Next, typ, watchBatchSize); err != nil {
				return err
			}
		}
		for _, it := range pending.Items {
			data, err := json.Marshal(it)
			if err != nil {
				return err
			}
			if err := e.Event(it.Seq, it.Type, data); err != nil {
				return err
			}
		}
		pending.Items = nil
		return nil
	})
}

// waitOwnEvents waits for an event of this node after since, or for mergeInterval.
func (s *Server) waitOwnEvents(ctx context.Context, since, typ string) error {
	turn, cancel := context.WithTimeout(ctx, mergeInterval)
	defer cancel()
	own, err := parseEventOffsets(since)
	if err != nil {
		return err
	}
	cursor, err := s.deps.Journal.Cursor(own.offset(s.deps.Node.ID), typ)
	if err == nil {
		_, err = cursor.Next(turn, 1)
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if turn.Err() != nil {
		return nil
	}
	return err
}

func wireEvent(e cluster.Event) apiv1.Event {
	return apiv1.Event{
		Seq: e.Seq, Node: string(e.Node), Type: e.Type, At: e.At, Term: e.Term, Message: e.Message,
		Fields: e.Fields,
	}
}
