package failover

import (
	"testing"
	"testing/synctest"
	"time"

	"northstar/cluster"
	"northstar/election"
)

// leading is a cluster whose leader is n2, which has heard all others for a while, with gaps of up to 30 ms.
func leading(t *testing.T, voters ...cluster.NodeID) *testCluster {
	w := newTestCluster(t, voters...)
	w.edit(func() { w.status.Role, w.status.LeaderID = cluster.Leader, "n2" })
	w.start(Config{Fast: true})
	w.hearAll(20*time.Second, voters...)
	w.edit(func() { w.asked = nil })
	return w
}

// announcements returns how often this node's claim was sent to all.
func (w *testCluster) announcements() (n int) {
	w.edit(func() { n = w.announced })
	return n
}

func (w *testCluster) hearAll(d time.Duration, from ...cluster.NodeID) {
	for end := time.Now().Add(d); time.Now().Before(end); {
		time.Sleep(30 * time.Millisecond)
		for _, id := range from {
			w.c.OnHeard(id, nil)
		}
	}
}

func TestMajority_LeaderYields(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := leading(t, "n1", "n2", "n3")
		began := time.Now()
		time.Sleep(44 * time.Millisecond)
		synctest.Wait()
		if w.c.Yields() || w.claim().Yields != "" {
			t.Error("it yields before the threshold")
		}
		time.Sleep(2 * time.Millisecond)
		synctest.Wait()
		if !w.c.Yields() || w.claim().Yields != cluster.YieldUnheard || w.announced != 1 {
			t.Errorf("it does not yield, or not aloud: %+v, announced %d times", w.claim(), w.announced)
		}
		if len(w.asked) != 2 || w.asked[0].Sub(began) != 30*time.Millisecond {
			t.Errorf("the voters were asked at %v, silence began at %v", w.asked, began)
		}
		w.edit(func() { w.mine.Disk.Hangs = true })
		if got := w.claim().Yields; got != cluster.YieldDisk {
			t.Errorf("when its disk hangs, too: %q", got)
		}
		w.edit(func() { w.mine.Paused = true })
		if w.claim().Yields != "" {
			t.Error("it says that it yields although automatic failover is paused")
		}
		w.c.OnHeard("n4", nil) // not a voter
		if !w.c.Yields() {
			t.Error("it leads on after a message of no voter")
		}
		w.c.OnHeard("n1", &cluster.Claim{NodeID: "n1", Term: 5})
		if w.c.Yields() || w.announced != 2 {
			t.Errorf("it yields although a majority is heard; announced %d times", w.announced)
		}
	})
}

// Without automatic failover no other node is elected, so the leader goes on sending, and says nothing else.
func TestMajority_Paused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := leading(t, "n1", "n2", "n3")
		w.edit(func() { w.mine.Paused = true })
		time.Sleep(time.Second)
		synctest.Wait()
		if w.c.Yields() || w.announced != 0 {
			t.Errorf("it yields while automatic failover is paused; announced %d times", w.announced)
		}
		w.edit(func() { w.mine.Paused = false })
		time.Sleep(timeoutMin + 20*time.Millisecond)
		synctest.Wait()
		if !w.c.Yields() {
			t.Error("it does not yield afterwards")
		}
	})
}

func TestMajority_OfFive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := leading(t, "n1", "n2", "n3", "n4", "n5")
		w.hearAll(300*time.Millisecond, "n1", "n4")
		if w.c.Yields() {
			t.Error("it yields although three of five are in contact")
		}
		w.hearAll(60*time.Millisecond, "n1")
		if !w.c.Yields() {
			t.Error("it leads with two of five")
		}
	})
}

