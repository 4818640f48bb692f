package failover

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"northstar/cluster"
	"northstar/election"
)

func TestCrash_StartsElectionImmediately(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, "n1", "n2", "n3")
		w.edit(func() { w.mine.Priority = 200 })
		c := w.start(Config{Fast: true})
		w.report("n3")
		time.Sleep(10 * time.Millisecond)
		began := time.Now()
		w.loss()
		time.Sleep(5 * time.Millisecond)
		starts := w.elections()
		if len(starts) != 1 || starts[0].Sub(began) > time.Millisecond {
			t.Fatalf("started %v after %v", starts, began)
		}
		if w.barriers == 0 {
			t.Error("it told its log position before raft had finished")
		}
		c.OnVoteResponse(cluster.VoteResponse{Term: 6, Voter: "n3", Granted: true})
		f := c.Facts(6)
		if f.Trigger != "connection_lost" || !strings.Contains(f.Reason, "leader n1 is dead (reported by n2, n3)") ||
			len(f.Votes) != 3 || f.Votes[0].Reason != "no answer yet" {
			t.Errorf("facts: %+v", f)
		}
		if s := f.Steps; s.Noticed.After(s.Confirmed) || s.Confirmed.After(s.Agreed) ||
			s.Agreed.After(s.ElectionStarted) ||
			s.Noticed.IsZero() {
			t.Errorf("steps: %+v", s)
		}
		if since := time.Since(f.LeaderlessSince); since < 15*time.Millisecond || since > 30*time.Millisecond {
			t.Errorf("leaderless for %v: it counts from the last contact", since)
		}
		if len(w.events) != 1 || w.events[0].Type != "failover" {
			t.Errorf("events: %+v", w.events)
		}
		claim := w.claim()
		if !claim.LeaderProcessDead || claim.LeaderBootID != "b1" {
			t.Errorf("its claim does not say so: %+v", claim)
		}
	})
}

// With the answers of a majority, a slow voter is waited for only if it ranks
// above this node.
func TestASlowVoterIsNotWaitedFor(t *testing.T) {
	for name, tt := range map[string]struct {
		priority int // of the slow voter
		majority bool
		within   time.Duration
	}{
		"of lower priority":  {priority: 100, majority: true, within: time.Millisecond},
		"of higher priority": {priority: 250, majority: true, within: 40 * time.Millisecond},
		"later in the list":  {priority: 200, majority: true, within: 40 * time.Millisecond},
		"that is needed":     {priority: 100, within: -1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newTestCluster(t, "n1", "n2", "n3", "n4", "n5")
				w.edit(func() {
					w.mine.Priority = 200
					s := w.claims["n5"]
					s.Claim.Priority = tt.priority
					w.claims["n5"], w.slow = s, "n5"
				})
				w.start(Config{Fast: true})
				w.report("n3")
				if tt.majority {
					w.report("n4")
				}
				began := time.Now()
				w.loss()
				time.Sleep(100 * time.Millisecond)
				switch starts := w.elections(); {
				case tt.within < 0 && len(starts) > 0:
					t.Errorf("it started an election without a majority")
				case tt.within < 0:
				case len(starts) == 0 || starts[0].Sub(began) > tt.within:
					t.Errorf("started at %v, began at %v", starts, began)
				case tt.within > pollWait && starts[0].Sub(began) < pollWait:
					t.Errorf("it started an election after %v: the better placed had no time to answer", starts[0].Sub(began))
				}
			})
		})
	}
}

