package failover

import (
	"testing"
	"testing/synctest"
	"time"

	"northstar/cluster"
)

// startedAfter waits until limit, and returns after how long the node started its only election.
func (w *testCluster) startedAfter(began time.Time, limit time.Duration) time.Duration {
	w.t.Helper()
	time.Sleep(limit - time.Since(began))
	starts := w.elections()
	if len(starts) != 1 {
		w.t.Fatalf("%d elections", len(starts))
	}
	return starts[0].Sub(began)
}

// A peer that has confirmed the leader's death counts as one that responded, polled or not.
func TestUnsolicitedConfirmation_CountsAsResponse(t *testing.T) {
	for name, after := range map[string]time.Duration{"before": 0, "while it is asked": 3 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newTestCluster(t, "n1", "n2", "n3")
				w.mine.Priority, w.slow = 200, "n3"
				w.start(Config{Fast: true})
				began := time.Now()
				if after == 0 {
					w.report("n3")
				} else {
					time.AfterFunc(after, func() { w.report("n3") })
				}
				w.loss()
				if took := w.startedAfter(began, 9*time.Millisecond); took != after {
					t.Errorf("it started an election after %v, and n3 reported after %v", took, after)
				}
			})
		})
	}
}

// A report counts as long as the one who made it is connected, and only for the
// process in question.
func TestReportsThatDoNotCount(t *testing.T) {
	for name, spoil := range map[string]func(w *testCluster){
		"of one that is gone": func(w *testCluster) { s := w.claims["n3"]; s.Connected = false; w.claims["n3"] = s },
		"of a process before": func(w *testCluster) {
			s := w.claims["n3"]
			s.Claim.LeaderBootID = "b0"
			w.claims["n3"] = s
		},
		"of an earlier leadership": func(w *testCluster) { s := w.claims["n3"]; s.Claim.Term = 4; w.claims["n3"] = s },
		"of an unnamed process": func(w *testCluster) {
			s := w.claims["n3"]
			s.Claim.LeaderBootID = ""
			w.claims["n3"] = s
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newTestCluster(t, "n1", "n2", "n3")
				w.mine.Priority, w.slow = 200, "n3"
				w.start(Config{Fast: true})
				w.report("n3")
				w.edit(func() { spoil(w) })
				w.loss()
				time.Sleep(100 * time.Millisecond)
				if starts := w.elections(); len(starts) != 0 {
					t.Error("it started an election without another node's confirmation")
				}
			})
		})
	}
}

// A node reports the death of the leader's process only when its own log is up to date. The others rely on
// the report without asking.
func TestTheLogIsUpToDateBeforeTheReport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, "n1", "n2", "n3")
		w.inside = 4 * time.Millisecond
		c := w.start(Config{Fast: true})
		w.loss()
		time.Sleep(3 * time.Millisecond)
		if w.claim().LeaderProcessDead || c.LeaderDead("n1", 5) {
			t.Error("it said so with an append unfinished")
		}
		time.Sleep(2 * time.Millisecond)
		if !w.claim().LeaderProcessDead {
			t.Error("it does not say so")
		}
		if !c.LeaderDead("n1", 5) || c.LeaderDead("n1", 6) || c.LeaderDead("n3", 5) || c.LeaderDead("", 0) {
			t.Error("it does not know which leader is dead")
		}
		w.lead("n3", 6)
		synctest.Wait()
		if c.LeaderDead("n3", 6) || c.LeaderDead("n1", 7) {
			t.Error("the next leader is dead")
		}
	})
}

// A Raft that is inside something for long, because its disk is, does not keep a
// node from saying what it knows.
func TestABusyRaftIsNotWaitedForLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, "n1", "n2", "n3")
		w.inside = time.Hour
		w.start(Config{Fast: true})
		w.loss()
		time.Sleep(pollWait + time.Millisecond)
		if !w.claim().LeaderProcessDead {
			t.Error("it does not say that the leader is lost")
		}
	})
}

