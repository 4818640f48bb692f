package api

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"time"

	"northstar/api/apiv1"
	"northstar/cluster"
	"northstar/state"
	"northstar/telemetry"
)

// listElections serves GET /v1/elections, newest first. Won elections come from the replicated records, lost
// elections from the event logs of all reachable nodes. Another node that asks gets only this node's event log.
func listElections(c *request) error {
	limit, err := c.queryLimit(apiv1.DefaultListLimit)
	if err != nil {
		return err
	}
	if err := c.takeAnswer(limit * mergedItemBytes); err != nil {
		return err
	}
	answer := apiv1.Elections{Items: c.s.lostElections(limit), Missing: []string{}}
	won := c.s.reads.View().Elections() // oldest first
	won = won[max(0, len(won)-limit):]
	own := memberElections{answer, c.s.lateVotes(won), c.s.votesGiven(), map[uint64]string{}}
	if c.s.deps.Needless != nil {
		maps.Copy(own.Needless, c.s.deps.Needless())
	}
	if c.forwarded {
		return c.reply(own)
	}
	members := c.electionsOfMembers(limit)
	maps.Copy(own.LateVotes, members.LateVotes)
	maps.Copy(own.Needless, members.Needless)
	own.VotesGiven = append(own.VotesGiven, members.VotesGiven...)
	for _, e := range won {
		wire := c.s.wireElection(e)
		wire.Votes, wire.Needless = completeVotes(wire.Votes, own.LateVotes[e.Term]), own.Needless[e.Term]
		answer.Items = append(answer.Items, wire)
	}
	answer.Items, answer.Missing = append(answer.Items, members.Items...), members.Missing
	slices.SortStableFunc(answer.Items, newestElection)
	answer.Items = answer.Items[:min(limit, len(answer.Items))]
	now := time.Now()
	dead := c.s.deadMembers(now)
	for i, e := range answer.Items {
		answer.Items[i].Votes = completeVotes(e.Votes, own.votesFor(e))
		endVoteWait(answer.Items[i], dead, now)
	}
	return c.reply(answer)
}

// memberElections is a member's response to another one.
type memberElections struct {
	apiv1.Elections
	// LateVotes are, by term, the votes of elections that the member has won: with those that arrived after the record.
	LateVotes map[uint64][]apiv1.Vote `json:"late_votes,omitempty"`
	// VotesGiven are the member's own answers to candidates, also to those whose process has ended.
	VotesGiven []voteGiven `json:"votes_given,omitempty"`
	// Needless are, by term, the causes of elections that the member started and that were needless.
	Needless map[uint64]string `json:"needless,omitempty"`
}

// voteGiven is a voter's answer to a candidate.
type voteGiven struct {
	Term        uint64 `json:"term"`
	CandidateID string `json:"candidate_id"`
	apiv1.Vote
}

// votesFor returns the voters' own answers in an election.
func (m *memberElections) votesFor(e apiv1.Election) (votes []apiv1.Vote) {
	for _, v := range m.VotesGiven {
		if v.Term == e.Term && v.CandidateID == e.CandidateID {
			votes = append(votes, v.Vote)
		}
	}
	return votes
}

func (s *Server) votesGiven() (out []voteGiven) {
	if s.deps.VotesGiven == nil {
		return nil
	}
	for _, v := range s.deps.VotesGiven() {
		out = append(out, voteGiven{v.Term, string(v.Candidate), wireVote(v.Vote)})
	}
	return out
}

// lateVotes returns the votes of those elections that this node has won, and whose records lack some of them.
func (s *Server) lateVotes(won []state.Election) map[uint64][]apiv1.Vote {
	late := map[uint64][]apiv1.Vote{}
	for _, e := range won {
		if e.Node == s.deps.Node.ID && s.deps.Votes != nil && bytes.Contains(e.Votes, []byte(cluster.VotePending)) {
			late[e.Term] = wireVotes(s.deps.Votes(e.Term))
		}
	}
	return late
}

func wireVotes(votes []cluster.Vote) []apiv1.Vote {
	out := make([]apiv1.Vote, len(votes))
	for i, v := range votes {
		out[i] = wireVote(v)
	}
	return out
}

func wireVote(v cluster.Vote) apiv1.Vote {
	return apiv1.Vote{VoterID: string(v.Voter), Granted: v.Granted, Reason: v.Reason, Pre: v.Pre}
}

