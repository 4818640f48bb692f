package failover

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"northstar/cluster"
)

// announces makes leader n1 announce a transfer of leadership.
func (w *testCluster) announces(h cluster.TransferNotice) {
	w.edit(func() {
		s := w.claims["n1"]
		s.Claim.Handover, s.At = h, time.Now()
		w.claims["n1"] = s
	})
}

var toN2 = cluster.TransferNotice{To: "n2", Trigger: "priority", Reason: "node n2 has priority 200", Operator: "anna"}

func TestApproveTimeoutNow_Cause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, "n1", "n2", "n3")
		c := w.start(Config{Fast: true})
		w.announces(toN2)
		if why := c.ApproveTimeoutNow(t.Context(), "n1", 5); why != "" {
			t.Errorf("refused: %s", why)
		}
		if f := c.Facts(6); f.Trigger != "priority" || f.Reason != "node n2 has priority 200" || f.Operator != "anna" {
			t.Errorf("facts: %+v", f)
		}
	})
}

// A TimeoutNow may have waited in a socket for as long as this process was stopped. The leader's claim of now counts.
func TestApproveTimeoutNow_RevokedTransfer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, "n1", "n2", "n3")
		c := w.start(Config{Fast: true})
		refused := func(name string, term uint64) {
			t.Helper()
			began := time.Now()
			if why := c.ApproveTimeoutNow(t.Context(), "n1", term); !strings.Contains(why,
				"does not announce a transfer to this node") {
				t.Errorf("%s: %q", name, why)
			}
			if took := time.Since(began); took > timeoutMin {
				t.Errorf("%s: it took %v", name, took)
			}
		}
		w.edit(func() { w.awake = true })
		refused("it never said so", 5)
		w.announces(cluster.TransferNotice{To: "n3", Trigger: "transfer"})
		refused("it transfers to another", 5)
		w.announces(toN2)
		refused("in another term", 4)
		time.Sleep(timeoutMin)
		if why := c.ApproveTimeoutNow(t.Context(), "n1", 5); why != "" {
			t.Errorf("it says so still: %s", why)
		}
		w.announces(toN2)
		time.Sleep(timeoutMin)
		w.edit(func() {
			given := w.claims["n1"]
			given.Claim.Handover = cluster.TransferNotice{}
			w.answer = func() map[cluster.NodeID]cluster.ReceivedClaim {
				return map[cluster.NodeID]cluster.ReceivedClaim{"n1": given}
			}
		})
		refused("it has given up since", 5)
		w.announces(toN2)
		w.c.watch.mu.Lock()
		w.c.watch.stopped = time.Now() // and what was in the sockets is read now
		w.c.watch.mu.Unlock()
		refused("this process had stopped", 5)
		w.edit(func() { w.awake = false })
		refused("it does not answer", 5)
	})
}

// TimeoutNow arrives while the monitor connection with the leader is down: the target waits for it.
func TestApproveTimeoutNow_WaitsForMonitorConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, "n1", "n2", "n3")
		c := w.start(Config{Fast: true})
		w.edit(func() {
			w.awake = true
			w.answer = func() map[cluster.NodeID]cluster.ReceivedClaim { return nil }
		})
		time.AfterFunc(timeoutMin/3, func() { w.report() }) // a claim of n3
		time.AfterFunc(timeoutMin/2, func() {
			w.announces(toN2)
			w.edit(func() { w.answer = nil })
			w.report()
		})
		start := time.Now()
		if why := c.ApproveTimeoutNow(t.Context(), "n1", 5); why != "" || time.Since(start) >= timeoutMin {
			t.Errorf("rejected after %v: %q", time.Since(start), why)
		}
	})
}

func TestAnnounce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := leaderView(t)
		c := w.start(Config{Fast: true})
		var announced cluster.TransferNotice
		w.edit(func() {
			w.polled = func(peers []cluster.NodeID) {
				if slices.Equal(peers, []cluster.NodeID{"n3"}) {
					announced = w.claim().Handover
				}
			}
		})
		h := cluster.TransferNotice{To: "n3", Trigger: "transfer", Reason: "why"}
		retract := c.AnnounceTransfer(t.Context(), h)
		if announced != h || w.claim().Handover != h {
			t.Errorf("the claim announced %+v", announced)
		}
		retract()
		if h := w.claim().Handover; h != (cluster.TransferNotice{}) {
			t.Errorf("it still announces the transfer: %+v", h)
		}
	})
}

func TestReclaimLeadership(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, "n1", "n2", "n3")
		c := w.start(Config{})
		w.cause = cluster.CauseTransferFailed
		if err := c.ReclaimLeadership(t.Context(), 5, cluster.TransferNotice{
			To: "n3", Trigger: "transfer",
			Reason: "upgrade", Operator: "anna",
		}); err != nil || len(w.started) != 1 {
			t.Fatalf("%v, started at %v", err, w.started)
		}
		if f := c.Facts(6); f.Trigger != "transfer" ||
			!strings.Contains(f.Reason, "node n3 did not take over") || f.Operator != "anna" {
			t.Errorf("facts: %+v", f)
		}
		w.edit(func() { w.status.Term = 7 })
		if err := c.ReclaimLeadership(t.Context(), 7,
			cluster.TransferNotice{To: "n3", Trigger: "transfer"}); err != nil ||
			c.Facts(8).Reason != "node n3 did not take over; node n2 starts a new election" {
			t.Errorf("without a reason: %v, %q", err, c.Facts(8).Reason)
		}
	})
}

// A drained node starts an election if the leader has been gone for long and later claims show no electable
// node.
func TestLastResort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestCluster(t, "n1", "n2", "n3")
		c := w.start(Config{})
		w.edit(func() {
			w.mine.Lifecycle, w.mine.Draining = cluster.Draining, true
			w.status.LeaderID = ""
			delete(w.claims, "n1")
		})
		n3 := func(change func(*cluster.ReceivedClaim)) {
			w.edit(func() { s := w.claims["n3"]; s.At = time.Now(); change(&s); w.claims["n3"] = s })
		}
		behind := func(s *cluster.ReceivedClaim) { s.Claim.LastLogIndex-- }
		const long = 6 * timeoutMin
		time.Sleep(long - time.Millisecond)
		if n3(behind); c.LastResort() {
			t.Error("it starts an election before the others have had their time")
		}
		time.Sleep(time.Millisecond)
		if !c.LastResort() {
			t.Error("it starts no election though no other node can win")
		}
		if n3(func(s *cluster.ReceivedClaim) { s.Claim.LastLogIndex++ }); c.LastResort() {
			t.Error("it starts an election though n3 can win")
		}
		if n3(func(s *cluster.ReceivedClaim) { s.Connected = false }); !c.LastResort() {
			t.Error("it waits for one that it has no connection with")
		}
		n3(func(*cluster.ReceivedClaim) {})
		time.Sleep(long)
		w.edit(func() { w.contact = time.Now().Add(-long) })
		if !c.LastResort() {
			t.Error("it uses a claim from before the leader was lost")
		}
		if w.edit(func() { w.status.LeaderID = "n3" }); c.LastResort() {
			t.Error("it starts an election though it knows a leader")
		}
	})
}
