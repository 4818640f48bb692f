package failover

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"northstar/cluster"
	"northstar/state"
)

// leaderView makes a world where n2 leads, and n3 has priority 200.
func leaderView(t *testing.T) *testCluster {
	w := newTestCluster(t, "n1", "n2", "n3")
	s := state.New(state.Options{HistoryRevisions: 10})
	s.Apply(1, 1, []state.Command{{Kind: state.KindClusterInit, Now: 1, ClusterInit: &state.ClusterInit{
		ClusterID: "c", Generation: cluster.Generation{Number: 1}, AutoFailover: true, Members: []cluster.Member{
			{ID: "n1", Priority: 100, Eligible: true, Lifecycle: cluster.Active},
			{ID: "n2", Priority: 100, Eligible: true, Lifecycle: cluster.Active},
			{ID: "n3", Priority: 200, Eligible: true, Lifecycle: cluster.Active},
		},
	}}})
	w.view = s.View()
	w.status.Role, w.status.LeaderID = cluster.Leader, "n2"
	w.peers = []cluster.PeerStatus{{ID: "n1", Healthy: true}, {ID: "n3", Healthy: true}}
	return w
}

func (w *testCluster) leadTerm() {
	ctx, stop := context.WithCancel(w.t.Context())
	done := make(chan struct{})
	go func() { defer close(done); w.c.MonitorLeadership(ctx, 5) }()
	w.t.Cleanup(func() { stop(); <-done })
}

func (w *testCluster) moveTargets() []cluster.NodeID {
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	var to []cluster.NodeID
	for _, h := range w.moves {
		to = append(to, h.To)
	}
	return to
}

func TestPriorityTakeover(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := leaderView(t)
		w.start(Config{Fast: true, TakeoverDelay: 5 * time.Second})
		w.leadTerm()
		time.Sleep(5 * time.Second)
		if got := w.moveTargets(); len(got) != 0 {
			t.Fatalf("moved to %v before it was stable", got)
		}
		time.Sleep(2 * time.Second)
		if got := w.moveTargets(); !slices.Equal(got, []cluster.NodeID{"n3"}) {
			t.Fatalf("moved to %v", got)
		}
		if h := w.moves[0]; h.Trigger != "priority" || h.Reason == "" {
			t.Errorf("moved because of %+v", h)
		}
	})
}

// The leadership ends before the new leader is seen. That does not end the transfer.
func TestPriorityTakeover_OutlivesLeadership(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := leaderView(t)
		ctx, lose := context.WithCancel(t.Context())
		var ended time.Duration
		w.moved = func(move context.Context, _ cluster.NodeID) error {
			lose()
			began := time.Now()
			<-move.Done() // the new leader is never seen
			ended = time.Since(began)
			return move.Err()
		}
		w.start(Config{Fast: true, TakeoverDelay: 5 * time.Second})
		done := make(chan struct{})
		go func() { defer close(done); w.c.MonitorLeadership(ctx, 5) }()
		<-done
		if ended != 4*timeoutMin {
			t.Errorf("it got %v to see the new leader", ended)
		}
	})
}

func TestPriorityTakeover_WaitsForStability(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := leaderView(t)
		w.start(Config{Fast: true, TakeoverDelay: 5 * time.Second})
		w.leadTerm()
		for range 5 { // it comes and goes
			time.Sleep(4 * time.Second)
			w.edit(func() {
				w.peers = []cluster.PeerStatus{{ID: "n1", Healthy: true}, {ID: "n3", Healthy: true, LagEntries: 5000}}
			})
			time.Sleep(2 * time.Second)
			w.edit(func() { w.peers = []cluster.PeerStatus{{ID: "n1", Healthy: true}, {ID: "n3", Healthy: true}} })
		}
		if got := w.moveTargets(); len(got) != 0 {
			t.Errorf("moved to %v, which is never stable", got)
		}
	})
}

func TestPriorityTakeover_CooldownAfterFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := leaderView(t)
		var at []time.Duration
		began := time.Now()
		w.moved = func(context.Context, cluster.NodeID) error {
			at = append(at, time.Since(began))
			return errors.New("no")
		}
		w.start(Config{Fast: true, TakeoverDelay: 5 * time.Second})
		w.leadTerm()
		time.Sleep(2 * time.Minute)
		w.moveTargets()
		if len(at) < 4 || len(at) > 6 {
			t.Fatalf("%d attempts in two minutes: %v", len(at), at)
		}
		for i := 2; i < len(at); i++ {
			if gap, before := at[i]-at[i-1], at[i-1]-at[i-2]; gap < 2*before-2*time.Second {
				t.Errorf("attempts at %v: the pause does not double", at)
			}
		}
	})
}

