package failover

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"northstar/cluster"
)

// requested returns node n2 of three voters, whose leader n1 hangs. outcome is called when n2 starts an election.
func requested(t *testing.T, outcome func(w *testCluster)) *testCluster {
	w := newTestCluster(t, "n1", "n2", "n3")
	w.cause, w.onStartElection = cluster.CauseOperator, outcome
	w.start(Config{})
	return w
}

// wins makes n2 lead the next term, and commit its first entry a little later.
func (w *testCluster) wins() {
	w.edit(func() {
		w.status.Role, w.status.LeaderID = cluster.Leader, "n2"
		w.status.Term++
	})
	time.Sleep(3 * time.Millisecond)
	w.edit(func() { w.status.LeaderSince = time.Now() })
}

func manual(target cluster.NodeID) cluster.LeadershipRequest {
	return cluster.LeadershipRequest{
		Action: cluster.ActionFailover, Target: target, Reason: "n1 hangs",
		Operator: "anna",
	}
}

// obey plans and executes a request.
func (w *testCluster) obey(o cluster.LeadershipRequest) (cluster.TransferOutcome, error) {
	p, err := w.c.Plan(w.t.Context(), o)
	if err != nil {
		return cluster.TransferOutcome{}, err
	}
	return w.c.Execute(w.t.Context(), o, p)
}

func wantError(t *testing.T, err error, code cluster.Code, says string) *cluster.Error {
	t.Helper()
	var e *cluster.Error
	if !errors.As(err, &e) || e.Code != code || !strings.Contains(e.Detail, says) {
		t.Fatalf("got %v, want %d %q", err, code, says)
	}
	return e
}

func TestRequestedElection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := requested(t, (*testCluster).wins)
		out, err := w.obey(manual("n2"))
		if err != nil || out.NewLeader != "n2" || out.OldLeader != "n1" || out.Term != 6 ||
			out.Duration < 3*time.Millisecond {
			t.Fatalf("%+v, %v", out, err)
		}
		if f := w.c.Facts(6); f.Trigger != "manual" || f.Operator != "anna" || f.Reason != "n1 hangs" ||
			!f.OverLiveLeader {
			t.Errorf("facts: %+v", f)
		}
		if len(w.events) != 1 || w.events[0].Fields["operator"] != "anna" {
			t.Errorf("events: %+v", w.events)
		}
	})
}

// TestRequestedElection_LeaderTransfersToo: the leader's TimeoutNow for the same term arrives after the request. n2 may
// win by votes over a leader with a lease, and must wait for that lease.
func TestRequestedElection_LeaderTransfersToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := requested(t, func(w *testCluster) {
			w.announces(toN2)
			if why := w.c.ApproveTimeoutNow(t.Context(), "n1", 5); why != "" {
				t.Errorf("refused: %s", why)
			}
			w.wins()
		})
		if _, err := w.obey(manual("n2")); err != nil {
			t.Fatal(err)
		}
		if f := w.c.Facts(6); f.Trigger != "priority" || !f.OverLiveLeader {
			t.Errorf("facts: %+v", f)
		}
	})
}

func TestEmergencyElection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := requested(t, (*testCluster).wins)
		w.awake = true
		if _, err := w.obey(cluster.LeadershipRequest{
			Action: cluster.ActionEmergency, Target: "n2",
			Reason: "now",
		}); err != nil {
			t.Fatal(err)
		}
		if f := w.c.Facts(6); f.Trigger != "emergency" || !f.OverLiveLeader {
			t.Errorf("facts: %+v", f)
		}
	})
}