// The last that the leader has sent may come out of a connection after the places
// were counted, and make a node the first.
func TestAPlaceIsLookedAtAgainWhenTheLogGrows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, "n1", "n2", "n3")
		w.report("n3") // the later in the list: first
		w.start(Config{Fast: true})
		began := time.Now()
		w.loss()
		time.AfterFunc(5*time.Millisecond, func() { w.edit(func() { w.mine.LastLogIndex++ }) })
		if took := w.startedAfter(began, 100*time.Millisecond); took < 5*time.Millisecond || took > 8*time.Millisecond {
			t.Errorf("it started an election after %v, and its log grew after 5 ms", took)
		}
	})
}

// The first-ranked node confirmed the leader's death before it started its election. The next one polls it again, and
// hears of that election.
func TestLowerRank_PollsAgain(t *testing.T) {
	for _, role := range []cluster.Role{cluster.Candidate, cluster.Leader} {
		t.Run(string(role), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newTestCluster(t, "n1", "n2", "n3")
				w.report("n3") // the later in the list: first
				w.start(Config{Fast: true})
				w.loss()
				time.Sleep(15 * time.Millisecond)
				s := w.Claims()["n3"]
				s.Claim.Role, s.Claim.Term, s.Claim.LeaderID = role, 6, ""
				w.edit(func() {
					w.answer = func() map[cluster.NodeID]cluster.ReceivedClaim {
						return map[cluster.NodeID]cluster.ReceivedClaim{"n3": s}
					}
				})
				time.Sleep(20 * time.Millisecond)
				if starts := w.elections(); len(starts) > 0 {
					t.Error("it started an election beside the first")
				}
			})
		})
	}
}

// A node that would rank first with an equal log has confirmed the leader's death, and does not respond. It may have
// started an election, so it keeps its rank.
func TestPoll_WaitsForEligibleReporter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, "n1", "n2", "n3", "n4", "n5")
		w.slow, w.mine.LastLogIndex = "n5", 45
		w.report("n3", "n4", "n5")
		w.start(Config{Fast: true})
		began := time.Now()
		w.loss()
		if took := w.startedAfter(began, 100*time.Millisecond); took < 20*time.Millisecond {
			t.Errorf("it started an election after %v, and n5 has a delay of 20 ms before it", took)
		}
	})
}

// One slow exchange does not make a network slow. A node waits no longer because of it for a peer that does
// not answer now.
func TestOneSlowExchangeIsNoFarNetwork(t *testing.T) {
	for name, tt := range map[string]struct {
		rtt, trip time.Duration
		cut       bool
		min, max  time.Duration
	}{
		"near": {
			200 * time.Microsecond, 200 * time.Microsecond, false, 20 * time.Millisecond,
			40 * time.Millisecond,
		},
		"near, the last one was slow": {
			90 * time.Millisecond, time.Millisecond, false, 20 * time.Millisecond,
			40 * time.Millisecond,
		},
		"far": {
			30 * time.Millisecond, 30 * time.Millisecond, false, 90 * time.Millisecond,
			120 * time.Millisecond,
		},
		"far, and not connected": {
			30 * time.Millisecond, 30 * time.Millisecond, true, 20 * time.Millisecond,
			40 * time.Millisecond,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newTestCluster(t, "n1", "n2", "n3", "n4", "n5")
				w.slow, w.mine.LastLogIndex = "n5", 45
				w.report("n3", "n4", "n5")
				w.edit(func() {
					s := w.claims["n4"]
					s.LastExchange, s.NetworkRTT, s.Connected = tt.rtt, tt.trip, !tt.cut
					w.claims["n4"] = s
				})
				w.start(Config{Fast: true})
				began := time.Now()
				w.loss()
				if took := w.startedAfter(began, 140*time.Millisecond); took < tt.min || took > tt.max {
					t.Errorf("it started an election after %v, want %v to %v", took, tt.min, tt.max)
				}
			})
		})
	}
}

