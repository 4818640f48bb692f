package apiv1

import (
	"encoding/json"
	"time"
)

// Event is one event of one node.
type Event struct {
	Seq     string         `json:"seq" doc:"opaque; ?since= takes it: the events after this one, of all nodes"`
	Node    string         `json:"node"`
	Type    string         `json:"type" doc:"election, failover, transfer, member, health, splitbrain, role, disk, quota, node"`
	At      time.Time      `json:"at"`
	Term    uint64         `json:"term,omitempty"`
	Message string         `json:"message"`
	Fields  map[string]any `json:"fields,omitempty"`
}

// Election returns the election that an event of type election describes, as GET /v1/elections does, and false for
// another event. Result may also be "open": no node leads yet.
func (e Event) Election() (Election, bool) {
	el := Election{Votes: []Vote{}}
	text, err := json.Marshal(e.Fields)
	if err != nil || json.Unmarshal(text, &el) != nil || el.Result == "" { // or an event of another version
		return Election{}, false
	}
	el.Term = e.Term
	if el.StartedAt.IsZero() {
		el.StartedAt = e.At.Add(-time.Duration(el.DurationMS) * time.Millisecond)
	}
	return el, true
}

// Events is the response to GET /v1/events.
type Events struct {
	Items   []Event  `json:"items"`
	Prev    string   `json:"prev" doc:"?since= of it gives these items again"`
	Next    string   `json:"next" doc:"for ?since= of the next call, also when there are no items"`
	Missing []string `json:"missing" doc:"members whose events are not in this answer"`
}

// Vote is one voter's response in an election.
type Vote struct {
	VoterID string `json:"voter_id"`
	Granted bool   `json:"granted"`
	Reason  string `json:"reason"`
	Pre     bool   `json:"pre,omitempty" doc:"the answer to a pre-vote, whether it would vote; it is not binding"`
}

// Election is one election.
type Election struct {
	Term         uint64    `json:"term"`
	Trigger      string    `json:"trigger" enum:"startup,timeout,connection_lost,transfer,manual,emergency,priority,disk_stall"`
	CandidateID  string    `json:"candidate_id"`
	Result       string    `json:"result" enum:"won,lost"`
	Votes        []Vote    `json:"votes"`
	StartedAt    time.Time `json:"started_at"`
	DurationMS   int64     `json:"duration_ms"`
	LeaderlessMS int64     `json:"leaderless_ms"`
	Operator     string    `json:"operator"`
	Reason       string    `json:"reason"`
	Needless     string    `json:"needless,omitempty" enum:"late,stopped" doc:"the old leader lived: its signs of life were late, or its process had stopped for a while"`
}

// Won reports whether the candidate won.
func (e Election) Won() bool { return e.Result == "won" }

// Elections is the response to GET /v1/elections, newest first.
type Elections struct {
	Items   []Election `json:"items"`
	Next    string     `json:"next"`
	Missing []string   `json:"missing" doc:"members whose lost elections are not in this answer"`
}
