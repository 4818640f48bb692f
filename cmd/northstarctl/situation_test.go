package main

import (
	"context"
	"errors"
	"strings"
	"syscall"
	"testing"
	"time"

	"northstar/api/apiv1"
	"northstar/cluster"
)

// examined returns the situation of three voters without a leader, of which those named answer.
func examined(answering ...string) situation {
	s := situation{
		cluster: apiv1.Cluster{
			ClusterID: "c1", ObservedBy: "n1", AutoFailover: true, Quorum: apiv1.Quorum{Voters: 3, Needed: 2},
		},
		nodes: map[string]nodeReport{
			"n1": {err: syscall.ECONNREFUSED}, "n2": {err: context.DeadlineExceeded},
			"n3": {err: errors.New("no route")},
		},
	}
	for _, id := range []string{"n1", "n2", "n3"} {
		s.cluster.Members = append(s.cluster.Members, apiv1.Member{
			ID: id, Suffrage: "voter", Priority: 100, Eligible: true, Lifecycle: "active", Healthy: true,
		})
	}
	for _, id := range answering {
		s.nodes[id] = nodeReport{}
	}
	return s
}

// attempt is the event of a candidacy of n2 that had brought no leader.
func attempt(term uint64, reason string) apiv1.Event {
	return apiv1.Event{
		Type: "election", Term: term, At: time.Date(2026, 1, 1, 0, 0, int(term), 0, time.UTC),
		Fields: map[string]any{
			"result": "open", "trigger": "timeout", "candidate_id": "n2", "duration_ms": 600, "leaderless_ms": 900,
			"votes": []apiv1.Vote{
				{VoterID: "n1", Reason: "not reached"}, {VoterID: "n2", Granted: true, Reason: reason},
			},
		},
	}
}

// Each reason for which a cluster has no leader is told apart, with what to do.
func TestWhy_NoLeader(t *testing.T) {
	t.Parallel()
	paused := examined("n1", "n2")
	paused.cluster.AutoFailover = false
	paused.pause = apiv1.AutoFailoverState{Operator: "ann", Reason: "network work"}
	unable := examined("n1", "n2")
	unable.cluster.Members[0].Eligible = false
	unable.nodes["n2"] = nodeReport{status: apiv1.Status{ElectionObstacle: "its disk is stalled"}}
	lost := examined("n1", "n2")
	lost.history.elections = []apiv1.Election{
		{
			Term: 6, CandidateID: "n2", Result: "lost", Trigger: "timeout",
			Votes: []apiv1.Vote{
				{VoterID: "n1", Reason: "log behind: 3 < 4"}, {VoterID: "n2", Granted: true, Reason: "itself"},
			},
		},
		{Term: 5, CandidateID: "n3", Result: "won"},
	}
	open := examined("n1", "n2")
	open.history = history{
		elections: []apiv1.Election{{Term: 5, CandidateID: "n3", Result: "won"}},
		events:    []apiv1.Event{attempt(5, "a"), attempt(6, "b"), attempt(7, "c"), {Type: "election", Term: 5}},
	}
	never := examined("n1", "n2")
	never.history.events = []apiv1.Event{attempt(1, "b")}
	neverWon := examined("n1", "n2")
	neverWon.history.elections = lost.history.elections[:1]
	outside := examined("n1")
	outside.cluster.Quorum.Healthy = 2
	for name, tc := range map[string]struct {
		s    situation
		want []string
	}{
		"the addresses lead nowhere": {examined(), []string{
			"From here, 0 of 3 voters answer at their HTTP addresses.", "in the pod of a node.\nNo won election",
		}},
		"some addresses lead nowhere": {outside, []string{
			"Node n1, which answered, sees 2 healthy voters, and 2 are needed.", "in the pod of a node.\nNo won election",
		}},
		"still tried": {open, []string{
			"elected in term 5", "The newest attempt since then:\nTerm 7: node n2 had been trying to be elected since 2026-",
			"n1 did not answer (not reached); n2 granted (c)", "lasted 600 ms by then. Node n2 had heard no leader for 900 ms.",
		}},
		"never elected": {never, []string{"No won election is recorded.\nThe newest attempt:\nTerm 1: node n2"}},
		"never won":     {neverWon, []string{"No won election is recorded.\n1 attempts were lost. The newest:\nTerm 6: "}},
		"quorum lost": {examined("n1"), []string{
			"The quorum is LOST: 1 of 3 voters answer (n1), and 2 are needed",
			"n2 (nothing heard for 2s: it hangs, or cannot be reached); n3 (no route)",
			"northstarctl recover --survivors n1 --confirm c1 --dry-run",
		}},
		"paused": {paused, []string{
			"Automatic failover is paused by ann (network work)", "Start an election with: northstarctl failover.",
		}},
		"none may lead": {unable, []string{
			"No node that answers starts an election: node n1: it is not eligible; node n2: its disk is stalled.",
		}},
		"under way": {lost, []string{
			"2 of 3 voters answer", "The last leader was node n3, elected in term 5", "1 attempts since then were lost",
			"n1 refused (log behind: 3 < 4); n2 granted (itself)",
		}},
	} {
		got := strings.Join(tc.s.explainLeader(), "\n")
		for _, want := range tc.want {
			if !strings.Contains(got, want) {
				t.Errorf("%s: no %q in\n%s", name, want, got)
			}
		}
	}
	if !strings.Contains(strings.Join(examined().explainNoLeader(), "\n"), "n1 (connection refused") {
		t.Error("a refused connection is not said")
	}
}