// Dialling was refused for a moment, and the leader is heard again.
func TestALeaderThatWasNotDead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, "n1", "n2", "n3")
		c := w.start(Config{Fast: true})
		w.loss()
		time.Sleep(timeoutMin / 2) // an append that was on its way
		w.edit(func() { w.contact = time.Now() })
		time.Sleep(time.Second)
		if !c.LeaderDead("n1", 5) || !w.claim().LeaderProcessDead {
			t.Fatal("what a dead process had sent brings it back to life")
		}
		for range 20 {
			w.edit(func() { w.contact = time.Now() })
			time.Sleep(timeoutMin / 2)
		}
		if c.LeaderDead("n1", 5) || w.claim().LeaderProcessDead {
			t.Error("it is heard all the time, and is still said to be dead")
		}
		if starts := w.elections(); len(starts) > 0 {
			t.Error("it started an election")
		}
	})
}

// A leader found dead is elected again before this node has agreed with another one. That says nothing of the new
// leader, although it is the same node.
func TestADeadLeaderThatLeadsAgain(t *testing.T) {
	for name, boot := range map[string]string{"another process": "b2", "it lived": "b1"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newTestCluster(t, "n1", "n2", "n3")
				w.mine.Priority = 200
				w.start(Config{Fast: true})
				w.loss()
				time.Sleep(5 * time.Millisecond)
				claim := cluster.Claim{Role: cluster.Follower, Term: 6}
				if w.c.AnnotateClaim(&claim); !claim.LeaderProcessDead || claim.LeaderBootID != "b1" {
					t.Errorf("without a new leader: %+v", claim)
				}
				claim = cluster.Claim{Role: cluster.Follower, Term: 6, LeaderID: "n1"}
				if w.c.AnnotateClaim(&claim); claim.LeaderProcessDead || claim.LeaderBootID != "" {
					t.Errorf("with the same leader in a newer term: %+v", claim)
				}
				w.edit(func() {
					s := w.claims["n1"]
					s.Claim.Term, s.Claim.BootID = 6, boot
					w.claims["n1"] = s
				})
				w.lead("n1", 6)
				w.report("n3")
				for range 20 {
					time.Sleep(timeoutMin / 5)
					w.edit(func() { w.contact = time.Now() })
				}
				if starts := w.elections(); len(starts) != 0 {
					t.Errorf("it started elections at %v against the new leader", starts)
				}
			})
		})
	}
}

// Dials of the leader are refused, also for the other survivors, but its process answers on another connection. An
// answer of another process says nothing, and none is waited for.
func TestADeadLeaderThatAnswers(t *testing.T) {
	for name, tt := range map[string]struct {
		boot   string
		after  time.Duration
		starts bool
	}{
		"immediately":        {"b1", 0, false},
		"once it is marked":  {"b1", 150 * time.Microsecond, false},
		"another process":    {"b2", 0, true},
		"no answer":          {"", 0, true},
		"after the election": {"b1", time.Second, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newTestCluster(t, "n1", "n2", "n3")
				w.answers, w.answerTime = tt.boot, tt.after
				w.inside = 100 * time.Microsecond
				w.report("n3") // the later in the list: first
				w.start(Config{Fast: true})
				began := time.Now()
				w.loss()
				for range 4 {
					time.Sleep(timeoutMin / 5)
					w.edit(func() { w.contact = time.Now() })
				}
				starts := w.elections()
				if (len(starts) > 0) != tt.starts || tt.starts && starts[0].Sub(began) > 21*time.Millisecond {
					t.Errorf("it started elections at %v, and the connection broke at %v", starts, began)
				}
				if dead := w.claim().LeaderProcessDead; dead != tt.starts {
					t.Errorf("it says that the leader is dead: %v", dead)
				}
				if retracts := tt.after > 0 && !tt.starts; (w.announcements() > 0) != retracts {
					t.Errorf("it has sent its claim to all %d times", w.announcements())
				}
			})
		})
	}
}
