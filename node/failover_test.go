package node

import (
	"strings"
	"testing"
	"time"

	"northstar/cluster"
	"northstar/consensus"
	"northstar/failover"
)

// What was begun earlier and has long ended does not explain a candidacy.
func TestAddElectionCause(t *testing.T) {
	votes := []cluster.Vote{{Voter: "n1", Reason: "log behind: 41 < 44"}}
	timer := consensus.Election{Term: 27, FromTerm: 26, Trigger: "timeout", Reason: "Raft's timer fired"}
	for name, c := range map[string]struct {
		e                       consensus.Election
		facts                   failover.CandidacyRecord
		known                   bool
		term                    uint64
		trigger, reason, voters string
	}{
		"nothing is known": {e: timer, term: 27, trigger: "timeout", reason: "Raft's timer fired"},
		"an earlier election": {e: timer, facts: failover.CandidacyRecord{
			Term: 25, Trigger: "priority", Reason: "old",
			Votes: votes,
		}, term: 27, trigger: "timeout", reason: "Raft's timer fired"},
		"Raft's own, and another node won the next term": { // its vote there is not for itself
			e: timer, facts: failover.CandidacyRecord{Term: 26, Votes: votes}, known: true, term: 26,
			trigger: "timeout", reason: "Raft's timer fired", voters: "n1",
		},
		"at operator request": {e: timer, facts: failover.CandidacyRecord{
			Term: 27, Trigger: "manual", Reason: "n1 hangs",
			Votes: votes,
		}, known: true, term: 27, trigger: "manual", reason: "n1 hangs", voters: "n1"},
		"it goes on": {
			e:     consensus.Election{Term: 27, FromTerm: 26, Open: true},
			facts: failover.CandidacyRecord{Term: 26, Votes: votes}, known: true, term: 26, voters: "n1",
		},
	} {
		t.Run(name, func(t *testing.T) {
			e := c.e
			known, voters := addElectionCause(&e, c.facts), ""
			for _, v := range e.Votes {
				voters += string(v.Voter)
			}
			if known != c.known || e.Term != c.term || e.Trigger != c.trigger || e.Reason != c.reason ||
				voters != c.voters {
				t.Errorf("known %v, %+v", known, e)
			}
		})
	}
}

// An event tells only of the steps that a failover went through, each by its
// time since the first.
func TestFailoverPhases(t *testing.T) {
	if got := failoverPhases(failover.Timeline{}, time.Now(), time.Now()); got != nil {
		t.Errorf("no failover has steps: %v", got)
	}
	noticed := time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC)
	after := func(us int) time.Time { return noticed.Add(time.Duration(us) * time.Microsecond) }
	got := failoverPhases(failover.Timeline{Noticed: noticed, Agreed: after(1500), ElectionStarted: after(1700)},
		after(4000), after(7000))
	want := map[string]any{
		"noticed_at": noticed, "agreed_us": int64(1500), "stood_us": int64(1700),
		"elected_us": int64(4000), "serving_us": int64(7000),
	}
	if len(got) != len(want) {
		t.Errorf("got %v, want %v", got, want)
	}
	for name, v := range want {
		if got[name] != v {
			t.Errorf("%s is %v, want %v", name, got[name], v)
		}
	}
}

// An election can be so fast that its start is not observed. Its event then has no started_at.
func TestElectionFields_OmitUnknownStart(t *testing.T) {
	e := consensus.Election{Candidate: "n1", Trigger: "startup", Won: true}
	if at, ok := electionFields(e)["started_at"]; ok {
		t.Errorf("it began at %v", at)
	}
	e.StartedAt = time.Now()
	if at := electionFields(e)["started_at"]; at != e.StartedAt.UTC() {
		t.Errorf("it began at %v", at)
	}
}

// TestElectionBlockedReason: a node whose generation was superseded starts no election for anyone, and neither does one
// whose ID another process uses.
func TestElectionBlockedReason(t *testing.T) {
	t.Parallel()
	nodes := newCluster(t, 3, calm)
	follower, absent := nodes[1], nodes[2].cfg.ID
	old := startAll(t, nodes[:2])
	if old == follower {
		follower = nodes[0]
	}
	superseded := func() { follower.Consensus().OnRefused(absent, cluster.RefusedGeneration, "recovered") }
	duplicated := func() {
		eventually(t, "it serves no client", func() bool {
			follower.splitBrain.OnHello(cluster.Peer{Identity: cluster.Identity{
				NodeID: follower.cfg.ID, ClusterID: follower.Consensus().Status().ClusterID,
			}, BootID: "another"})
			_, err := follower.splitBrain.Check(t.Context())
			return err == nil && follower.splitBrain.Refusing() != ""
		})
	}
	elects := elections{follower.Node}
	if !elects.MayStartElection(cluster.CauseOperator) {
		t.Error("an operator cannot make it start an election")
	}
	for what, block := range map[string]func(){"superseded": superseded, "duplicated": duplicated} {
		for _, by := range []cluster.ElectionCause{
			cluster.CauseLeaderFailed, cluster.CauseTransferFailed, cluster.CauseOperator,
		} {
			block()
			before := follower.Consensus().Status().Term
			if _, err := follower.transport.Raft().StartElection(t.Context(), before, by); err == nil {
				t.Errorf("%s: it starts an election by cause %d", what, by)
			}
			if term := follower.Consensus().Claim().Term; term != before {
				t.Errorf("%s: cause %d took it from term %d to %d", what, by, before, term)
			}
		}
		block()
		why := elects.ApproveTimeoutNow(t.Context(), old.cfg.ID, old.Consensus().Status().Term)
		if !strings.Contains(why, "takes no part in elections") {
			t.Errorf("%s: it rejects a TimeoutNow because %q", what, why)
		}
	}
}
