package api

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"sync"

	"northstar/api/apiv1"
	"northstar/cluster"
	"northstar/state"
	"northstar/telemetry"
)

// listElections serves GET /v1/elections, newest first. Won elections come from the replicated records, lost
// elections from the journals of all reachable nodes. Another node that asks gets only this node's journal.
func listElections(c *request) error {
	limit, err := c.queryLimit(apiv1.DefaultListLimit)
	if err != nil {
		return err
	}
	answer := apiv1.Elections{Items: c.s.lostElections(limit), Missing: []string{}}
	if c.forwarded {
		return c.reply(answer)
	}
	won := c.s.reads.View().Elections() // oldest first
	for _, e := range won[max(0, len(won)-limit):] {
		answer.Items = append(answer.Items, c.s.wireElection(e))
	}
	lost, missing := c.lostElectionsOfMembers(limit)
	answer.Items, answer.Missing = append(answer.Items, lost...), missing
	slices.SortStableFunc(answer.Items, newestElection)
	answer.Items = answer.Items[:min(limit, len(answer.Items))]
	return c.reply(answer)
}

// newestElection orders by term, because clocks of candidates may differ; within a term the winner is first.
func newestElection(a, b apiv1.Election) int {
	// "won" is after "lost"
	return cmp.Or(cmp.Compare(b.Term, a.Term), cmp.Compare(b.Result, a.Result), b.StartedAt.Compare(a.StartedAt))
}

// lostElections returns the newest lost elections in this node's journal.
func (s *Server) lostElections(limit int) []apiv1.Election {
	events, _, _ := s.deps.Journal.Latest("election", math.MaxInt)
	lost := []apiv1.Election{}
	for _, e := range slices.Backward(events) {
		if len(lost) == limit {
			break
		}
		if e.Fields["result"] != telemetry.ResultLost {
			continue
		}
		if el, ok := wireEvent(e).Election(); ok {
			lost = append(lost, el)
		}
	}
	return lost
}

// lostElectionsOfMembers asks all other members for their lost elections, and names those that do not respond.
func (c *request) lostElectionsOfMembers(limit int) (lost []apiv1.Election, missing []string) {
	ids := c.s.otherMembers()
	pages, errs := make([]apiv1.Elections, len(ids)), make([]error, len(ids))
	var asking sync.WaitGroup
	for i, id := range ids {
		asking.Go(func() {
			errs[i] = c.askMember(c.r.Context(), id, apiv1.PathElection, url.Values{"limit": {strconv.Itoa(limit)}},
				&pages[i])
		})
	}
	asking.Wait()
	missing = []string{}
	for i, page := range pages {
		if errs[i] != nil || page.Missing == nil { // or a node of an earlier version, which returns the records
			missing = append(missing, string(ids[i]))
			continue
		}
		lost = append(lost, page.Items...)
	}
	slices.Sort(missing)
	return lost, missing
}

func (s *Server) otherMembers() []cluster.NodeID {
	var ids []cluster.NodeID
	for _, m := range s.reads.View().Members() {
		if !m.Removed && m.ID != s.deps.Node.ID {
			ids = append(ids, m.ID)
		}
	}
	return ids
}

const maxMemberResponse = 8 << 20

// askMember decodes another node's response to a GET, of timeout-max at most. 410 becomes CodeHistoryCompacted.
func (c *request) askMember(ctx context.Context, id cluster.NodeID, path string, query url.Values, out any) error {
	addr := c.s.httpAddress(id)
	if addr == "" {
		return fmt.Errorf("no address of node %s is known", id)
	}
	ctx, cancel := context.WithTimeout(ctx, c.s.deps.TimeoutMax)
	defer cancel()
	answer, err := c.s.forward.Get(ctx, c.Caller(), addr, path+"?"+query.Encode(), maxMemberResponse)
	if err != nil {
		return err
	}
	switch answer.Status {
	case http.StatusOK:
		return json.Unmarshal(answer.Body, out)
	case http.StatusGone:
		return cluster.Errorf(cluster.CodeHistoryCompacted,
			"since: an event of an earlier process of node %s, or one that it no longer keeps", id)
	}
	return fmt.Errorf("node %s answered %d", id, answer.Status)
}

func (s *Server) wireElection(e state.Election) apiv1.Election {
	wire := apiv1.Election{
		Term:        e.Term,
		Trigger:     e.Trigger,
		CandidateID: string(e.Node),
		Result:      telemetry.ResultWon, // only a winner can write the record
		Votes:       []apiv1.Vote{},
		StartedAt:   unixNano(e.StartedAt),
		Reason:      e.Reason,
		Operator:    e.Operator,
	}
	if e.LeaderlessAt != 0 {
		wire.LeaderlessMS = max(0, (e.LedAt-e.LeaderlessAt)/1e6)
	}
	if e.StartedAt == 0 {
		wire.StartedAt = unixNano(e.LedAt)
	} else {
		wire.DurationMS = max(0, (e.LedAt-e.StartedAt)/1e6)
	}
	if len(e.Votes) > 0 {
		if err := json.Unmarshal(e.Votes, &wire.Votes); err != nil {
			s.logger.Debug("votes of an election record cannot be read", "term", e.Term, "error", err)
			wire.Votes = []apiv1.Vote{}
		}
	}
	return wire
}
