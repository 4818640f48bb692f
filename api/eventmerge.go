package api

import (
	"context"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"

	"northstar/api/apiv1"
	"northstar/cluster"
)

// Events are each node's own. An answer merges those of all nodes that can be
// reached; the seq of an item then holds the position in every node's journal,
// that of its own node first, so that one can go on from it anywhere.

// positions are a reader's places in the journals of nodes.
type positions struct {
	owner cluster.NodeID // whose place comes first
	at    map[cluster.NodeID]string
}

func (p positions) of(id cluster.NodeID) string { return p.at[id] }

// with is p with another place for one node, which becomes the first.
func (p positions) with(id cluster.NodeID, seq string) positions {
	at := maps.Clone(p.at)
	if at == nil {
		at = map[cluster.NodeID]string{}
	}
	at[id] = seq
	return positions{owner: id, at: at}
}

// String writes the places as parsePositions reads them.
func (p positions) String() string {
	ids := slices.DeleteFunc(slices.Sorted(maps.Keys(p.at)), func(id cluster.NodeID) bool { return id == p.owner })
	parts := []string{string(p.owner) + "=" + p.at[p.owner]}
	for _, id := range ids {
		parts = append(parts, string(id)+"="+p.at[id])
	}
	return strings.Join(parts, ",")
}

// maxPlaces bounds the nodes that one seq may name.
const maxPlaces = 1000

func parsePositions(seq string) (positions, error) {
	p := positions{at: map[cluster.NodeID]string{}}
	for part := range strings.SplitSeq(seq, ",") {
		name, place, ok := strings.Cut(part, "=")
		id, err := cluster.ParseNodeID(name)
		if !ok || err != nil || place == "" || len(p.at) >= maxPlaces {
			return p, badRequest("since: %q is not the seq of an event", seq)
		}
		if p.owner == "" {
			p.owner = id
		}
		p.at[id] = place
	}
	return p, nil
}

// part is one node's answer.
type part struct {
	id   cluster.NodeID
	page apiv1.Events
	err  error
}

// mergedEvents asks all nodes at once for what comes after since, or, when that
// is "", for the newest, at most limit in all.
func (c *call) mergedEvents(ctx context.Context, since, typ string, limit int) (apiv1.Events, error) {
	var from positions
	self := c.s.deps.Facts.ID
	switch {
	case strings.Contains(since, "="):
		var err error
		if from, err = parsePositions(since); err != nil {
			return apiv1.Events{}, err
		}
	case since != "": // as this node's log shows it
		from = from.with(self, since)
	}
	parts := c.askEvents(ctx, from, typ, limit)
	var good []part
	missing := []string{}
	for _, p := range parts {
		if p.err == nil {
			good = append(good, p)
			continue
		}
		// A process that is gone has taken its events with it. Only whoever goes on
		// from one of those has to know.
		if p.id == from.owner && cluster.IsCode(p.err, cluster.CodeHistoryCompacted) || cluster.IsCode(p.err, cluster.CodeBadRequest) {
			return apiv1.Events{}, p.err
		}
		missing = append(missing, string(p.id))
	}
	slices.Sort(missing)
	answer := merge(good, from, self, limit, since == "")
	answer.Missing = missing
	return answer, nil
}

// askEvents asks every member, this node included. Who is asked from a place
// that is gone, and is not the owner, is asked from the beginning.
func (c *call) askEvents(ctx context.Context, from positions, typ string, limit int) []part {
	ids := append([]cluster.NodeID{c.s.deps.Facts.ID}, c.s.otherMembers()...)
	parts := make([]part, len(ids))
	var asking sync.WaitGroup
	for i, id := range ids {
		ask := func(since string) (apiv1.Events, error) {
			if i == 0 {
				return c.s.ownEvents(since, typ, limit)
			}
			return c.eventsOf(ctx, id, since, typ, limit)
		}
		asking.Go(func() {
			page, err := ask(from.of(id))
			if cluster.IsCode(err, cluster.CodeHistoryCompacted) && id != from.owner {
				page, err = ask("")
			}
			parts[i] = part{id, page, err}
		})
	}
	asking.Wait()
	return parts
}

// eventsOf asks another node for its own events.
func (c *call) eventsOf(ctx context.Context, id cluster.NodeID, since, typ string, limit int) (page apiv1.Events, err error) {
	query := url.Values{"limit": {strconv.Itoa(limit)}}
	if since != "" {
		query.Set("since", since)
	}
	if typ != "" {
		query.Set("type", typ)
	}
	err = c.askMember(ctx, id, apiv1.PathEvents, query, &page)
	return page, err
}

// merge puts the pages of nodes into one, in order of time: at most limit items,
// the newest of them when latest. Each node's own order is kept whatever its
// clock says.
func merge(parts []part, from positions, self cluster.NodeID, limit int, latest bool) apiv1.Events {
	at := positions{owner: self, at: map[cluster.NodeID]string{}}
	maps.Copy(at.at, from.at)
	total := 0
	for _, p := range parts {
		at.at[p.id] = p.page.Prev
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
		i := earliest(parts)
		item := parts[i].page.Items[0]
		parts[i].page.Items = parts[i].page.Items[1:]
		at = at.with(parts[i].id, item.Seq)
		if n >= skip {
			item.Seq = at.String()
			out.Items = append(out.Items, item)
		}
	}
	for _, p := range parts {
		if len(p.page.Items) == 0 {
			at.at[p.id] = p.page.Next // past what was of another type too
		}
	}
	at.owner = self
	out.Next = at.String()
	if len(out.Items) == 0 {
		out.Prev = out.Next
	}
	return out
}

// earliest gives the page whose next item is the oldest; there is one.
func earliest(parts []part) int {
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
