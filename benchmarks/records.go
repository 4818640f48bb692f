package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"northstar/chaos/proc"
)

// election is one item of GET /v1/elections.
type election struct {
	Result       string    `json:"result"`
	Term         uint64    `json:"term"`
	Trigger      string    `json:"trigger"`
	CandidateID  string    `json:"candidate_id"`
	Reason       string    `json:"reason"`
	StartedAt    time.Time `json:"started_at"`
	LeaderlessMS int64     `json:"leaderless_ms"`
	Votes        []struct {
		VoterID string `json:"voter_id"`
		Granted bool   `json:"granted"`
		Reason  string `json:"reason"`
	} `json:"votes"`
}

// elections are records, the newest first.
type elections []election

// electionsOf asks a node for the newest elections that gave the cluster a leader.
func electionsOf(ctx context.Context, n *proc.Node) (elections, error) {
	var page struct {
		Items elections `json:"items"`
	}
	body, err := proc.Get(ctx, "http://"+n.HTTP+"/v1/elections?limit=100")
	if err == nil {
		err = json.Unmarshal(body, &page)
	}
	return slices.DeleteFunc(page.Items, func(e election) bool { return e.Result != "won" }), err
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
	for i, e := range es {
		if e.Term <= term {
			return es[:i]
		}
	}
	return es
}

// event is one item of GET /v1/events.
type event struct {
	Node    string         `json:"node"`
	Type    string         `json:"type"`
	At      time.Time      `json:"at"`
	Term    uint64         `json:"term"`
	Message string         `json:"message"`
	Fields  map[string]any `json:"fields"`
}

// eventsOf asks a node for the newest events of a type of the whole cluster.
func eventsOf(ctx context.Context, n *proc.Node, typ string) ([]event, error) {
	var page struct {
		Items []event `json:"items"`
	}
	body, err := proc.Get(ctx, "http://"+n.HTTP+"/v1/events?limit=1000&type="+typ)
	if err == nil {
		err = json.Unmarshal(body, &page)
	}
	return page.Items, err
}

// ownEvents asks a node for the newest events of its own journal about
// elections.
func ownEvents(ctx context.Context, n *proc.Node) ([]event, error) {
	var own []event
	for _, typ := range []string{"failover", "election"} {
		all, err := eventsOf(ctx, n, typ)
		if err != nil {
			return nil, err
		}
		for _, e := range all {
			if e.Node == n.ID {
				own = append(own, e)
			}
		}
	}
	return own, nil
}

// healthyMembers counts the members that a leader finds healthy.
func healthyMembers(ctx context.Context, leader *proc.Node) (healthy int, err error) {
	var view struct {
		Members []struct {
			Healthy bool `json:"healthy"`
		} `json:"members"`
	}
	body, err := proc.Get(ctx, "http://"+leader.HTTP+"/v1/cluster")
	if err == nil {
		err = json.Unmarshal(body, &view)
	}
	for _, m := range view.Members {
		if m.Healthy {
			healthy++
		}
	}
	return healthy, err
}

// place is a node's in the ranking of a candidate.
type place struct {
	known       bool
	term, index uint64 // of its last log entry
}

func (p place) older(than place) bool {
	return p.term < than.term || p.term == than.term && p.index < than.index
}

// rankingOf reads the ranking by which the winner of a term stood.
func rankingOf(events []event, term uint64) map[string]place {
	places := map[string]place{}
	for _, e := range events {
		lines, _ := e.Fields["ranking"].([]any)
		if e.Type != "failover" || e.Term+1 != term {
			continue
		}
		for _, line := range lines {
			text, _ := line.(string)
			var id string
			p := place{known: true}
			if _, err := fmt.Sscanf(text, "%s (log %d/%d", &id, &p.term, &p.index); err == nil {
				places[id] = p
			}
		}
	}
	return places
}

// lostElections are the candidacies after a term that another node, or nobody,
// has won.
func lostElections(ctx context.Context, n *proc.Node, term uint64) (lost []event) {
	events, err := eventsOf(ctx, n, "election")
	if err != nil {
		return nil
	}
	for _, e := range events {
		if e.Term > term && e.Fields["result"] == "lost" {
			lost = append(lost, e)
		}
	}
	return lost
}