// A stopped process hears no other node. That is no evidence against them.
func TestMajority_OwnStopIsNoEvidence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := leading(t, "n1", "n2", "n3")
		synctest.Wait() // the check is set, and nothing sets it again
		w.c.watch.mu.Lock()
		w.c.watch.due = time.Now().Add(-40 * time.Millisecond) // the check should have run then
		w.c.watch.mu.Unlock()
		time.Sleep(60 * time.Millisecond)
		synctest.Wait()
		if w.c.Yields() {
			t.Error("it yields after it was stopped")
		}
		time.Sleep(200 * time.Millisecond)
		synctest.Wait()
		if !w.c.Yields() {
			t.Error("it does not yield later either")
		}
	})
}

// Connections are made in the first second. A new leader waits for longer, and forgets that it has yielded before.
func TestMajority_NewLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := leading(t, "n1", "n2", "n3")
		time.Sleep(60 * time.Millisecond)
		w.edit(func() { w.status.Role, w.status.LeaderID = cluster.Follower, "" })
		w.lead("n1", 6)
		synctest.Wait()
		if w.c.Yields() {
			t.Error("a follower yields")
		}
		w.edit(func() { w.status.Role = cluster.Leader })
		w.lead("n2", 7)
		time.Sleep(timeoutMin - 5*time.Millisecond)
		synctest.Wait()
		if w.c.Yields() {
			t.Error("a new leader yields too soon")
		}
		time.Sleep(10 * time.Millisecond)
		synctest.Wait()
		if !w.c.Yields() {
			t.Error("it does not yield")
		}
	})
}

// A leader that says that it yields is replaced sooner, also while appends that it has sent before arrive.
func TestYieldingLeaderIsReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, "n1", "n2", "n3")
		w.edit(func() { w.mine.Priority = 200 })
		w.start(Config{Fast: true})
		w.limits("n3")
		w.beat(20 * time.Second)
		w.edit(func() {
			s := w.claims["n3"]
			s.Claim.SilenceLimit = election.YieldSilence
			w.claims["n3"] = s
		})
		w.c.OnHeard("n1", &cluster.Claim{NodeID: "n1", Term: 5, Role: cluster.Leader, Yields: cluster.YieldUnheard})
		w.hear()
		began := time.Now()
		w.hang("n3")
		time.Sleep(timeoutMin)
		starts := w.elections()
		if len(starts) != 1 || starts[0].Sub(began) > 17*time.Millisecond {
			t.Errorf("it started elections at %v, the leader was heard last at %v", starts, began)
		}
	})
}

// A leader that says that it leads on is no longer replaced sooner.
func TestYieldingLeaderResumes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, "n1", "n2", "n3")
		w.start(Config{Fast: true})
		w.beat(20 * time.Second)
		for _, c := range []struct {
			claim cluster.Claim
			want  time.Duration
		}{
			{cluster.Claim{NodeID: "n1", Term: 4, Role: cluster.Leader, Yields: cluster.YieldUnheard}, 45 * time.Millisecond},
			{cluster.Claim{NodeID: "n1", Term: 5, Role: cluster.Leader, Yields: cluster.YieldUnheard}, election.YieldSilence},
			{cluster.Claim{NodeID: "n3", Term: 5}, election.YieldSilence},
			{cluster.Claim{NodeID: "n1", Term: 5, Role: cluster.Leader}, 45 * time.Millisecond},
		} {
			w.c.OnHeard(c.claim.NodeID, &c.claim)
			if got := w.claim().SilenceLimit; got != c.want {
				t.Errorf("after %+v: %v, want %v", c.claim, got, c.want)
			}
		}
		w.c.OnHeard("n1", &cluster.Claim{NodeID: "n1", Term: 5, Role: cluster.Leader, Yields: cluster.YieldDisk})
		w.beat(timeoutMin) // the claim that it leads on is lost
		if got := w.claim().SilenceLimit; got != 45*time.Millisecond {
			t.Errorf("after it was heard for a while: %v", got)
		}
	})
}

