package consensus

import (
	"fmt"
	"time"

	"northstar/cluster"
	"northstar/consensus/raftnode"
)

// electionTracker follows the soft state of this node, and derives from it the records of the elections in which the
// node was a candidate. It has no lock and no clock.
type electionTracker struct {
	self        cluster.NodeID
	reportFirst time.Duration // how long a candidacy lasts before it is first reported

	softState       raftnode.SoftState // the last sample
	leaderlessSince time.Time          // when the last leader was last heard; zero: one is known
	previousLeader  cluster.NodeID     // the leader until then; "": none that this process knows
	leaderSeen      bool               // this process has known some leader
	lastLeaderTerm  uint64             // the last term whose leader this node has known
	electedAt       time.Time          // when this node was last sampled as a new leader
	recoveredTerm   uint64             // the first term in which this node led after its recovery

	candidateSince   time.Time     // zero: this node is not a candidate
	candidacyMinTerm uint64        // the lowest term that the candidacy can be for
	reportAfter      time.Duration // how long the candidacy lasts before the next report that it is unresolved
}

func newElectionTracker(self cluster.NodeID, reportFirst time.Duration) electionTracker {
	return electionTracker{self: self, reportFirst: reportFirst, softState: raftnode.SoftState{Role: cluster.Follower}}
}

// observe records a sample. It reports whether leader or its term changed, and returns the record of an election that
// this node lost with that.
func (e *electionTracker) observe(s raftnode.SoftState, contact, now time.Time) (leaderChanged bool, lost *Election) {
	before := e.softState
	e.softState = s
	if s == before {
		return false, nil
	}
	leaderChanged = s.Leader != before.Leader || s.Leader != "" && s.Term != before.Term
	newRole := s.Role != before.Role || s.Term != before.Term
	if s.Leader == "" && before.Leader != "" {
		e.previousLeader, e.leaderlessSince = before.Leader, now
		if before.Role != cluster.Leader && !contact.IsZero() && contact.Before(now) {
			e.leaderlessSince = contact // followers lose their leader some time after its last sign
		}
	}
	if before.Role == cluster.Leader && newRole {
		e.candidateSince = time.Time{} // also of an election that was won, and lost before its record was made
	}
	if s.Leader != "" {
		e.lastLeaderTerm = s.Term
	}
	if s.Role == cluster.Candidate && e.candidateSince.IsZero() {
		e.candidateSince, e.reportAfter, e.candidacyMinTerm = now, e.reportFirst, max(s.Term, e.lastLeaderTerm+1)
	}
	if s.Role == cluster.Leader && newRole {
		e.electedAt = now
	}
	if s.Leader == "" || s.Role == cluster.Leader {
		return leaderChanged, nil // not decided, or won: finish makes the record
	}
	if !e.candidateSince.IsZero() {
		lost = e.candidacy(max(s.Term, e.candidacyMinTerm), now) // the leader of before may be heard again
	}
	e.candidateSince, e.leaderlessSince, e.leaderSeen = time.Time{}, time.Time{}, true
	return leaderChanged, lost
}

// unresolved returns the record so far of a candidacy that has brought no leader: after reportFirst, and then each time
// that it has lasted twice as long. It returns nil when there is nothing to report.
func (e *electionTracker) unresolved(now time.Time) *Election {
	if e.candidateSince.IsZero() || e.softState.Leader != "" || now.Sub(e.candidateSince) < e.reportAfter {
		return nil
	}
	e.reportAfter = 2 * now.Sub(e.candidateSince)
	record := e.candidacy(e.softState.Term+1, now) // the term that pre-votes ask for
	record.Open = true
	return record
}

// candidacy returns the record of a candidacy that was not won.
func (e *electionTracker) candidacy(term uint64, now time.Time) *Election {
	return &Election{
		Term: term, FromTerm: e.candidacyMinTerm, Candidate: e.self, Trigger: e.trigger(), Reason: e.timerReason(),
		StartedAt: e.candidateSince, Duration: now.Sub(e.candidateSince), Leaderless: e.leaderlessFor(now),
	}
}

// won returns the record of the election of term, which this node has won. facts is what others know of it.
func (e *electionTracker) won(term uint64, facts ElectionFacts, now time.Time) Election {
	record := Election{
		Term: term, Candidate: e.self, Trigger: e.trigger(), Reason: facts.Reason, Operator: facts.Operator, Won: true,
		Votes: facts.Votes, StartedAt: e.candidateSince, Leaderless: e.leaderlessFor(now), LedAt: e.electedAt,
	}
	switch {
	case facts.Trigger != "":
		// The election began with that trigger. An earlier candidacy may have got no pre-vote.
		record.Trigger, record.StartedAt = facts.Trigger, facts.StartedAt
	case record.StartedAt.IsZero():
		record.StartedAt = facts.StartedAt // the candidacy was too short for a sample
	}
	if record.Reason == "" && facts.Trigger == "" {
		record.Reason = e.timerReason()
	}
	if !record.StartedAt.IsZero() {
		record.Duration = now.Sub(record.StartedAt)
	}
	if !facts.LeaderlessSince.IsZero() {
		record.Leaderless = max(record.Leaderless, now.Sub(facts.LeaderlessSince))
	}
	return record
}

// finish ends the election of term, which this node has won and whose record is made.
func (e *electionTracker) finish(term uint64) {
	e.leaderSeen = true
	if e.softState.Role == cluster.Leader && e.softState.Term == term {
		e.candidateSince, e.leaderlessSince = time.Time{}, time.Time{}
	}
}

// trigger returns why this node became a candidate, as far as it knows by itself.
func (e *electionTracker) trigger() string {
	if !e.leaderSeen {
		return "startup"
	}
	return "timeout"
}

// timerReason describes why this node became a candidate without any request.
func (e *electionTracker) timerReason() string {
	switch {
	case e.previousLeader == "":
		return "Raft's timer fired: no leader has been heard since this node started"
	case e.previousLeader == e.self:
		return "Raft's timer fired: this node led before, and lost leadership"
	case e.leaderlessSince.IsZero() || e.candidateSince.IsZero():
		return fmt.Sprintf("Raft's timer fired: leader %s was not heard", e.previousLeader)
	}
	return fmt.Sprintf("Raft's timer fired: leader %s was not heard for %v",
		e.previousLeader, max(0, e.candidateSince.Sub(e.leaderlessSince)).Round(time.Millisecond))
}

// leaderlessFor returns how long no leader has been known, 0 when one is.
func (e *electionTracker) leaderlessFor(now time.Time) time.Duration {
	if e.leaderlessSince.IsZero() {
		return 0
	}
	return now.Sub(e.leaderlessSince)
}