func TestNoCrashNoElection(t *testing.T) {
	tests := []struct {
		name    string
		fast    bool
		prepare func(w *testCluster)
		loss    cluster.ConnectionLoss
		asked   bool // the peer is dialled again
	}{
		{
			name: "the process lives", fast: true, prepare: func(w *testCluster) { w.alive = cluster.LivenessAlive },
			loss: cluster.ConnectionLoss{Peer: "n1", BootID: "b1"}, asked: true,
		},
		{
			name: "no answer either way", fast: true, prepare: func(w *testCluster) { w.alive = cluster.LivenessUnclear },
			loss: cluster.ConnectionLoss{Peer: "n1", BootID: "b1"}, asked: true,
		},
		{name: "another peer", fast: true, loss: cluster.ConnectionLoss{Peer: "n3", BootID: "b3"}},
		{name: "an earlier process of the leader", fast: true, loss: cluster.ConnectionLoss{Peer: "n1", BootID: "b0"}},
		{name: "switched off", fast: false, loss: cluster.ConnectionLoss{Peer: "n1", BootID: "b1"}},
		{
			name: "this node leads", fast: true, prepare: func(w *testCluster) { w.status.Role = cluster.Leader },
			loss: cluster.ConnectionLoss{Peer: "n1", BootID: "b1"},
		},
		{
			name: "paused", fast: true, prepare: func(w *testCluster) { w.mine.Paused = true },
			loss: cluster.ConnectionLoss{Peer: "n1", BootID: "b1"}, asked: true,
		},
		{
			name: "priority 0", fast: true, prepare: func(w *testCluster) { w.mine.Priority = 0 },
			loss: cluster.ConnectionLoss{Peer: "n1", BootID: "b1"}, asked: true,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newTestCluster(t, "n1", "n2", "n3")
				w.report("n3")
				if tt.prepare != nil {
					w.edit(func() { tt.prepare(w) })
				}
				c := w.start(Config{Fast: tt.fast})
				c.OnConnectionLost(tt.loss)
				time.Sleep(timeoutMin / 2)
				if starts := w.elections(); len(starts) != 0 {
					t.Errorf("it started elections at %v", starts)
				}
				if (w.confirmed > 0) != tt.asked {
					t.Errorf("dialled again %d times", w.confirmed)
				}
			})
		})
	}
}

// The leader was restarted a moment before it was elected, and its new process
// had not yet said anything when this node saw it lead.
func TestLeaderProcess_LearnedLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, "n1", "n2", "n3")
		process := func(boot string, role cluster.Role) {
			w.edit(func() {
				s := w.claims["n1"]
				s.Claim.BootID, s.Claim.Role = boot, role
				w.claims["n1"] = s
			})
		}
		process("b0", cluster.Follower)
		w.edit(func() { w.mine.Priority = 200 })
		c := w.start(Config{Fast: true})
		process("b1", cluster.Leader)
		w.report("n3")
		w.loss()
		time.Sleep(5 * time.Millisecond)
		if starts := w.elections(); len(starts) != 1 {
			t.Fatalf("%d elections", len(starts))
		}
		// It comes back as a follower: what is lost stays lost.
		process("b2", cluster.Follower)
		c.rememberLeader(w.consensus().Status())
		if claim := w.claim(); !claim.LeaderProcessDead || claim.LeaderBootID != "b1" {
			t.Errorf("claim: %+v", claim)
		}
	})
}

func TestConfirmedAlone_StartsNoElection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, "n1", "n2", "n3")
		w.start(Config{Fast: true})
		w.loss()
		time.Sleep(6 * time.Millisecond)
		if starts := w.elections(); len(starts) != 0 {
			t.Fatalf("it started elections at %v, alone", starts)
		}
		w.report("n3") // which has noticed a little later
		time.Sleep(10*time.Millisecond + 20*time.Millisecond)
		if starts := w.elections(); len(starts) != 1 {
			t.Errorf("%d elections once a majority agreed", len(starts))
		}
	})
}

// A node that waits for one more confirmation hears of it from that node, and does not wait
// until it would ask again.
func TestAgreementIsAnnounced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, "n1", "n2", "n3")
		var reported []bool
		w.edit(func() {
			w.mine.Priority = 200
			w.polled = func([]cluster.NodeID) {
				reported = append(reported, w.claim().LeaderProcessDead)
				w.edit(func() { w.polled = nil })
			}
		})
		w.start(Config{Fast: true})
		w.loss()
		time.Sleep(21 * time.Millisecond) // by now it asks every few ms only
		synctest.Wait()
		if len(reported) != 1 || !reported[0] {
			t.Errorf("its first question says that the leader is dead: %v", reported)
		}
		w.report("n3")
		began := time.Now()
		time.Sleep(time.Millisecond)
		if starts := w.elections(); len(starts) != 1 || starts[0].Sub(began) > 200*time.Microsecond {
			t.Errorf("it started elections at %v, n3 agreed at %v", starts, began)
		}
	})
}

