package failover

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"northstar/cluster"
	"northstar/election"
)

// beat lets n1 be heard for a while. The longest gap is 30 ms.
func (w *testCluster) beat(d time.Duration) {
	w.hear()
	for end, i := time.Now().Add(d), 0; time.Now().Before(end); i++ {
		gap := 28 * time.Millisecond
		if i == 100 {
			gap = 30 * time.Millisecond
		}
		time.Sleep(gap)
		w.hear()
	}
	w.edit(func() { w.asked = nil })
}

// A node that has just begun to follow begins with what another follower measured, and tells what it measured itself.
func TestSilence_BeginsWithOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, "n1", "n2", "n3")
		w.start(Config{Fast: true})
		w.hear()
		w.c.OnHeard("n1", &cluster.Claim{NodeID: "n1", Term: 5, Role: cluster.Leader, SilenceMeasured: time.Millisecond})
		if got := w.claim(); got.SilenceLimit != timeoutMin || got.SilenceMeasured != 0 {
			t.Errorf("the leader does not follow: %+v", got)
		}
		w.c.OnHeard("n3", &cluster.Claim{NodeID: "n3", Term: 5, SilenceMeasured: 45 * time.Millisecond})
		if got := w.claim(); got.SilenceLimit != 45*time.Millisecond || got.SilenceMeasured != 0 {
			t.Errorf("with another follower: %+v", got)
		}
		w.beat(20 * time.Second)
		if got := w.claim(); got.SilenceLimit != 45*time.Millisecond || got.SilenceMeasured != 45*time.Millisecond {
			t.Errorf("once it has measured: %+v", got)
		}
	})
}

// hear is a message of n1.
func (w *testCluster) hear() {
	w.edit(func() { w.contact = time.Now() })
	w.c.OnHeard("n1", nil)
}

// limits makes the other voters count a silence of 45 ms.
func (w *testCluster) limits(ids ...cluster.NodeID) {
	w.edit(func() {
		for _, id := range ids {
			s := w.claims[id]
			s.Claim.SilenceLimit = 45 * time.Millisecond
			w.claims[id] = s
		}
	})
}

func TestSilence_MeasuredThreshold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, "n1", "n2", "n3")
		w.edit(func() { w.mine.Priority = 200 })
		w.start(Config{Fast: true})
		w.limits("n3")
		w.beat(20 * time.Second)
		began := time.Now()
		w.hang("n3")
		time.Sleep(timeoutMin)
		starts := w.elections()
		if len(starts) != 1 || starts[0].Sub(began) < 45*time.Millisecond ||
			starts[0].Sub(began) > 50*time.Millisecond {
			t.Errorf("it started elections at %v, silence began at %v", starts, began)
		}
		if len(w.asked) != 1 || w.asked[0].Sub(began) != 30*time.Millisecond {
			t.Errorf("the leader was asked at %v", w.asked)
		}
		if f := w.c.Facts(6); f.Trigger != election.TriggerTimeout ||
			!strings.Contains(f.Reason, "tolerated for 45ms (the longest of") {
			t.Errorf("facts: %+v", f)
		}
	})
}

// A far node that has no vote is not asked, and not waited for: neither by the followers of a silent leader, nor by a
// leader that hears no majority.
func TestSilence_FarNonVoter(t *testing.T) {
	far := func(w *testCluster) {
		w.edit(func() {
			w.status.Servers = append(w.status.Servers, cluster.Server{ID: "n4", Suffrage: cluster.NonVoter})
			w.claims["n4"] = cluster.ReceivedClaim{
				Claim: claimOf("n4"), At: time.Now(), Connected: true, NetworkRTT: 80 * time.Millisecond,
			}
		})
	}
	t.Run("silent leader", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := newTestCluster(t, "n1", "n2", "n3")
			far(w)
			w.edit(func() { w.mine.Priority, w.hangs = 200, true })
			w.start(Config{Fast: true})
			w.limits("n3")
			w.beat(20 * time.Second)
			began := time.Now()
			w.hang("n3")
			time.Sleep(2 * timeoutMin)
			if starts := w.elections(); len(starts) == 0 || starts[0].Sub(began) > 50*time.Millisecond {
				t.Errorf("it started elections at %v, silence began at %v", starts, began)
			}
		})
	})
	t.Run("unheard leader", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := leading(t, "n1", "n2", "n3")
			far(w)
			time.Sleep(50 * time.Millisecond)
			synctest.Wait()
			if !w.c.Yields() {
				t.Error("a leader that hears nobody does not yield after its threshold")
			}
		})
	})
}

