package raftnode

import "testing"

// checkInvariants fails the test if the fields of a store contradict its phase.
func checkInvariants(t *testing.T, s *raftStore) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	for what, broken := range map[string]bool{
		"an append without entries":  s.phase == appending && s.inFlightAppend == nil,
		"a self-vote without a vote": s.phase == selfVoting && s.inFlightSelfVote == nil,
		"entries in memory that nobody writes": s.inFlightAppend != nil && s.phase != appending &&
			s.phase != failed && s.phase != stopped,
		"a vote in memory that nobody writes": s.inFlightSelfVote != nil && s.phase != selfVoting &&
			s.phase != failed && s.phase != stopped,
		"two asynchronous writes": s.inFlightAppend != nil && s.inFlightSelfVote != nil,
		"entries in memory after a successful stop": s.phase == stopped && s.writeErr == nil &&
			(s.inFlightAppend != nil || s.inFlightSelfVote != nil),
		"a failure without a reason":         s.phase == failed && s.writeErr == nil,
		"writes after a failure":             s.writeErr != nil && s.phase != failed && s.phase != stopped,
		"a pending no-op beside an append":   s.pendingNoop != nil && s.phase == appending,
		"a pending term beside an append":    s.termPending && s.phase == appending,
		"a pending term beside its own vote": s.termPending && s.phase == selfVoting,
		"an armed timer without a no-op":     s.noopTimer != nil && s.pendingNoop == nil,
		"an armed timer after the end":       s.noopTimer != nil && s.closed,
		"fewer than no votes":                s.votesInFlight < 0,
	} {
		if broken {
			t.Errorf("%s: phase %v", what, s.phase)
		}
	}
}

// TestTransitions checks the table. Only busy phases can fail, and no write in progress is stopped. The phase failed
// leads only to stopped, which has no way out. A transition that is not in the table panics.
func TestTransitions(t *testing.T) {
	for from, events := range transitions {
		for e, to := range events {
			if from == failed && to != stopped {
				t.Errorf("event %d leads from failed to %v", e, to)
			}
			if from.busy() && to == stopped {
				t.Errorf("event %d stops a write in progress: %v", e, from)
			}
		}
		if _, mayFail := events[writeFailed]; mayFail != from.busy() {
			t.Errorf("%v can fail: %v", from, mayFail)
		}
	}
	if len(transitions[stopped]) != 0 {
		t.Error("there is a way out of stopped")
	}
	s := newRaftStore(nil, nil, nil)
	defer func() {
		if recover() == nil {
			t.Error("a transition that is not in the table was made")
		}
	}()
	s.move(written)
}