func TestSlowDisk_TransfersOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := leaderView(t)
		w.status.Disk = cluster.DiskState{FsyncP99: 400 * time.Millisecond, Syncs: 1000}
		w.moved = func(context.Context, cluster.NodeID) error { return errors.New("no") }
		w.peers = []cluster.PeerStatus{{ID: "n1", Healthy: true}}
		w.start(Config{Fast: true, TakeoverDelay: 5 * time.Second})
		w.leadTerm()
		fresh := func(d time.Duration) {
			for range d / time.Second {
				time.Sleep(time.Second)
				w.edit(func() {
					s := w.claims["n1"]
					s.At, s.Claim.Disk.Syncs = time.Now(), 1000
					w.claims["n1"] = s
				})
			}
		}
		fresh(80 * time.Second)
		if got := w.moveTargets(); len(got) != 0 {
			t.Fatalf("moved to %v because of one bad moment", got)
		}
		fresh(9 * time.Minute)
		if got := w.moveTargets(); !slices.Equal(got, []cluster.NodeID{"n1"}) {
			t.Fatalf("moved to %v", got)
		}
		fresh(3 * time.Minute)
		if got := w.moveTargets(); len(got) != 2 {
			t.Errorf("moved %d times after ten minutes", len(got))
		}
	})
}

// A leader whose disk is full transfers leadership to a node that can write, reports this, and tries again if
// the transfer fails.
func TestFullDiskHandsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := leaderView(t)
		w.moved = func(context.Context, cluster.NodeID) error { return errors.New("no") }
		w.peers = []cluster.PeerStatus{{ID: "n1", Healthy: true}, {ID: "n3", Reasons: []string{"silent"}}}
		w.start(Config{Fast: true, TakeoverDelay: 5 * time.Second})
		w.leadTerm()
		time.Sleep(1100 * time.Millisecond)
		if got := w.moveTargets(); len(got) != 0 {
			t.Fatalf("moved to %v with space on the disk", got)
		}
		w.edit(func() { w.status.Disk.ReadOnly = true })
		time.Sleep(fullDiskInterval) // there are no writes until then
		if got := w.moveTargets(); !slices.Equal(got, []cluster.NodeID{"n1"}) {
			t.Fatalf("moved to %v", got)
		}
		var e cluster.Event
		w.edit(func() { e = w.events[0] })
		if e.Fields["trigger"] != "disk_stall" || !strings.Contains(e.Message, "the disk of the leader n2 is full") {
			t.Errorf("event: %+v", e)
		}
		time.Sleep(5 * time.Second)
		if got := w.moveTargets(); len(got) != 2 {
			t.Errorf("tried %d times in six seconds", len(got))
		}
		w.edit(func() {
			w.peers = []cluster.PeerStatus{
				{ID: "n1", Healthy: true},
				{ID: "n3", Healthy: true, TransferBlocked: "given up"},
			}
		})
		time.Sleep(fullDiskInterval)
		if got := w.moveTargets(); len(got) != 2 {
			t.Errorf("moved to %v, which was given up", got)
		}
		w.edit(func() { w.peers[0].TransferBlocked, w.peers[1].TransferBlocked = "given up", "" })
		time.Sleep(fullDiskInterval)
		if got := w.moveTargets(); len(got) != 3 || got[2] != "n3" {
			t.Errorf("moved to %v after the first was given up", got)
		}
		w.edit(func() { w.status.Disk.ReadOnly = false })
		time.Sleep(7 * time.Second) // no cooldown is left behind
		if got := w.moveTargets(); len(got) != 4 || got[3] != "n3" {
			t.Errorf("moved to %v", got)
		}
	})
}

func TestCandidacyLog_IsBounded(t *testing.T) {
	var b candidacyLog
	for term := range uint64(100) {
		b.vote(cluster.VoteResponse{Term: term, Voter: "n3", Reason: "log behind: 41 < 44"}, time.Unix(int64(term), 0))
	}
	if len(b.last) != maxCandidacies {
		t.Errorf("%d candidacies are kept", len(b.last))
	}
	if f, ok := b.facts("n2", 99); !ok || len(f.Votes) != 2 || f.Votes[0].Reason != "log behind: 41 < 44" ||
		f.Votes[0].Granted || f.Votes[0].Pre {
		t.Errorf("facts: %+v", f)
	}
	if _, ok := b.facts("n2", 10); ok {
		t.Error("of a candidacy that is long forgotten")
	}
	// A candidacy that ended with pre-votes.
	b.vote(cluster.VoteResponse{Term: 200, Voter: "n3", Pre: true, Reason: "knows leader n1"}, time.Unix(200, 0))
	if f, _ := b.facts("n2", 203); f.Term != 200 || len(f.Votes) != 2 || f.Votes[0].Reason != "knows leader n1" ||
		!f.Votes[0].Pre || !f.Votes[1].Pre {
		t.Errorf("facts: %+v", f)
	}
}