// The leader is asked once more. Its answer ends the silence, so nothing is polled.
func TestSilence_SecondQuestion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, "n1", "n2", "n3")
		w.edit(func() { w.mine.Priority = 200; w.awake = true })
		polls := 0
		w.edit(func() { w.polled = func([]cluster.NodeID) { polls++ } })
		w.start(Config{Fast: true})
		w.limits("n3")
		w.beat(20 * time.Second)
		w.hang("n3")
		time.Sleep(time.Second)
		if starts := w.elections(); len(starts) != 0 || polls != 0 {
			t.Errorf("it started elections at %v and polled %d times against a leader that answers", starts, polls)
		}
	})
}

// A check that runs late shows that this process stopped. It waits for longer then.
func TestSilence_OwnStopIsNoEvidence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, "n1", "n2", "n3")
		w.start(Config{Fast: true})
		w.beat(20 * time.Second)
		w.c.watch.mu.Lock()
		w.c.watch.due = time.Now().Add(-40 * time.Millisecond) // the check should have run then
		w.c.watch.mu.Unlock()
		time.Sleep(35 * time.Millisecond) // Run has asked the leader, and noticed
		synctest.Wait()
		claim := w.claim()
		if claim.SilenceLimit < 70*time.Millisecond || claim.StoppedAgo == 0 {
			t.Errorf("after a stop: %+v", claim)
		}
		w.hear()
		if claim := w.claim(); claim.SilenceLimit != 45*time.Millisecond {
			t.Errorf("once the leader was heard: %v", claim.SilenceLimit)
		}
	})
}

// The timer of the checks does not fire while the leader is heard.
func TestSilence_NoCheckWhileLeaderIsHeard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, "n1", "n2", "n3")
		w.start(Config{Fast: true})
		w.beat(20 * time.Second)
		armed := func() time.Time {
			w.c.watch.mu.Lock()
			defer w.c.watch.mu.Unlock()
			return w.c.watch.due
		}
		early := 0 // the one a second for all else
		for range 100 {
			time.Sleep(25 * time.Millisecond)
			w.hear()
			if due := time.Until(armed()); due > 30*time.Millisecond || due <= 0 {
				t.Fatalf("the next check is due in %v", due)
			} else if due < 30*time.Millisecond {
				early++
			}
		}
		if early > 2*(int(100*25*time.Millisecond/maxCheckInterval)+1) {
			t.Errorf("%d of 100 checks were due although the leader was heard", early)
		}
	})
}

// needlessElection lets n2 be elected although n1, as it says then, is heard again after a while.
func needlessElection(t *testing.T, after time.Duration, edit func(*cluster.Claim)) *testCluster {
	return needlessElectionOf(t, func(*testCluster) {}, "n2", after, edit)
}

// needlessElectionOf is needlessElection that another node may win, which is then heard all the time. fails is called
// when n1 becomes silent.
func needlessElectionOf(
	t *testing.T, fails func(*testCluster), winner cluster.NodeID, after time.Duration, edit func(*cluster.Claim),
) *testCluster {
	w := newTestCluster(t, "n1", "n2", "n3")
	w.edit(func() {
		w.mine.Priority = 200
		w.onStartElection = func(w *testCluster) {
			time.Sleep(5 * time.Millisecond)
			if winner == "n2" {
				w.edit(func() { w.status.Role = cluster.Leader })
			}
			w.lead(winner, 6)
		}
	})
	w.start(Config{Fast: true})
	w.limits("n3")
	w.beat(20 * time.Second)
	w.hang("n3")
	fails(w)
	time.Sleep(after)
	w.edit(func() {
		s := w.claims["n1"]
		s.At = time.Now()
		s.Claim.Role, s.Claim.BootID, s.Claim.Term = cluster.Follower, "b1", 6
		edit(&s.Claim)
		w.claims["n1"] = s
	})
	claim := w.Claims()["n1"].Claim
	w.c.OnHeard("n1", &claim)
	for range 200 {
		time.Sleep(10 * time.Millisecond)
		if winner != "n2" {
			w.edit(func() { w.contact = time.Now() })
			w.c.OnHeard(winner, nil)
		}
	}
	synctest.Wait()
	if len(w.elections()) != 1 {
		t.Fatalf("it started elections at %v", w.started)
	}
	return w
}

