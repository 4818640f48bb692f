package consensus_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/hashicorp/raft"

	"northstar/cluster"
)

// beginStuckTransfer has a second transfer to a peer that lags wait inside the library of a cluster's leader.
func beginStuckTransfer(t *testing.T) (c *testCluster, old *testNode) {
	t.Helper()
	c, _ = startCluster(t, 3)
	old = c.onLeader("two transfers to a peer that takes no append", func(n *testNode) error {
		lagging := c.others(n)[0]
		eventually(t, "nobody lags", func() bool {
			return n.Status().Role != cluster.Leader || healthy(n, lagging.id) && healthy(n, c.others(n)[1].id)
		})
		n.hangNext.Store(lagging.id)
		err := n.put("b", "1")
		if err == nil {
			eventually(t, "an append to it hangs", func() bool {
				return n.hangNext.Load() != lagging.id || n.Status().Role != cluster.Leader
			})
			// The first leaves a request in the library's channel, which holds one. The second waits for its place.
			if err = transferTimesOut(t, n, lagging); err == nil {
				err = transferTimesOut(t, n, lagging)
			}
		}
		if err != nil {
			t.Log(err)
			n.hangNext.Store(cluster.NodeID(""))
		}
		return err
	})
	return c, old
}

// transferTimesOut asks the library for a transfer once the one before has ended, and requires that this one times out.
func transferTimesOut(t *testing.T, leader, target *testNode) (err error) {
	t.Helper()
	eventually(t, "the transfer before has ended", func() bool {
		err = leader.LibraryTransfer(string(target.id), target.addr)
		return !errors.Is(err, raft.ErrLeadershipTransferInProgress)
	})
	switch {
	case err == nil:
		return fmt.Errorf("leadership was lost in a transfer to %s", target.id)
	case err.Error() != "leadership transfer timeout":
		return fmt.Errorf("a transfer to %s: %w", target.id, err)
	}
	return nil
}

// TestStuckTransfer reproduces the flag that the library never clears. A second transfer to a lagging peer waits
// inside the library, and leadership is lost meanwhile. From then on the library refuses every write of that process,
// even when it leads again. The watchdog must notice and rebuild the Raft node.
func TestStuckTransfer(t *testing.T) {
	t.Parallel()
	c, old := beginStuckTransfer(t)
	before := old.Instance()
	old.cut.Store(true)
	eventually(t, "it loses leadership", func() bool { return old.Status().Role != cluster.Leader })
	c.leader()
	old.cut.Store(false)
	eventually(t, "it is rebuilt when it leads again", func() bool {
		if l := c.leader(); l != old && healthy(l, old.id) {
			_ = l.TransferTo(within(t, testTimeout), to(old.id))
		}
		return old.Instance() != before
	})
	c.write("c", "1")
	c.everywhere("c", "1")
}

// TestStopWhileAMessageHangs stops a leader one of whose messages gets no answer. The library closes its transport only
// after it has waited for that.
func TestStopWhileAMessageHangs(t *testing.T) {
	t.Parallel()
	c, _ := startCluster(t, 3)
	c.write("a", "1")
	leader := c.onLeader("a write that one peer does not get", func(n *testNode) error {
		n.hangNext.Store(c.others(n)[0].id)
		return n.put("b", "1")
	})
	eventually(t, "the message hangs", func() bool { return leader.hangNext.Load() == cluster.NodeID("") })
	leader.stop() // the message hangs for longer than this waits
}
