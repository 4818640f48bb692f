package consensus_test

import (
	"fmt"
	"testing"
	"time"

	"northstar/cluster"
)

// stuckTransfers is how often the tests below try: whether a transfer hangs depends on what the library's goroutine for
// the peer was just doing.
const stuckTransfers = 5

// beginStuckTransfer has a second transfer to a peer that lags wait inside the library of a cluster's leader.
func beginStuckTransfer(t *testing.T) (c *testCluster, old *testNode) {
	t.Helper()
	c, _ = startCluster(t, 3)
	var lagging *testNode
	old = c.onLeader("a write that one peer does not get", func(n *testNode) error {
		lagging = c.others(n)[0]
		eventually(t, "nobody lags", func() bool {
			return n.Status().Role != cluster.Leader || healthy(n, lagging.id) && healthy(n, c.others(n)[1].id)
		})
		// The peer answers no append in time, so that its replication is busy.
		n.slowTo.Store(lagging.id)
		err := n.put("b", "1")
		if err != nil {
			n.slowTo.Store(cluster.NodeID(""))
		}
		return err
	})
	for range 3 { // each after the library has given the one before up
		old.LibraryTransfer(string(lagging.id), lagging.addr)
		time.Sleep(timeoutMin + timeoutMin/4) // there is no event to wait for
	}
	old.LibraryTransfer(string(lagging.id), lagging.addr)
	return c, old
}

// untilStuck runs a test until the library got stuck in it, and its Raft node was rebuilt.
func untilStuck(t *testing.T, test func(t *testing.T) (rebuilt bool)) {
	t.Helper()
	for try := range stuckTransfers {
		rebuilt := false
		if !t.Run(fmt.Sprint(try+1), func(t *testing.T) { rebuilt = test(t) }) || rebuilt {
			return
		}
	}
	t.Errorf("nothing was rebuilt: the library did not get stuck in %d tries, or nobody noticed", stuckTransfers)
}

// TestStuckTransfer reproduces the flag that the library never clears. A second transfer to a lagging peer waits
// inside the library, and leadership is lost meanwhile. From then on the library refuses every write of that process,
// even when it leads again. The watchdog must notice and rebuild the Raft node.
func TestStuckTransfer(t *testing.T) {
	t.Parallel()
	untilStuck(t, func(t *testing.T) bool {
		c, old := beginStuckTransfer(t)
		before := old.Instance()
		old.cut.Store(true)
		eventually(t, "it loses leadership", func() bool { return old.Status().Role != cluster.Leader })
		next := c.leader()
		old.slowTo.Store(cluster.NodeID(""))
		old.cut.Store(false)
		eventually(t, "it leads again, or was rebuilt", func() bool {
			if healthy(next, old.id) {
				_ = next.TransferTo(within(t, testTimeout), to(old.id))
			}
			return old.Status().Role == cluster.Leader || old.Instance() != before
		})
		c.write("c", "1")
		c.everywhere("c", "1")
		return old.Instance() != before
	})
}

// TestStopWhileAMessageHangs stops a leader one of whose messages gets no answer. The library closes its transport only
// after it has waited for that.
func TestStopWhileAMessageHangs(t *testing.T) {
	t.Parallel()
	c, _ := startCluster(t, 3)
	c.write("a", "1")
	leader := c.onLeader("a write that one peer does not get", func(n *testNode) error {
		n.slowTo.Store(c.others(n)[0].id)
		return n.put("b", "1")
	})
	start := time.Now()
	leader.stop()
	if took := time.Since(start); took > 2*timeoutMax {
		t.Errorf("it took %v", took)
	}
}
