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
	"northstar/api/problem"
	"northstar/cluster"
)

// Events belong to a node. A response merges those of all reachable nodes. The seq of an item holds an offset for
// every node's journal, its own node first, so that a reader can continue from it on any node.

// eventOffsets are a reader's offsets in the journals of nodes.
type eventOffsets struct {
	owner   cluster.NodeID // node of the first offset
	offsets map[cluster.NodeID]string
}

func (p eventOffsets) offset(id cluster.NodeID) string { return p.offsets[id] }

// withOffset returns p with another offset for one node, which becomes the first.
func (p eventOffsets) withOffset(id cluster.NodeID, seq string) eventOffsets {
	at := maps.Clone(p.offsets)
	if at == nil {
		at = map[cluster.NodeID]string{}
	}
	at[id] = seq
	return eventOffsets{owner: id, offsets: at}
}

// String returns the form that parseEventOffsets reads.
func (p eventOffsets) String() string {
	ids := slices.DeleteFunc(slices.Sorted(maps.Keys(p.offsets)), func(id cluster.NodeID) bool { return id == p.owner })
	parts := []string{string(p.owner) + "=" + p.offsets[p.owner]}
	for _, id := range ids {
		parts = append(parts, string(id)+"="+p.offsets[id])
	}
	return strings.Join(parts, ",")
}

// maxEventOffsets limits the nodes in one seq.
const maxEventOffsets = 1000

func parseEventOffsets(seq string) (eventOffsets, error) {
	p := eventOffsets{offsets: map[cluster.NodeID]string{}}
	for part := range strings.SplitSeq(seq, ",") {
		name, place, ok := strings.Cut(part, "=")
		id, err := cluster.ParseNodeID(name)
		if !ok || err != nil || place == "" || len(p.offsets) >= maxEventOffsets {
			return p, problem.BadRequest("since: %q is not the seq of an event", seq)
		}
		if p.owner == "" {
			p.owner = id
		}
		p.offsets[id] = place
	}
	return p, nil
}

// nodePage is one node's response.
type nodePage struct {
	id   cluster.NodeID
	page apiv1.Events
	err  error
}

// mergedEvents requests at most limit events after since from all nodes in parallel; since "" requests the newest.
func (c *request) mergedEvents(ctx context.Context, since, typ string, limit int) (apiv1.Events, error) {
	var from eventOffsets
	self := c.s.deps.Node.ID
	switch {
	case strings.Contains(since, "="):
		var err error
		if from, err = parseEventOffsets(since); err != nil {
			return apiv1.Events{}, err
		}
	case since != "": // the time in this node's log
		from = from.withOffset(self, since)
	}
	parts := c.askEvents(ctx, from, typ, limit)
	var good []nodePage
	missing := []string{}
	for _, p := range parts {
		if p.err == nil {
			good = append(good, p)
			continue
		}
		// A node that restarted has lost its events. The reader must know only if its offset is of the lost journal.
		if p.id == from.owner && cluster.IsCode(p.err, cluster.CodeHistoryCompacted) ||
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

// askEvents asks every member, this node included. A node whose journal no longer has the offset is asked from its
// beginning, unless it is the owner.
func (c *request) askEvents(ctx context.Context, from eventOffsets, typ string, limit int) []nodePage {
	ids := append([]cluster.NodeID{c.s.deps.Node.ID}, c.s.otherMembers()...)
	parts := make([]nodePage, len(ids))
	var asking sync.WaitGroup
	for i, id := range ids {
		ask := func(since string) (apiv1.Events, error) {
			if i == 0 {
				return c.s.ownEvents(since, typ, limit)
			}
			return c.eventsOf(ctx, id, since, typ, limit)
		}
		asking.Go(func() {
			page, err := ask(from.offset(id))
			if cluster.IsCode(err, cluster.CodeHistoryCompacted) && id != from.owner {
				page, err = ask("")
			}
			parts[i] = nodePage{id, page, err}
		})
	}
	asking.Wait()
	return parts
}

// eventsOf requests another node's own events.
func (c *request) eventsOf(ctx context.Context, id cluster.NodeID, since, typ string, limit int) (page apiv1.Events,
	err error,
) {
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

// mergePages merges the pages of nodes in order of time: at most limit items, or the newest limit items if latest.
// Each node's own order is kept even if its clock is wrong.
func mergePages(parts []nodePage, from eventOffsets, self cluster.NodeID, limit int, latest bool) apiv1.Events {
	at := eventOffsets{owner: self, offsets: map[cluster.NodeID]string{}}
	maps.Copy(at.offsets, from.offsets)
	total := 0
	for _, p := range parts {
		at.offsets[p.id] = p.page.Prev
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
		at = at.withOffset(parts[i].id, item.Seq)
		if n >= skip {
			item.Seq = at.String()
			out.Items = append(out.Items, item)
		}
	}
	for _, p := range parts {
		if len(p.page.Items) == 0 {
			at.offsets[p.id] = p.page.Next // also skips events of other types
		}
	}
	at.owner = self
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
