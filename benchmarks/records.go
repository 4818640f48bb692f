package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"northstar/api/apiv1"
	"northstar/chaos/proc"
)

// get reads a JSON answer of a node.
func get[T any](ctx context.Context, n *proc.Node, path string) (answer T, err error) {
	body, err := proc.Get(ctx, "http://"+n.HTTP+path)
	if err == nil {
		err = json.Unmarshal(body, &answer)
	}
	return answer, err
}

// elections are records, the newest first.
type elections []apiv1.Election

// electionsOf asks a node for the newest elections that gave the cluster a leader.
func electionsOf(ctx context.Context, n *proc.Node) (elections, error) {
	page, err := get[apiv1.Elections](ctx, n, apiv1.PathElection+"?limit=100")
	return slices.DeleteFunc(page.Items, func(e apiv1.Election) bool { return !e.Won() }), err
}

// term is the newest one recorded.
func (es elections) term() uint64 {
	if len(es) == 0 {
		return 0
	}
	return es[0].Term
}

// since returns the records after a term.
func (es elections) since(term uint64) elections {
	return slices.DeleteFunc(slices.Clone(es), func(e apiv1.Election) bool { return e.Term <= term })
}

// eventsOf asks a node for the newest events of a type of the whole cluster.
func eventsOf(ctx context.Context, n *proc.Node, typ string) ([]apiv1.Event, error) {
	page, err := get[apiv1.Events](ctx, n, apiv1.PathEvents+"?limit=1000&type="+typ)
	return page.Items, err
}

// ownEvents asks a node for the newest events of its own event log about elections.
func ownEvents(ctx context.Context, n *proc.Node) ([]apiv1.Event, error) {
	failovers, err1 := eventsOf(ctx, n, "failover")
	elections, err2 := eventsOf(ctx, n, "election")
	own := slices.DeleteFunc(append(failovers, elections...), func(e apiv1.Event) bool { return e.Node != n.ID })
	return own, errors.Join(err1, err2)
}

// healthyMembers counts the members that a leader finds healthy.
func healthyMembers(ctx context.Context, leader *proc.Node) (healthy int, err error) {
	view, err := get[apiv1.Cluster](ctx, leader, apiv1.PathCluster)
	for _, m := range view.Members {
		if m.Healthy {
			healthy++
		}
	}
	return healthy, err
}

// place is a node's in the ranking of a candidate.
type place struct{ term, index uint64 } // of its last log entry

func (p place) older(than place) bool {
	return p.term < than.term || p.term == than.term && p.index < than.index
}

// rankingOf reads the ranking by which the winner of a term started its election. The term before may have been raised
// without an election.
func rankingOf(events []apiv1.Event, term uint64) map[string]place {
	places := map[string]place{}
	for _, e := range events {
		lines, _ := e.Fields["ranking"].([]any)
		if e.Type != "failover" || e.Term+1 != term && e.Term+2 != term {
			continue
		}
		for _, line := range lines {
			text, _ := line.(string)
			var id string
			var p place
			if _, err := fmt.Sscanf(text, "%s (log %d/%d", &id, &p.term, &p.index); err == nil {
				places[id] = p
			}
		}
	}
	return places
}

// lostElections returns the elections after a term that n started and did not win.
func lostElections(ctx context.Context, n *proc.Node, term uint64) []apiv1.Event {
	events, _ := eventsOf(ctx, n, "election")
	return slices.DeleteFunc(events, func(e apiv1.Event) bool { return e.Term <= term || e.Fields["result"] != "lost" })
}