// Four survivors of five, all equal: the first-ranked one responds last, by half a millisecond. Without a wait for it,
// it and the second would start elections at the same moment, and get two votes each.
func TestTheFirstOfEqualsIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, "n1", "n3", "n4", "n2", "n5") // n5 comes first, then n2
		w.edit(func() { w.slow, w.slowFor = "n5", 500*time.Microsecond })
		w.start(Config{Fast: true})
		for _, id := range []cluster.NodeID{"n3", "n4", "n5"} {
			w.report(id)
		}
		began := time.Now()
		w.loss()
		time.Sleep(election.Stagger - time.Millisecond)
		if starts := w.elections(); len(starts) != 0 {
			t.Errorf("it started an election after %v, with n5", starts[0].Sub(began))
		}
		time.Sleep(3 * time.Millisecond) // n5 starts no election
		if starts := w.elections(); len(starts) != 1 {
			t.Errorf("%d elections", len(starts))
		}
	})
}

// Agreement that takes longer than a stagger, as with slow disks, does not make
// all ranks start elections at the same moment: the votes would be split.
func TestPlacesWaitFromTheAgreement(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, "n1", "n2", "n3") // n3 is later in the list: first
		w.start(Config{Fast: true})
		w.loss()
		time.Sleep(45 * time.Millisecond)
		w.report("n3")
		began := time.Now()
		time.Sleep(50 * time.Millisecond)
		if starts := w.elections(); len(starts) != 1 || starts[0].Sub(began) < election.Stagger {
			t.Errorf("it started elections at %v, the other agreed at %v", starts, began)
		}
	})
}

// A candidate takes its time. No other node starts an election against it meanwhile.
func TestASlowCandidateIsGivenTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, "n1", "n2", "n3")
		w.report("n3")
		w.start(Config{Fast: true})
		began := time.Now()
		w.loss()
		time.Sleep(15 * time.Millisecond)
		w.edit(func() {
			s := w.claims["n3"]
			s.Claim.Role, s.Claim.LeaderID = cluster.Candidate, ""
			w.claims["n3"] = s
		})
		time.Sleep(20 * time.Millisecond)
		w.edit(func() { // its term is durable only now
			s := w.claims["n3"]
			s.Claim.Term = 6
			w.claims["n3"] = s
		})
		time.Sleep(100 * time.Millisecond)
		if starts := w.elections(); len(starts) != 1 || starts[0].Sub(began) < 35*time.Millisecond+2*election.Stagger {
			t.Errorf("it started elections at %v, the loss was at %v", starts, began)
		}
	})
}

// A peer that reported the leader's death and no longer answers is not asked without end.
func TestAReporterThatIsGoneIsNotAskedWithoutEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, "n1", "n2", "n3")
		w.start(Config{Fast: true})
		w.report("n3")
		polls := 0
		w.edit(func() {
			w.polled = func([]cluster.NodeID) { w.edit(func() { polls++ }) }
			w.answer = func() map[cluster.NodeID]cluster.ReceivedClaim { return nil }
		})
		w.loss()
		time.Sleep(100 * time.Millisecond)
		w.edit(func() {
			if polls == 0 || polls > 20 {
				t.Errorf("%d polls in 100 ms", polls)
			}
		})
	})
}

func TestLowerRankLetsTheFirstGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, "n1", "n2", "n3")
		w.report("n3") // the later in the list: first
		w.start(Config{Fast: true})
		began := time.Now()
		w.loss()
		time.Sleep(12 * time.Millisecond)
		w.lead("n3", 6)
		time.Sleep(100 * time.Millisecond)
		if starts := w.elections(); len(starts) != 0 {
			t.Fatalf("it started an election after %v, and the first leads", starts[0].Sub(began))
		}
	})
}

