package consensus_test

import (
	"fmt"
	"testing"

	"northstar/consensus"
)

// TestRestartedNodeCompactsItsLog: the library first looks whether a snapshot is due when snapshot.interval has passed
// since the start. A node that is started again more often would read a longer log each time.
func TestRestartedNodeCompactsItsLog(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1)
	c.tune = func(cfg *consensus.Config) {
		cfg.SnapshotThreshold, cfg.SnapshotInterval = 20, 2*testTimeout // longer than this waits
	}
	n := c.nodes["n1"]
	n.start()
	c.elect()
	for i := range 30 {
		c.write(fmt.Sprint("k", i), "1")
	}
	n.restart()
	eventually(t, "a snapshot soon after the start", func() bool { return n.snapshots.Load() > 0 })
}
