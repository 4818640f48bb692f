package api

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"northstar/api/apiv1"
	"northstar/cluster"
	"northstar/state"
)

// electionEvent is the event of an election that a node started.
func electionEvent(id cluster.NodeID, term uint64, result string) cluster.Event {
	return cluster.Event{
		Type: "election", Term: term, At: time.Unix(int64(term), 0), Message: result,
		Fields: map[string]any{
			"result": result, "trigger": "timeout", "candidate_id": string(id), "duration_ms": int64(12),
			"leaderless_ms": int64(160),
			"votes": []cluster.Vote{
				{Voter: id, Granted: true, Reason: "itself"},
				{Voter: "n9", Reason: "log behind: 41 < 44"},
			},
		},
	}
}

func (n *node) elections(query string, headers ...string) (all apiv1.Elections, short string) {
	n.t.Helper()
	r := n.do("GET", "/v1/elections"+query, "", headers...)
	if err := json.Unmarshal([]byte(r.body), &all); err != nil || r.status != 200 {
		n.t.Fatalf("%s: %d %s", query, r.status, r.body)
	}
	var each []string
	for _, e := range all.Items {
		each = append(each, fmt.Sprintf("%d %s %s", e.Term, e.CandidateID, e.Result))
	}
	return all, strings.Join(each, ", ")
}

// The answer has the elections that gave a leader, and those of all nodes that gave
// none, in order; it says whose are missing. For another node it has its own lost
// ones only, and a node that answers with records, as earlier versions do, is missing.
func TestElectionsOfAllNodes(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n1, n2 := three(t)
		earlier := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, `{"items":[{"term":4,"candidate_id":"n1","result":"won"}],"next":""}`)
		}))
		defer earlier.Close()
		n1.fake.addRecord(cluster.Member{ID: "n4", HTTPAddress: earlier.Listener.Addr().String()})
		const term = 4
		for _, n := range []*node{n1, n2} { // what is replicated
			for i, id := range []cluster.NodeID{"n2", "n1"} {
				n.fake.lead(id, uint64(term-1+i))
				n.fake.apply(state.Command{
					Kind: state.KindLeaderStart, Now: 1,
					LeaderStart: &state.LeaderStart{Term: uint64(term - 1 + i), Node: id},
				})
			}
		}
		n1.deps.EventLog.Append(electionEvent("n1", term-1, "lost"))
		n1.deps.EventLog.Append(electionEvent("n1", term, "won")) // a finished election
		n1.deps.EventLog.Append(cluster.Event{
			Type: "election", Term: term, Message: "n1 leads",
			Fields: map[string]any{"leader_id": "n1"},
		})
		n2.deps.EventLog.Append(electionEvent("n2", term, "lost"))
		n2.deps.EventLog.Append(electionEvent("n2", term+1, "open"))
		n2.deps.EventLog.Append(electionEvent("n2", term+2, "lost"))
		want := fmt.Sprintf("%d n2 lost, %d n1 won, %d n2 lost, %d n2 won, %d n1 lost", term+2, term, term, term-1,
			term-1)
		all, got := n1.elections("")
		if got != want || fmt.Sprint(all.Missing) != "[n3 n4]" {
			t.Errorf("%s, missing %v; want %s", got, all.Missing, want)
		}
		lost := all.Items[0]
		if lost.Trigger != "timeout" || lost.DurationMS != 12 || lost.LeaderlessMS != 160 || len(lost.Votes) != 2 ||
			lost.Votes[1] != (apiv1.Vote{VoterID: "n9", Reason: "log behind: 41 < 44"}) ||
			!lost.StartedAt.Equal(time.Unix(int64(term+2), 0).Add(-12*time.Millisecond)) {
			t.Errorf("%+v", lost)
		}
		if _, got := n1.elections("?limit=2"); got != strings.Join(strings.Split(want, ", ")[:2], ", ") {
			t.Errorf("the newest two: %s", got)
		}
		if _, got := n2.elections("", apiv1.HeaderForwardedBy, "n1"); got != fmt.Sprintf("%d n2 lost, %d n2 lost",
			term+2, term) {
			t.Errorf("asked by another node: %s", got)
		}
		if _, got := n2.elections("?limit=1", apiv1.HeaderForwardedBy, "n1"); got != fmt.Sprintf("%d n2 lost", term+2) {
			t.Errorf("asked by another node for one: %s", got)
		}
	})
}