// Two candidates split the votes of a term. The one with the higher rank starts an election again, long before Raft's
// timer. The failed leader's vote is missing: a dead process refuses connections, a silent one does not answer.
func TestSplitVotes_StartsElectionAgain(t *testing.T) {
	for _, silent := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			w := newTestCluster(t, "n1", "n2", "n3")
			w.edit(func() { w.mine.Priority = 200 })
			c := w.start(Config{Fast: true})
			w.report("n3")
			w.edit(func() {
				w.onStartElection = func(w *testCluster) {
					w.edit(func() {
						w.status.Role, w.status.Term, w.status.LeaderID = cluster.Candidate, w.status.Term+1, ""
						other := w.claims["n3"]
						other.Claim.Role, other.Claim.Term, other.Claim.LeaderID = cluster.Candidate, 6, ""
						w.claims["n3"] = other
					})
					if w.claim().Term > 6 {
						return
					}
					time.Sleep(time.Millisecond)
					c.OnVoteResponse(cluster.VoteResponse{Term: 6, Voter: "n3", Reason: "already voted for n3"})
					if !silent {
						c.OnVoteResponse(cluster.VoteResponse{Term: 6, Voter: "n1", Reason: "not reached"})
					}
				}
			})
			w.loss()
			time.Sleep(100 * time.Millisecond)
			times := w.elections()
			if len(times) != 2 {
				t.Fatalf("%d elections", len(times))
			}
			if after := times[1].Sub(times[0]); after < 40*time.Millisecond || after > 50*time.Millisecond {
				t.Errorf("silent %v: again after %v", silent, after)
			}
		})
	}
}

// The survivors of a crash cannot reach each other for longer than one failover takes. As soon as they can, one of them
// starts an election.
func TestMajorityOutOfReach(t *testing.T) {
	for _, cut := range []time.Duration{590 * time.Millisecond, 610 * time.Millisecond, 2 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			w := newTestCluster(t, "n1", "n2", "n3")
			w.edit(func() { w.mine.Priority, w.slow = 200, "n3" })
			w.start(Config{Fast: true})
			w.loss()
			time.Sleep(cut)
			w.edit(func() { w.slow = "" })
			w.report("n3")
			healed := time.Now()
			time.Sleep(time.Second)
			times := w.elections()
			if len(times) == 0 {
				t.Fatalf("after a cut of %v: no election", cut)
			}
			if after := times[0].Sub(healed); after > 20*time.Millisecond {
				t.Errorf("after a cut of %v: an election after %v", cut, after)
			}
		})
	}
}

// While a leader is silent, the other survivor is heard again. This node evaluates then, and not at its next poll.
func TestSilence_AnotherVoterIsHeard(t *testing.T) {
	for _, cut := range []time.Duration{310 * time.Millisecond, 330 * time.Millisecond, 350 * time.Millisecond} {
		synctest.Test(t, func(t *testing.T) {
			w := newTestCluster(t, "n1", "n2", "n3")
			w.edit(func() { w.mine.Priority, w.slow = 200, "n3" })
			w.start(Config{Fast: true})
			time.Sleep(cut)
			healed := time.Now()
			w.edit(func() { w.slow = "" })
			w.receive("n3")
			time.Sleep(time.Second)
			times := w.elections()
			if len(times) == 0 {
				t.Fatal("no election")
			}
			if after := times[0].Sub(healed); after > 12*time.Millisecond {
				t.Errorf("after a cut of %v: an election after %v", cut, after)
			}
		})
	}
}

// Of five nodes, two more are heard again, one shortly after the other. Only with the second, there is a majority.
func TestSilence_TwoVotersAreHeard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, "n1", "n2", "n3", "n4", "n5")
		var back []cluster.NodeID
		w.edit(func() {
			w.mine.Priority = 200
			w.answer = func() map[cluster.NodeID]cluster.ReceivedClaim {
				all := w.Claims()
				w.edit(func() {
					maps.DeleteFunc(all, func(id cluster.NodeID, _ cluster.ReceivedClaim) bool {
						return !slices.Contains(back, id)
					})
				})
				return all
			}
		})
		w.start(Config{Fast: true})
		time.Sleep(330 * time.Millisecond)
		var healed time.Time
		for _, id := range []cluster.NodeID{"n3", "n4"} {
			time.Sleep(5 * time.Millisecond)
			healed = time.Now()
			w.edit(func() { back = append(back, id) })
			w.receive(id)
		}
		time.Sleep(time.Second)
		times := w.elections()
		if len(times) == 0 {
			t.Fatal("no election")
		}
		if after := times[0].Sub(healed); after > 12*time.Millisecond {
			t.Errorf("an election %v after the second voter was heard", after)
		}
	})
}