// A node that does not lead is told apart: it cannot, it will, or it could.
func TestWhy_NodeDoesNotLead(t *testing.T) {
	t.Parallel()
	s := examined("n1", "n2", "n3")
	s.cluster.LeaderID, s.cluster.Term = "n1", 9
	s.cluster.Members[1].Priority = 200
	s.cluster.Members[2].Lifecycle = "draining"
	for id, want := range map[string]string{
		"n1": "Its priority is 100, and not the highest: node n2 has priority 200; it takes leadership over once",
		"n2": "Its priority, 200, is higher than the leader's, 100: it takes leadership over once",
		"n3": "It starts no election now: it is draining.",
	} {
		lines, known := s.explainNode(id)
		if got := strings.Join(lines, "\n"); !known || !strings.Contains(got, want) {
			t.Errorf("%s: %s", id, got)
		}
	}
	s.nodes["n2"] = nodeReport{status: apiv1.Status{Warnings: []string{"priority: cluster value 200 overrides"}}}
	if lines, _ := s.explainNode("n2"); !strings.Contains(strings.Join(lines, "\n"), "it takes leadership over once") {
		t.Errorf("a warning counts as an obstacle: %q", lines)
	}
	s.nodes["n2"] = nodeReport{status: apiv1.Status{ElectionObstacle: "automatic failover is paused"}}
	if lines, _ := s.explainNode("n2"); lines[1] != "It starts no election now: automatic failover is paused." {
		t.Errorf("%q", lines)
	}
	s.nodes["n2"] = nodeReport{}
	s.cluster.Members[1].Priority = 100
	if lines, _ := s.explainNode("n2"); !strings.Contains(strings.Join(lines, "\n"), "northstarctl transfer --to n2") {
		t.Errorf("%q", lines)
	}
}

// Answers to a pre-vote are not told as votes: the same voter may vote for another candidate of that term.
func TestExplainElection_PreVotes(t *testing.T) {
	t.Parallel()
	el := apiv1.Election{
		Term: 13, CandidateID: "n1", Result: "lost", Trigger: "timeout", LeaderlessMS: 300,
		Votes: []apiv1.Vote{
			{VoterID: "n1", Granted: true, Reason: "itself", Pre: true},
			{VoterID: "n2", Reason: "refused", Pre: true},
			{VoterID: "n3", Granted: true, Pre: true},
		},
	}
	got := strings.Join(explainElection(el, "n2", nil), "\n")
	for _, want := range []string{
		"Pre-votes: asked whether they would vote for it, 2 of 3 voters agreed, which is not binding", "n2 refused; n3",
		"node n1 had heard no leader for 300 ms",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	if strings.Contains(got, "Votes: 2") {
		t.Errorf("pre-votes are told as votes:\n%s", got)
	}
}

// The winner of a cluster that was down knows how long it has run itself, and not how long there was no leader.
func TestExplainElection_Startup(t *testing.T) {
	t.Parallel()
	el := apiv1.Election{
		Term: 13, CandidateID: "n1", Result: "won", Trigger: "startup", LeaderlessMS: 400, DurationMS: 30,
	}
	got := strings.Join(explainElection(el, "n2", nil), "\n")
	for _, want := range []string{
		"Cause: node n1 had heard no leader since its start.\n",
		"Node n1 had started 400 ms before its end. How long there was no leader before that is not known.",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	if strings.Contains(got, "in all") {
		t.Errorf("the time since the start is told as the whole:\n%s", got)
	}
}

func TestVote_InWords(t *testing.T) {
	t.Parallel()
	for reason, want := range map[string]string{
		cluster.VotePending:           "had not answered",
		"no answer: the node is dead": "did not answer (the node is dead)",
		"not reached":                 "did not answer (not reached)",
		"log behind: 4 < 7":           "refused (log behind: 4 < 7)",
	} {
		if got := vote(apiv1.Vote{VoterID: "n3", Reason: reason}); got != want {
			t.Errorf("%q: %q, want %q", reason, got, want)
		}
	}
}