// The voters' refusals end the election immediately, and the result contains them.
func TestRequestedElection_VotesDenied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := requested(t, func(w *testCluster) {
			w.edit(func() { w.status.Role, w.status.LeaderID, w.status.Term = cluster.Candidate, "", 6 })
			w.c.OnVoteResponse(cluster.VoteResponse{Term: 6, Voter: "n3", Reason: "log behind: 44 < 46"})
			time.Sleep(5 * time.Millisecond)
			w.c.OnVoteResponse(cluster.VoteResponse{Term: 6, Voter: "n1", Reason: "not reached"})
		})
		began := time.Now()
		_, err := w.obey(manual("n2"))
		e := wantError(t, err, cluster.CodeVoteDenied, "n3: log behind: 44 < 46")
		if len(e.Votes) != 3 || !e.Votes[1].Granted {
			t.Errorf("votes: %+v", e.Votes)
		}
		if took := time.Since(began); took > 50*time.Millisecond {
			t.Errorf("it took %v", took)
		}
	})
}

func TestRequestedElection_AnotherNodeElected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := requested(t, func(w *testCluster) {
			w.edit(func() { w.status.LeaderID, w.status.Term = "n3", 7 })
		})
		_, err := w.obey(manual("n2"))
		if e := wantError(t, err, cluster.CodeElectionFailed, "node n3 was elected instead"); e.Retryable() {
			t.Error("an election that was held invites a retry")
		}
	})
}

func TestRequestedElection_NoVoteResponse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := requested(t, func(w *testCluster) {
			w.edit(func() { w.status.Role, w.status.LeaderID, w.status.Term = cluster.Candidate, "", 6 })
		})
		began := time.Now()
		_, err := w.obey(manual("n2"))
		wantError(t, err, cluster.CodeElectionFailed, "does not lead")
		if took := time.Since(began); took > time.Second {
			t.Errorf("it took %v", took)
		}
	})
}

// The others were in a later term: it starts another election, knowing theirs.
func TestRequest_StartsElectionAgainInLaterTerm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tries := 0
		w := requested(t, func(w *testCluster) {
			if tries++; tries == 1 {
				w.edit(func() { w.status.Role, w.status.LeaderID, w.status.Term = cluster.Follower, "", 9 })
				return
			}
			w.wins()
		})
		if out, err := w.obey(manual("n2")); err != nil || out.Term != 10 || tries != 2 {
			t.Errorf("%+v, %v after %d elections", out, err, tries)
		}
	})
}

func TestRequestedElection_OneAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		w := requested(t, func(w *testCluster) { <-release; w.wins() })
		p, err := w.c.Plan(t.Context(), manual("n2"))
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error)
		go func() { _, err := w.c.Execute(t.Context(), manual("n2"), p); done <- err }()
		synctest.Wait()
		_, err = w.c.Execute(t.Context(), manual("n2"), p)
		if e := wantError(t, err, cluster.CodeBusy, ""); e.Retryable() {
			t.Error("a second request invites a retry")
		}
		close(release)
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// A plan changes nothing; what is not for this node is left to the one it is for.
func TestPlanChangesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := requested(t, func(w *testCluster) { w.t.Error("it starts an election") })
		for _, o := range []cluster.LeadershipRequest{
			manual("n2"), manual(""),
			{Action: cluster.ActionEmergency, Target: "n2"},
		} {
			p, err := w.c.Plan(t.Context(), o)
			if err != nil || p.Refusal != nil || p.Method != cluster.MethodElection {
				t.Errorf("%+v: %+v, %v", o, p, err)
			}
		}
		p, err := w.c.Plan(t.Context(), manual("n3"))
		if err != nil || p.Executor != "n3" {
			t.Errorf("%+v, %v", p, err)
		}
		_, err = w.c.Execute(t.Context(), manual("n3"), p)
		wantError(t, err, cluster.CodeNoLeader, "")
		o := manual("n3")
		o.Forwarded = true
		_, err = w.c.Plan(t.Context(), o)
		wantError(t, err, cluster.CodeNoLeader, "")
		_, err = w.c.Plan(t.Context(), cluster.LeadershipRequest{Action: cluster.ActionTransfer})
		wantError(t, err, cluster.CodeNoLeader, "")
		if len(w.events) != 0 || len(w.moves) != 0 {
			t.Errorf("events %+v, moves %+v", w.events, w.moves)
		}
	})
}