// Voters that send claims and answer no poll are polled at most once in maxRecheck: two such survivors would poll each
// other without a pause.
func TestBusyVotersAreHeard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, "n1", "n2", "n3")
		polls := 0
		w.edit(func() {
			w.slow = "n3"
			w.polled = func(peers []cluster.NodeID) { w.edit(func() { polls += len(peers) }) }
		})
		w.start(Config{Fast: true})
		w.loss()
		time.Sleep(100 * time.Millisecond)
		w.edit(func() { polls = 0 })
		const busy = 300 * time.Millisecond
		for began := time.Now(); time.Since(began) < busy; time.Sleep(time.Millisecond) {
			w.receive("n3")
		}
		w.edit(func() {
			if limit := int(busy/maxRecheck) + 1; polls == 0 || polls > limit {
				t.Errorf("%d polls in %v, want 1 to %d", polls, busy, limit)
			}
		})
	})
}

// A failed leader that is heard is no news: it takes no part in the decision. A voter that was heard a moment ago is
// none either, but it does not keep others from being heard: of five nodes, two make no majority.
func TestHearsMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, "n1", "n2", "n3", "n4", "n5")
		c := w.start(Config{Fast: true})
		since, heard := time.Now(), map[cluster.NodeID]time.Time{}
		time.Sleep(time.Millisecond)
		for _, tc := range []struct {
			heard cluster.NodeID
			want  bool
		}{{"n1", false}, {"n3", true}, {"n3", false}, {"n4", true}} {
			w.receive(tc.heard)
			if got := c.hearsMore(w.Claims(), nil, "n1", since, heard); got != tc.want {
				t.Errorf("%s is heard: %v, want %v", tc.heard, got, tc.want)
			}
		}
	})
}

// Another node's election of a newer term has failed. This node, which knows no leader since then, starts one.
func TestSilence_AnotherNodeHasLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, "n1", "n2", "n3")
		w.start(Config{Fast: true})
		w.edit(func() {
			w.mine.Priority = 200
			w.status.Term, w.status.LeaderID = 6, ""
			s := w.claims["n3"]
			s.Claim.Role, s.Claim.Term, s.Claim.LeaderID = cluster.Candidate, 6, ""
			s.Claim.LeaderSilence = time.Second
			w.claims["n3"] = s
		})
		time.Sleep(time.Second)
		if times := w.elections(); len(times) == 0 {
			t.Error("it leaves it to Raft's timers")
		}
	})
}

// A candidacy that had to be ended takes a term. The next election's record, votes and old leader are those of the term
// after it.
func TestRaisedTerm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, "n1", "n2", "n3")
		w.edit(func() { w.mine.Priority, w.raises = 200, true })
		c := w.start(Config{Fast: true})
		w.report("n3")
		w.loss()
		time.Sleep(10 * time.Millisecond)
		c.OnVoteResponse(cluster.VoteResponse{Term: 7, Voter: "n3", Granted: true})
		f := c.Facts(7)
		if f.Term != 7 || f.Trigger != "connection_lost" || len(f.Votes) != 3 || f.Steps.ElectionStarted.IsZero() {
			t.Errorf("facts: %+v", f)
		}
		if f := c.Facts(6); f.Term != 0 {
			t.Errorf("of the raised term: %+v", f)
		}
	})
}

// The votes of a candidate are refused because another one wins. It starts no election again.
func TestLostElection_AnotherLeads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, "n1", "n2", "n3")
		w.edit(func() { w.mine.Priority = 200 })
		c := w.start(Config{Fast: true})
		w.report("n3")
		w.edit(func() {
			w.onStartElection = func(w *testCluster) {
				w.edit(func() { w.status.Role, w.status.Term, w.status.LeaderID = cluster.Candidate, 6, "" })
				for _, voter := range []cluster.NodeID{"n1", "n3"} {
					c.OnVoteResponse(cluster.VoteResponse{Term: 6, Voter: voter, Reason: "already voted"})
				}
				time.Sleep(30 * time.Millisecond)
				w.lead("n3", 6)
			}
		})
		w.loss()
		time.Sleep(time.Second)
		if starts := w.elections(); len(starts) != 1 {
			t.Fatalf("%d elections", len(starts))
		}
	})
}