func TestNeedlessElection(t *testing.T) {
	for name, c := range map[string]struct {
		after  time.Duration
		edit   func(*cluster.Claim)
		want   string
		raised bool
	}{
		"late": {100 * time.Millisecond, func(*cluster.Claim) {}, election.NeedlessLate, true},
		"stopped": {
			500 * time.Millisecond, func(c *cluster.Claim) { c.StoppedAgo = 1 }, election.NeedlessStopped, false,
		},
		"stopped earlier": {
			500 * time.Millisecond, func(c *cluster.Claim) { c.StoppedAgo = time.Second }, "", false,
		},
		"cut off":         {500 * time.Millisecond, func(*cluster.Claim) {}, "", false},
		"another process": {100 * time.Millisecond, func(c *cluster.Claim) { c.BootID = "b9" }, "", false},
		"too late":        {1500 * time.Millisecond, func(c *cluster.Claim) { c.StoppedAgo = 1 }, "", false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := needlessElection(t, c.after, c.edit)
				var causes []string
				if c.want != "" {
					causes = []string{c.want}
				}
				if len(w.needless) != len(causes) || len(causes) > 0 && w.needless[0] != c.want ||
					w.c.NeedlessElections()[6] != c.want {
					t.Errorf("reported %v, marked %v", w.needless, w.c.NeedlessElections())
				}
				got, _ := w.c.Silence()
				if (got.RaisedBy == 6) != c.raised || (w.claim().NeedlessTerm == 6) != c.raised {
					t.Errorf("threshold %v", got)
				}
			})
		})
	}
}

// The election is evaluated also while the messages of another leader leave no time for a silence check.
func TestNeedlessElection_WonByAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := needlessElectionOf(t, func(*testCluster) {}, "n3", 100*time.Millisecond, func(*cluster.Claim) {})
		if len(w.needless) != 1 || w.needless[0] != election.NeedlessLate {
			t.Errorf("reported %v", w.needless)
		}
	})
}

// Elections that are lost again and again pause, but not the first three. A leader ends that.
func TestBacksOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, "n1", "n2", "n3")
		c := w.start(Config{Fast: true})
		for term := uint64(6); term < 12; term++ {
			c.OnVoteResponse(cluster.VoteResponse{Term: term, Voter: "n3", Pre: true, Granted: true})
			time.Sleep(timeoutMin)
		}
		if c.BacksOff(time.Now()) {
			t.Error("it backs off after pre-votes")
		}
		for i, want := range []time.Duration{0, 0, 2, 3, 5, 9, 9} {
			c.OnVoteResponse(cluster.VoteResponse{Term: 20 + uint64(i), Voter: "n3", Reason: "already voted"})
			time.Sleep(max(0, want*2*timeoutMin-1))
			if got := c.BacksOff(time.Now()); got != (want > 0) {
				t.Errorf("lost election %d: %v", i+1, got)
			}
			if got := c.Backoff(); got.Lost != i+1 || got.Pause != max(0, want-1)*2*timeoutMin {
				t.Errorf("lost election %d: %+v", i+1, got)
			}
			time.Sleep(time.Nanosecond)
			if c.BacksOff(time.Now()) {
				t.Errorf("lost election %d: after its pause", i+1)
			}
		}
		c.OnVoteResponse(cluster.VoteResponse{Term: 30, Voter: "n3", Reason: "already voted"})
		if !c.BacksOff(time.Now()) {
			t.Error("it does not back off")
		}
		w.lead("n3", 31)
		time.Sleep(10 * time.Millisecond)
		synctest.Wait()
		if c.BacksOff(time.Now()) {
			t.Error("it backs off although there was a leader")
		}
	})
}

// A node that hears of a needless election raises its threshold, and says so itself.
func TestNeedlessElection_RaisesAllThresholds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, "n1", "n2", "n3")
		w.start(Config{Fast: true})
		w.beat(20 * time.Second)
		for _, term := range []uint64{5, 9, 1 << 60} { // the needless term is one that there was not
			w.c.OnHeard("n3", &cluster.Claim{NodeID: "n3", Term: term, NeedlessTerm: max(term, 6)})
			if got, _ := w.c.Silence(); got.Value != 45*time.Millisecond {
				t.Errorf("a claim of term %d: threshold %v", term, got)
			}
		}
		w.c.OnHeard("n3", &cluster.Claim{NodeID: "n3", Term: 5, NeedlessTerm: 5})
		got, _ := w.c.Silence()
		if claim := w.claim(); got.Value != timeoutMin || claim.NeedlessTerm != 5 || claim.SilenceLimit != timeoutMin {
			t.Errorf("threshold %v", got)
		}
	})
}
