package api

import (
	"context"
	"encoding/json"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"northstar/api/apiv1"
	"northstar/api/problem"
	"northstar/api/stream"
	"northstar/cluster"
)

// listEvents answers with the events of all reachable nodes; another node that asks gets only this node's.
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
		return problem.BadRequest("type: must be one of %s (got %q)", strings.Join(cluster.EventTypes, ", "), typ)
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
	if err := c.takeAnswer(limit * mergedItemBytes); err != nil {
		return err
	}
	answer, err := c.mergedEvents(c.r.Context(), since, typ, limit, time.Time{})
	if err != nil {
		return err
	}
	return c.reply(answer)
}

// ownEvents returns the events of this node's event log after since; since "" returns the newest.
func (s *Server) ownEvents(since, typ string, limit int) (apiv1.Events, error) {
	own := apiv1.Events{Items: []apiv1.Event{}, Prev: since, Missing: []string{}}
	var items []cluster.Event
	var err error
	if since == "" {
		items, own.Prev, own.Next = s.deps.EventLog.Latest(typ, limit)
	} else if items, own.Next, err = s.deps.EventLog.Since(since, typ, limit); err != nil {
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
	if err := c.s.eventStreams.take(c.holder(), 1); err != nil {
		return err
	}
	defer c.s.eventStreams.give(c.holder(), 1)
	since := c.r.Header.Get("Last-Event-ID")
	if since == "" {
		since = c.query.Get("since")
	}
	typ := c.query.Get("type")
	var notBefore time.Time
	if since == "" { // start now
		notBefore = time.Now()
		now, err := c.mergedEvents(c.r.Context(), "", typ, 1, time.Time{})
		if err != nil {
			return err
		}
		since = now.Next
	}
	pending, err := c.mergedEvents(c.r.Context(), since, typ, watchBatchSize, notBefore)
	if err != nil {
		return err
	}
	return c.stream(func(ctx context.Context, e *stream.Events) error {
		for len(pending.Items) == 0 {
			// Events of this node are sent immediately, those of others at the next interval.
			if err := c.s.waitOwnEvents(ctx, pending.Next, typ, mergeInterval); err != nil {
				return err
			}
			if pending, err = c.mergedEvents(ctx, pending.Next, typ, watchBatchSize, notBefore); err != nil {
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

// waitOwnEvents waits for an event of this node after since, or for limit.
func (s *Server) waitOwnEvents(ctx context.Context, since, typ string, limit time.Duration) error {
	turn, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	own, err := parseSince(since)
	if err != nil {
		return err
	}
	cursor, err := s.deps.EventLog.Cursor(own.Of[s.deps.Node.ID], typ)
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

// Events belong to a node. A response merges those of all reachable nodes. The seq of an item holds an offset for
// every node's event log, its own node first, so that a reader can continue from it on any node.

// parseSince returns the offsets of a reader; the error is for it.
func parseSince(since string) (stream.Offsets, error) {
	p, ok := stream.ParseOffsets(since)
	if !ok {
		return p, problem.BadRequest("since: %q is not the seq of an event", since)
	}
	return p, nil
}

type nodePage struct {
	id   cluster.NodeID
	page apiv1.Events
	err  error
}

// mergedEvents requests at most limit events after since from all nodes in parallel; since "" requests the newest.
// Events before notBefore are left out if they are of a node that since has no offset of: it did not answer before.
func (c *request) mergedEvents(
	ctx context.Context, since, typ string, limit int, notBefore time.Time,
) (apiv1.Events, error) {
	var from stream.Offsets
	self := c.s.deps.Node.ID
	switch {
	case strings.Contains(since, "="):
		var err error
		if from, err = parseSince(since); err != nil {
			return apiv1.Events{}, err
		}
	case since != "": // the time in this node's log
		from = from.With(self, since)
	}
	from.Keep(append(c.s.otherMembers(), self, from.Owner))
	parts := c.askEvents(ctx, from, typ, limit)
	var good []nodePage
	missing := []string{}
	for _, p := range parts {
		if p.err == nil {
			if from.Of[p.id] == "" {
				dropBefore(&p.page, notBefore)
			}
			good = append(good, p)
			continue
		}
		// A node that restarted has lost its events. The reader must know only if its offset is of the lost event log.
		if p.id == from.Owner && cluster.IsCode(p.err, cluster.CodeHistoryCompacted) ||
			cluster.IsCode(p.err, cluster.CodeBadRequest) {
			return apiv1.Events{}, p.err
		}
		missing = append(missing, string(p.id))
	}
	slices.Sort(missing)
	answer := mergePages(good, from, self, limit, since == "")
	answer.Missing = missing
	return answer, nil
}

// askEvents asks every member, this node included. A node whose event log no longer has the offset is asked from its
// beginning, unless it is the owner.
func (c *request) askEvents(ctx context.Context, from stream.Offsets, typ string, limit int) []nodePage {
	ids := append([]cluster.NodeID{c.s.deps.Node.ID}, c.s.otherMembers()...)
	parts := make([]nodePage, len(ids))
	var asking sync.WaitGroup
	for i, id := range ids {
		ask := func(since string) (page apiv1.Events, err error) {
			if i == 0 {
				return c.s.ownEvents(since, typ, limit)
			}
			query := url.Values{"limit": {strconv.Itoa(limit)}, "since": {since}, "type": {typ}}
			err = c.askMember(ctx, id, apiv1.PathEvents, query, &page)
			return page, err
		}
		asking.Go(func() {
			page, err := ask(from.Of[id])
			if cluster.IsCode(err, cluster.CodeHistoryCompacted) && id != from.Owner {
				page, err = ask("")
			}
			parts[i] = nodePage{id, page, err}
		})
	}
	asking.Wait()
	return parts
}

// dropBefore leaves out of a node's page the events before t. Its clock and this node's may differ.
func dropBefore(page *apiv1.Events, t time.Time) {
	for len(page.Items) > 0 && page.Items[0].At.Before(t) {
		page.Prev, page.Items = page.Items[0].Seq, page.Items[1:]
	}
}

// mergePages merges the pages of nodes in order of time: at most limit items, or the newest limit items if latest.
// Each node's own order is kept even if its clock is wrong.
func mergePages(parts []nodePage, from stream.Offsets, self cluster.NodeID, limit int, latest bool) apiv1.Events {
	at := stream.Offsets{Owner: self, Of: map[cluster.NodeID]string{}}
	maps.Copy(at.Of, from.Of)
	total := 0
	for _, p := range parts {
		at.Of[p.id] = p.page.Prev
		total += len(p.page.Items)
	}
	skip := 0
	if latest {
		skip = max(0, total-limit)
	}
	out := apiv1.Events{Items: []apiv1.Event{}}
	for n := range min(total, skip+limit) {
		if n == skip {
			out.Prev = at.String()
		}
		i := earliestPage(parts)
		item := parts[i].page.Items[0]
		parts[i].page.Items = parts[i].page.Items[1:]
		at = at.With(parts[i].id, item.Seq)
		if n >= skip {
			item.Seq = at.String()
			out.Items = append(out.Items, item)
		}
	}
	for _, p := range parts {
		if len(p.page.Items) == 0 {
			at.Of[p.id] = p.page.Next // also skips events of other types
		}
	}
	at.Owner = self
	out.Next = at.String()
	if len(out.Items) == 0 {
		out.Prev = out.Next
	}
	return out
}

// earliestPage returns the page whose next item is oldest. One of the pages has items.
func earliestPage(parts []nodePage) int {
	first := -1
	for i, p := range parts {
		if len(p.page.Items) == 0 {
			continue
		}
		if first < 0 || p.page.Items[0].At.Before(parts[first].page.Items[0].At) {
			first = i
		}
	}
	return first
}