func TestLowerRank_StartsElectionWhenFirstDoesNot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, "n1", "n2", "n3")
		w.report("n3")
		w.start(Config{Fast: true})
		began := time.Now()
		w.loss()
		time.Sleep(50 * time.Millisecond)
		starts := w.elections()
		if len(starts) != 1 {
			t.Fatalf("%d elections", len(starts))
		}
		if after := starts[0].Sub(began); after < 20*time.Millisecond || after > 22*time.Millisecond {
			t.Errorf("it started an election after %v, its turn was after 20 ms", after)
		}
	})
}

func TestSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, "n1", "n2", "n3")
		w.edit(func() { w.mine.Priority = 200 })
		w.start(Config{Fast: true})
		w.hang("n3")
		began := time.Now()
		time.Sleep(timeoutMin - time.Millisecond)
		if starts := w.elections(); len(starts) != 0 {
			t.Fatal("it started an election before timeout-min")
		}
		time.Sleep(20 * time.Millisecond)
		starts := w.elections()
		if len(starts) != 1 || starts[0].Sub(began) > timeoutMin+pollWait+2*time.Millisecond {
			t.Fatalf("it started elections at %v, silence began at %v", starts, began)
		}
		if f := w.c.Facts(6); f.Trigger != "timeout" {
			t.Errorf("facts: %+v", f)
		}
	})
}

// Raft's own timer has made a candidate of this node, whose pre-vote is turned
// down: the others still knew the leader. Once they agree, it starts an election like any
// other node.
func TestPreVoteCandidate_StartsElection(t *testing.T) {
	for _, lost := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			w := newTestCluster(t, "n1", "n2", "n3")
			w.edit(func() { w.mine.Priority = 200 })
			w.start(Config{Fast: true})
			w.hang("n3")
			began := time.Now()
			time.Sleep(timeoutMin - 5*time.Millisecond)
			w.edit(func() { w.status.Role, w.status.LeaderID = cluster.Candidate, "" })
			if lost {
				w.report("n3")
				w.edit(func() { w.answer = nil })
				w.loss()
			}
			time.Sleep(25 * time.Millisecond)
			starts := w.elections()
			if len(starts) != 1 || starts[0].Sub(began) > timeoutMin+pollWait+2*time.Millisecond {
				t.Fatalf("lost %v: it started elections at %v, silence began at %v", lost, starts, began)
			}
			w.loss() // the other connection of the same process
			time.Sleep(timeoutMin / 2)
			if starts := w.elections(); lost && len(starts) != 1 {
				t.Errorf("it started another election, at %v", starts)
			}
		})
	}
}

// The others last heard the leader a little later than this node: it starts an
// election, as the first in rank, when the last of them has heard nothing for timeout-min, and does
// not sleep past that.
func TestTheFirstPlaceDoesNotOversleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, "n1", "n2", "n3", "n4", "n5")
		w.edit(func() { w.mine.Priority = 200 })
		w.start(Config{Fast: true})
		began := time.Now()
		w.edit(func() {
			w.answer = func() map[cluster.NodeID]cluster.ReceivedClaim {
				all := w.Claims()
				for id, later := range map[cluster.NodeID]time.Duration{
					"n3": 16 * time.Millisecond,
					"n4": 25 * time.Millisecond,
					"n5": 31 * time.Millisecond,
				} {
					s := all[id]
					s.Claim.LeaderSilence = time.Since(began) - later
					all[id] = s
				}
				return all
			}
		})
		time.Sleep(2 * timeoutMin)
		due := began.Add(timeoutMin + 31*time.Millisecond)
		starts := w.elections()
		if len(starts) == 0 || starts[0].Before(due) || starts[0].Sub(due) > 2*election.Recheck {
			t.Errorf("it started elections at %v, all agreed at %v", starts, due)
		}
	})
}