// A vote that arrived after the record of the election was made is shown, by the node that received it and by others.
func TestElections_LateVotes(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n1, n2 := three(t)
		const term = 4
		votes, err := json.Marshal([]cluster.Vote{
			{Voter: "n1", Granted: true, Reason: "itself"},
			{Voter: "n2", Granted: true},
			{Voter: "n3", Reason: cluster.VotePending},
		})
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range []*node{n1, n2} {
			n.fake.lead("n1", term)
			n.fake.apply(state.Command{
				Kind: state.KindLeaderStart, Now: time.Now().UnixNano(),
				LeaderStart: &state.LeaderStart{Term: term, Node: "n1", Votes: votes},
			})
		}
		n2.fake.addRecord(cluster.Member{ID: "n1", HTTPAddress: n1.addr})
		known := []cluster.Vote{
			{Voter: "n1", Granted: true, Reason: "itself"},
			{Voter: "n2", Reason: "not the record's"},
			{Voter: "n3", Granted: true},
		}
		n1.deps.Votes = func(of uint64) []cluster.Vote {
			if of != term {
				t.Errorf("asked for the votes of term %d", of)
			}
			return known
		}
		want := []apiv1.Vote{
			{VoterID: "n1", Granted: true, Reason: "itself"},
			{VoterID: "n2", Granted: true},
			{VoterID: "n3", Granted: true},
		}
		for _, n := range []*node{n1, n2} {
			all, _ := n.elections("")
			if len(all.Items) != 1 || !slices.Equal(all.Items[0].Votes, want) {
				t.Errorf("%s: %+v, missing %v", n.deps.Node.ID, all.Items, all.Missing)
			}
		}
		known = nil // the candidate has forgotten, or was restarted
		says := func(want string) {
			t.Helper()
			if all, _ := n2.elections(""); all.Items[0].Votes[2].Reason != want {
				t.Errorf("%+v, want %q", all.Items[0].Votes, want)
			}
		}
		says(cluster.VotePending)
		n2.fake.set(func() { n2.fake.peers = []cluster.PeerStatus{{ID: "n3", Dead: true}} })
		says(noVoteOfDead)
		n2.fake.set(func() { n2.fake.peers = []cluster.PeerStatus{{ID: "n3", Healthy: true}} })
		says(cluster.VotePending)
		time.Sleep(lateVoteLimit + time.Millisecond)
		says(noVoteKnown)
	})
}

// A vote that arrived late is shown although the candidate's process has ended: the voter itself reports it.
func TestElections_VotersAnswers(t *testing.T) {
	virtual(t, func(t *testing.T) {
		n1, n2 := three(t)
		const term = 4
		votes, err := json.Marshal([]cluster.Vote{
			{Voter: "n1", Granted: true},
			{Voter: "n2", Reason: cluster.VotePending},
			{Voter: "n3", Granted: true, Reason: "itself"},
		})
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range []*node{n1, n2} {
			n.fake.lead("n3", term)
			n.fake.apply(state.Command{
				Kind: state.KindLeaderStart, Now: 1,
				LeaderStart: &state.LeaderStart{Term: term, Node: "n3", Votes: votes},
			})
		}
		n2.deps.VotesGiven = func() []cluster.VoteGiven {
			given := func(term uint64, to cluster.NodeID, reason string) cluster.VoteGiven {
				return cluster.VoteGiven{
					Term: term, Candidate: to, Vote: cluster.Vote{Voter: "n2", Granted: reason == "", Reason: reason},
				}
			}
			return []cluster.VoteGiven{
				given(term, "n3", ""), given(term, "n1", "already voted for n3"), given(term-1, "n3", "earlier"),
			}
		}
		n1.deps.VotesGiven = func() []cluster.VoteGiven {
			return []cluster.VoteGiven{{
				Term: term, Candidate: "n3", Vote: cluster.Vote{Voter: "n1", Reason: "not the record's"},
			}}
		}
		for _, n := range []*node{n1, n2} {
			all, _ := n.elections("")
			if len(all.Items) != 1 || !slices.Equal(all.Items[0].Votes, []apiv1.Vote{
				{VoterID: "n1", Granted: true},
				{VoterID: "n2", Granted: true},
				{VoterID: "n3", Granted: true, Reason: "itself"},
			}) {
				t.Errorf("%s: %+v, missing %v", n.deps.Node.ID, all.Items, all.Missing)
			}
		}
	})
}