// completeVotes returns the votes of a record, with those that arrived later in place of the missing ones.
func completeVotes(recorded, late []apiv1.Vote) []apiv1.Vote {
	for i, v := range recorded {
		if v.Granted || v.Reason != cluster.VotePending {
			continue
		}
		for _, l := range late {
			if l.VoterID == v.VoterID {
				recorded[i] = l
			}
		}
	}
	return recorded
}

// Reasons of votes that are not waited for any more, of elections that are over.
const (
	noVoteOfDead = "no answer: the node is dead"
	noVoteKnown  = "no answer: none is recorded"
)

// lateVoteLimit is how long after an election its missing votes may still arrive.
const lateVoteLimit = 10 * time.Second

// endVoteWait ends the wait for missing votes: of dead nodes, and of all nodes some time after the election.
func endVoteWait(e apiv1.Election, dead map[string]bool, now time.Time) {
	ended := e.StartedAt.Add(time.Duration(e.DurationMS) * time.Millisecond)
	for i, v := range e.Votes {
		switch {
		case v.Granted || v.Reason != cluster.VotePending:
		case dead[v.VoterID]:
			e.Votes[i].Reason = noVoteOfDead
		case now.Sub(ended) > lateVoteLimit:
			e.Votes[i].Reason = noVoteKnown
		}
	}
}

// deadMembers returns the IDs of the members that this node takes for dead.
func (s *Server) deadMembers(now time.Time) map[string]bool {
	dead := map[string]bool{}
	for _, m := range s.clusterView(now).Members {
		if m.Lifecycle == string(cluster.Dead) {
			dead[m.ID] = true
		}
	}
	return dead
}

// newestElection orders by term, because clocks of candidates may differ; within a term the winner is first.
func newestElection(a, b apiv1.Election) int {
	// "won" is after "lost"
	return cmp.Or(cmp.Compare(b.Term, a.Term), cmp.Compare(b.Result, a.Result), b.StartedAt.Compare(a.StartedAt))
}

// lostElections returns the newest lost elections in this node's event log.
func (s *Server) lostElections(limit int) []apiv1.Election {
	events, _, _ := s.deps.EventLog.Latest("election", math.MaxInt)
	lost := []apiv1.Election{}
	for _, e := range slices.Backward(events) {
		if len(lost) == limit {
			break
		}
		if e.Fields["result"] != telemetry.ResultLost {
			continue
		}
		if el, ok := wireEvent(e).Election(); ok {
			if s.deps.Votes != nil {
				el.Votes = completeVotes(el.Votes, wireVotes(s.deps.Votes(el.Term)))
			}
			lost = append(lost, el)
		}
	}
	return lost
}

// electionsOfMembers asks all other members for their lost elections, votes and needless elections, and names those
// that do not respond.
func (c *request) electionsOfMembers(limit int) memberElections {
	ids := c.s.otherMembers()
	pages, errs := make([]memberElections, len(ids)), make([]error, len(ids))
	var asking sync.WaitGroup
	for i, id := range ids {
		asking.Go(func() {
			errs[i] = c.askMember(c.r.Context(), id, apiv1.PathElection, url.Values{"limit": {strconv.Itoa(limit)}},
				&pages[i])
		})
	}
	asking.Wait()
	all := memberElections{
		Elections: apiv1.Elections{Missing: []string{}}, LateVotes: map[uint64][]apiv1.Vote{},
		Needless: map[uint64]string{},
	}
	for i, page := range pages {
		if errs[i] != nil || page.Missing == nil { // or a node of an earlier version, which returns the records
			all.Missing = append(all.Missing, string(ids[i]))
			continue
		}
		all.Items = append(all.Items, page.Items...)
		maps.Copy(all.LateVotes, page.LateVotes)
		all.VotesGiven = append(all.VotesGiven, page.VotesGiven...)
		maps.Copy(all.Needless, page.Needless)
	}
	slices.Sort(all.Missing)
	return all
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

// mergedItemBytes is what an event or an election counts of the budget of answers, before the nodes are asked: about
// what its text needs here.
const mergedItemBytes = 1 << 10

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
			"since: this event is no longer available on node %s, which has restarted or discarded old events", id)
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