// A leader was heard again while the others were asked, and then falls silent. The node checks it again after
// timeout-min of new silence.
func TestSilence_LeaderHeardAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, "n1", "n2", "n3")
		w.edit(func() { w.mine.Priority = 200 })
		w.start(Config{Fast: true})
		began := time.Now()
		w.edit(func() {
			w.answer = func() map[cluster.NodeID]cluster.ReceivedClaim {
				all := w.Claims()
				n3 := all["n3"]
				n3.Claim.LeaderSilence = time.Since(began) - 40*time.Millisecond
				all["n3"] = n3
				return all
			}
		})
		time.Sleep(timeoutMin + 2*pollWait) // n3 is waited for
		heard := time.Now()
		w.edit(func() { w.contact = heard })
		time.Sleep(timeoutMin + 40*time.Millisecond)
		due := heard.Add(timeoutMin)
		if starts := w.elections(); len(starts) != 1 || starts[0].Before(due) ||
			starts[0].Sub(due) > pollWait+2*election.Recheck {
			t.Errorf("it started elections at %v, the leader was last heard at %v", starts, heard)
		}
	})
}

// The leader is asked once whether it lives; places that wait do not wait for it
// again.
func TestSilence_PollsLeaderOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, "n1", "n2", "n3") // n3 is the first in place, and does nothing
		asked := 0
		w.edit(func() {
			w.polled = func(peers []cluster.NodeID) {
				if slices.Contains(peers, "n1") {
					w.edit(func() { asked++ })
				}
			}
		})
		w.start(Config{Fast: true})
		w.hang("n3")
		began := time.Now()
		time.Sleep(timeoutMin + 50*time.Millisecond)
		if starts := w.elections(); len(starts) != 1 ||
			starts[0].Sub(began) > timeoutMin+pollWait+election.Stagger+2*time.Millisecond ||
			asked+len(w.asked) != 1 {
			t.Errorf("it started elections at %v, silence began at %v, the leader was asked %d times", starts, began, asked+len(w.asked))
		}
	})
}

func TestSilence_LeaderThatResponds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, "n1", "n2", "n3")
		w.edit(func() { w.mine.Priority = 200; w.awake = true })
		w.start(Config{Fast: true})
		w.hang("n3")
		time.Sleep(5 * timeoutMin)
		if starts := w.elections(); len(starts) != 0 {
			t.Errorf("it started elections at %v against a leader that answers", starts)
		}
	})
}

func TestSilenceOfAStalledDisk(t *testing.T) {
	for name, edit := range map[string]func(*cluster.Claim){
		"it yields":       func(c *cluster.Claim) { c.Yields = cluster.YieldDisk },
		"earlier version": func(c *cluster.Claim) { c.Disk.Stalled = true },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newTestCluster(t, "n1", "n2", "n3")
				w.edit(func() {
					w.mine.Priority = 200
					s := w.claims["n1"]
					edit(&s.Claim)
					w.claims["n1"] = s
				})
				w.start(Config{Fast: true})
				w.hang("n3")
				time.Sleep(timeoutMin + 20*time.Millisecond)
				w.elections()
				if f := w.c.Facts(6); f.Trigger != "disk_stall" {
					t.Errorf("facts: %+v", f)
				}
			})
		})
	}
}

func TestVoterThatHeardLeader_StopsElection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, "n1", "n2", "n3", "n4", "n5")
		w.edit(func() { w.mine.Priority = 200 })
		w.start(Config{Fast: true})
		w.hang("n3", "n4") // n5's claims stay at no silence at all
		time.Sleep(3 * timeoutMin)
		if starts := w.elections(); len(starts) != 0 {
			t.Errorf("it started elections at %v against a leader that n5 hears", starts)
		}
	})
}

func TestContactIsNoSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, "n1", "n2", "n3")
		polls := 0
		w.edit(func() { w.polled = func([]cluster.NodeID) { polls++ } })
		w.start(Config{Fast: true})
		w.hang("n3")
		for range 100 {
			time.Sleep(30 * time.Millisecond)
			w.edit(func() { w.contact = time.Now() })
		}
		if starts := w.elections(); len(starts) != 0 || polls != 0 {
			t.Errorf("%d elections and %d polls under a leader that is heard", len(starts), polls)
		}
	})
}

func TestLeaseIsWaitedOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, "n1", "n2", "n3")
		w.edit(func() { w.mine.Priority = 200 })
		c := w.start(Config{Fast: true, Lease: true})
		w.hang("n3")
		began := time.Now()
		w.report("n3")
		w.loss()
		time.Sleep(timeoutMin - 2*time.Millisecond)
		if starts := w.elections(); len(starts) != 0 || c.MayIgnoreLeader("n3", 6, time.Now()) {
			t.Fatalf("it started an election or consented within the lease: %v", starts)
		}
		time.Sleep(30 * time.Millisecond)
		if starts := w.elections(); len(starts) != 1 || starts[0].Sub(began) < timeoutMin {
			t.Errorf("it started elections at %v, the lease began at %v", starts, began)
		}
		if !c.MayIgnoreLeader("n3", 6, time.Now()) {
			t.Error("no consent after the lease")
		}
	})
}

func TestInjectionsAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, "n1", "n2", "n3")
		w.edit(func() { w.mine.Priority = 200 })
		w.start(Config{Fast: true})
		for term := uint64(6); term < 16; term++ {
			// The process is thought dead again and again, and leads again.
			w.report("n3")
			w.loss()
			time.Sleep(5 * time.Millisecond)
			w.lead("n1", term)
			w.edit(func() { s := w.claims["n3"]; s.Claim.Term = term; w.claims["n3"] = s })
			synctest.Wait()
		}
		if starts := w.elections(); len(starts) != maxElectionBurst {
			t.Fatalf("%d elections because of one process, the limit is %d", len(starts), maxElectionBurst)
		}
		time.Sleep(electionRefill)
		w.lead("n1", 16)
		w.edit(func() { s := w.claims["n3"]; s.Claim.Term = 16; w.claims["n3"] = s })
		synctest.Wait()
		w.loss()
		time.Sleep(5 * time.Millisecond)
		if starts := w.elections(); len(starts) != maxElectionBurst+1 {
			t.Errorf("%d elections in all after a pause", len(starts))
		}
	})
}

func TestMayIgnoreLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, "n1", "n2", "n3")
		c := w.start(Config{Fast: true})
		if c.MayIgnoreLeader("n3", 6, time.Now()) {
			t.Error("without evidence")
		}
		w.loss()
		synctest.Wait()
		if !c.MayIgnoreLeader("n3", 6, time.Now()) {
			t.Error("not with its own confirmation")
		}
		w.lead("n3", 6)
		synctest.Wait()
		if c.MayIgnoreLeader("n1", 7, time.Now()) {
			t.Error("the evidence was about another leader")
		}
	})
}

func TestPreVote(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, "n1", "n2", "n3")
		w.edit(func() { w.mine.Priority = 200 })
		c := w.start(Config{Fast: false})
		if got := c.VetoPreVote("n3", time.Now()); got != "higher priority n2 alive: 200 > 100" {
			t.Errorf("refused with %q", got)
		}
		time.Sleep(3 * timeoutMin)
		w.edit(func() { s := w.claims["n3"]; s.At = time.Now(); w.claims["n3"] = s })
		if got := c.VetoPreVote("n3", time.Now()); got != "" {
			t.Errorf("after the bound still refused: %q", got)
		}
	})
}

// The answers to candidates are kept by term and candidate, the newest only.
func TestVotesGiven(t *testing.T) {
	t.Parallel()
	var c Controller
	given := func(term uint64, to cluster.NodeID, granted bool) cluster.VoteGiven {
		return cluster.VoteGiven{Term: term, Candidate: to, Vote: cluster.Vote{Voter: "n1", Granted: granted}}
	}
	c.OnVoteAnswered(given(1, "n2", false))
	c.OnVoteAnswered(given(1, "n3", true))
	c.OnVoteAnswered(given(1, "n2", true))
	if got := c.VotesGiven(); !slices.Equal(got, []cluster.VoteGiven{given(1, "n3", true), given(1, "n2", true)}) {
		t.Errorf("%+v", got)
	}
	for term := range uint64(2 * maxVotesGiven) {
		c.OnVoteAnswered(given(2+term, "n2", true))
	}
	got := c.VotesGiven()
	if len(got) != maxVotesGiven || got[0].Term != 2+maxVotesGiven || got[len(got)-1].Term != 1+2*maxVotesGiven {
		t.Errorf("%d answers, of terms %d to %d", len(got), got[0].Term, got[len(got)-1].Term)
	}
}