// A leader that heard nothing goes on speaking. Its replacement was needless only if it hears of that soon.
func TestNeedlessElection_OfYieldingLeader(t *testing.T) {
	for name, c := range map[string]struct {
		term uint64
		want int
	}{"it hears": {6, 1}, "it does not": {5, 0}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				yields := func(w *testCluster) {
					w.c.OnHeard("n1", &cluster.Claim{NodeID: "n1", Term: 5, Role: cluster.Leader, Yields: cluster.YieldUnheard})
				}
				w := needlessElectionOf(t, yields, "n2", 100*time.Millisecond,
					func(claim *cluster.Claim) { claim.Term = c.term })
				if len(w.needless) != c.want {
					t.Errorf("reported %v", w.needless)
				}
			})
		})
	}
}

// Storage that the voters share hangs for all of them. The leader goes on with its heartbeats, and says so.
func TestSharedStorageHangs(t *testing.T) {
	for _, tc := range []struct {
		voters, hang []cluster.NodeID
		cut          bool // those that hang are not connected
		want         bool // the leader yields
	}{
		{voters: []cluster.NodeID{"n1", "n2", "n3"}, want: true},
		{voters: []cluster.NodeID{"n1", "n2", "n3"}, hang: []cluster.NodeID{"n3"}},
		{voters: []cluster.NodeID{"n1", "n2", "n3"}, hang: []cluster.NodeID{"n3"}, cut: true, want: true},
		{voters: []cluster.NodeID{"n1", "n2", "n3", "n4", "n5"}, hang: []cluster.NodeID{"n3"}, want: true},
		{voters: []cluster.NodeID{"n1", "n2", "n3", "n4", "n5"}, hang: []cluster.NodeID{"n3", "n4"}},
	} {
		synctest.Test(t, func(t *testing.T) {
			w := leading(t, tc.voters...)
			w.edit(func() { w.mine.Disk.Hangs, w.status.Disk.Hangs = true, true })
			w.c.OnDiskHangs()
			if y := w.claim().Yields; y != cluster.YieldDisk {
				t.Errorf("before it knows more: yields %q", y)
			}
			for _, id := range tc.hang {
				w.edit(func() {
					s := w.claims[id]
					s.Claim.Disk.Hangs, s.Connected, s.At = true, !tc.cut, time.Now()
					w.claims[id] = s
				})
				claim := w.Claims()[id].Claim
				w.c.OnHeard(id, &claim)
				w.c.OnHeard(id, &claim)
			}
			tells := map[bool]int{true: 1, false: 2}[tc.want]
			y := w.claim().Yields != ""
			if y != tc.want || w.c.Replaceable() != tc.want || w.announcements() != tells {
				t.Errorf("%+v: yields: %v; announced %d times, want %d", tc, y, w.announcements(), tells)
			}
			w.c.OnDiskHangs()
			if w.announcements() != tells {
				t.Errorf("%+v: announced again", tc)
			}
			time.Sleep(2 * timeoutMin)
			if !w.c.Replaceable() {
				t.Errorf("%+v: old claims count", tc)
			}
		})
	}
}

// A leader whose disk works again does not care about the disks of others.
func TestSharedStorageHangs_NoMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := leading(t, "n1", "n2", "n3")
		w.c.OnDiskHangs()
		w.edit(func() {
			s := w.claims["n3"]
			s.Claim.Disk.Hangs, s.At = true, time.Now()
			w.claims["n3"] = s
		})
		claim := w.Claims()["n3"].Claim
		if w.c.OnHeard("n3", &claim); w.announcements() != 1 {
			t.Errorf("announced %d times", w.announcements())
		}
	})
}

func TestOnDiskHangs_TellsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := leading(t, "n1", "n2", "n3")
		for range 10 {
			w.c.OnDiskHangs()
		}
		if w.announced != 1 {
			t.Errorf("announced %d times", w.announced)
		}
		w.hearAll(timeoutMin, "n1", "n3")
		w.c.OnDiskHangs()
		if w.announced != 2 {
			t.Errorf("announced %d times, the second time after a while", w.announced)
		}
	})
}
