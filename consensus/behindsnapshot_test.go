package consensus_test

import (
	"bytes"
	"testing"

	"northstar/cluster"
	"northstar/transport"
)

// TestEntriesBehindAnInstalledSnapshot: a leader restores a backup, and no other node gets it. The next leader's
// entries reach one follower only. The first leader leads again, and that follower installs the snapshot of the
// restore. If it kept the entries behind it, it would win the next election, and another node with these entries would
// go on after them, without the restore.
func TestEntriesBehindAnInstalledSnapshot(t *testing.T) {
	t.Parallel()
	c, _ := startCluster(t, 5)
	c.write("a", "backup")
	var backup bytes.Buffer
	x := c.onLeader("a backup", func(n *testNode) error {
		backup.Reset()
		return n.Backup(within(t, testTimeout), &backup)
	})
	c.write("a", "new")
	c.everywhere("a", "new")
	before := x.Status().LastLogIndex
	others := c.others(x)
	h, f := others[0], others[1]
	for _, n := range c.nodes {
		n.idle.Store(n != h)
	}
	x.drop(func(m transport.Message) bool { return m.Kind != "heartbeat" })
	done := make(chan error, 1)
	go func() { done <- x.Restore(within(t, testTimeout), &backup) }()
	eventually(t, "the restore has begun", func() bool { return x.has("a", "backup") })
	h.drop(func(m transport.Message) bool { return m.Kind == "append" && m.To != f.id })
	x.cut.Store(true)
	wantCode(t, <-done, cluster.CodeOutcomeUnknown)
	eventually(t, "one follower has the next leader's entries", func() bool {
		return h.elected() && f.Status().LastLogIndex >= before+2
	})

	x.cut.Store(false)
	eventually(t, "the first leader follows the next one", func() bool { return x.Status().LeaderID == h.id })
	h.cut.Store(true)
	f.cut.Store(true)
	h.idle.Store(true)
	x.idle.Store(false)
	x.drop(func(m transport.Message) bool {
		return m.To != f.id && m.Kind == "snapshot" || m.Kind == "append" && (m.To != f.id || f.has("a", "backup"))
	})
	eventually(t, "the first leader leads again", x.elected)
	f.cut.Store(false)
	eventually(t, "the follower installs the restore", func() bool { return f.has("a", "backup") })
	x.stop()
	f.idle.Store(false)
	h.drop(nil)
	h.cut.Store(false)
	eventually(t, "the follower leads", f.elected)
	c.write("b", "1")
	c.everywhere("b", "1")
	c.everywhere("a", "backup")
}