// A hung leader costs a plan timeout-min, one that answers nothing.
func TestPlanWaitsForAHungLeaderOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := requested(t, nil)
		w.hangs = true
		began := time.Now()
		if p, err := w.c.Plan(t.Context(), manual("")); err != nil || p.Method != cluster.MethodElection {
			t.Errorf("%+v, %v", p, err)
		}
		if took := time.Since(began); took < timeoutMin || took > timeoutMin+20*time.Millisecond {
			t.Errorf("it took %v", took)
		}
		w.awake = true
		began = time.Now()
		if p, err := w.c.Plan(t.Context(), manual("")); err != nil || p.Executor != "n1" ||
			p.Method != cluster.MethodTransfer {
			t.Errorf("%+v, %v", p, err)
		}
		if took := time.Since(began); took > 5*time.Millisecond {
			t.Errorf("it took %v", took)
		}
	})
}

// A network that is slower than the wait for a hung server on a fast one gets some round trips.
func TestPlanOnAFarNetwork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := requested(t, nil)
		w.slow, w.slowFor = "n3", 40*time.Millisecond+emergencyPollTimeout
		s := w.claims["n3"]
		s.NetworkRTT = w.slowFor
		w.claims["n3"] = s
		time.Sleep(timeoutMin) // the leader is silent
		began := time.Now()
		if p, err := w.c.Plan(t.Context(), manual("n2")); err != nil || p.Refusal != nil {
			t.Errorf("%+v, %v", p, err)
		}
		if took := time.Since(began); took > timeoutMin+20*time.Millisecond {
			t.Errorf("it took %v", took)
		}
	})
}

// A node that has just started makes its connections in a moment.
func TestPlanWaitsForAQuorumToAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := requested(t, nil)
		polls := 0
		w.answer = func() map[cluster.NodeID]cluster.ReceivedClaim {
			if polls++; polls < 5 {
				return nil
			}
			return w.Claims()
		}
		if p, err := w.c.Plan(t.Context(), manual("n2")); err != nil || p.Refusal != nil {
			t.Errorf("%+v, %v", p, err)
		}
		polls = -1 << 20
		began := time.Now()
		p, err := w.c.Plan(t.Context(), manual("n2"))
		if err != nil || p.Refusal == nil || p.Refusal.Code != cluster.CodeElectionFailed || p.Refusal.Retryable() {
			t.Errorf("nobody answers: %+v, %v", p, err)
		}
		if took := time.Since(began); took < 2*timeoutMin || took > 3*timeoutMin {
			t.Errorf("it took %v", took)
		}
	})
}

// Under writes a target is behind the others by what is in flight, for moments.
func TestEmergencyLooksAgainForWhatIsInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := requested(t, nil)
		w.awake = true
		polls := 0
		w.answer = func() map[cluster.NodeID]cluster.ReceivedClaim {
			polls++
			seen := w.Claims()
			for id, s := range seen {
				if s.Claim.LastLogIndex = 46; polls > 3 {
					s.Claim.LastLogIndex = 44
				}
				seen[id] = s
			}
			return seen
		}
		o := cluster.LeadershipRequest{Action: cluster.ActionEmergency, Target: "n2"}
		if p, err := w.c.Plan(t.Context(), o); err != nil || p.Refusal != nil {
			t.Errorf("%+v, %v", p, err)
		}
		polls = -1 << 20
		began := time.Now()
		p, err := w.c.Plan(t.Context(), o)
		if err != nil || p.Refusal == nil || p.Refusal.Code != cluster.CodeVoteDenied {
			t.Errorf("behind permanently: %+v, %v", p, err)
		}
		if took := time.Since(began); took > timeoutMin+20*time.Millisecond {
			t.Errorf("it took %v", took)
		}
		w.mine.LastLogIndex = 20 // too far behind to be in flight
		began = time.Now()
		if p, err = w.c.Plan(t.Context(), o); err != nil || p.Refusal == nil || time.Since(began) > 5*time.Millisecond {
			t.Errorf("far behind: %+v, %v, after %v", p, err, time.Since(began))
		}
	})
}
