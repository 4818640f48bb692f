package consensus_test

import (
	"testing"

	"northstar/cluster"
	"northstar/transport"
)

// TestEntriesBehindAnInstalledSnapshot: a leader restores a backup, and no other node gets it. The next leader's
// entries reach one follower only. The first leader leads again, and that follower installs the snapshot of the
// restore. If it kept the entries behind it, it would win the next election, and another node with these entries would
// go on after them, without the restore. A kill after their deletion changes nothing.
func TestEntriesBehindAnInstalledSnapshot(t *testing.T) {
	t.Parallel()
	t.Run("no kill", func(t *testing.T) { t.Parallel(); testEntriesBehindASnapshot(t, false) })
	t.Run("killed", func(t *testing.T) { t.Parallel(); testEntriesBehindASnapshot(t, true) })
}

func testEntriesBehindASnapshot(t *testing.T, killed bool) {
	c, x, done := startRestore(t, 5)
	others := c.others(x)
	h, f := others[0], others[1]
	var disk *mortalDisk
	if killed {
		disk = f.startMortal(stepTruncate, stepTruncate)
	}
	before := f.Status().LastLogIndex
	for _, n := range c.nodes {
		n.idle.Store(n != h)
	}
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
	installs := f.installs.Load()
	x.drop(func(m transport.Message) bool {
		return m.To != f.id && m.Kind == "snapshot" ||
			m.Kind == "append" && (m.To != f.id || f.installs.Load() > installs)
	})
	eventually(t, "the first leader leads again", x.elected)
	f.cut.Store(false)
	if killed {
		eventually(t, "the follower is killed when it has deleted the entries", disk.killed)
		t.Logf("it ended with %v", f.wait(true))
		f.start()
	}
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

// TestAbandonedRestoreIsCommittedLater: a follower undoes a restore, because it hears from a leader without it. Then
// the first leader leads again. The follower installs the same restore, and acknowledges what follows. A restart keeps
// both.
func TestAbandonedRestoreIsCommittedLater(t *testing.T) {
	t.Parallel()
	c, x, done := startRestore(t, 5)
	others := c.others(x)
	h, f, b := others[0], others[1], others[2]
	for _, n := range c.nodes {
		n.idle.Store(true)
	}
	x.drop(func(m transport.Message) bool { return m.Kind != "heartbeat" && m.To != f.id })
	eventually(t, "a follower has the restore", func() bool { return f.has("a", "backup") })
	h.idle.Store(false)
	h.drop(func(m transport.Message) bool { return m.Kind == "append" && m.To != f.id })
	x.cut.Store(true)
	wantCode(t, <-done, cluster.CodeOutcomeUnknown)
	eventually(t, "the follower undoes it", func() bool { return h.elected() && f.has("a", "new") })
	x.cut.Store(false)
	eventually(t, "the first leader follows the next one", func() bool { return x.Status().LeaderID == h.id })
	h.cut.Store(true)
	h.idle.Store(true)
	x.idle.Store(false)
	x.drop(func(m transport.Message) bool { return m.To == b.id && (m.Kind == "append" || m.Kind == "snapshot") })
	eventually(t, "the first leader leads again", x.elected)
	c.write("b", "1")
	eventually(t, "the follower has what was written", func() bool { return f.has("a", "backup") && f.has("b", "1") })
	last := f.Status().LastLogIndex
	x.cut.Store(true)
	f.idle.Store(false)
	f.restart()
	eventually(t, "the follower runs", func() bool { return f.Status().LastLogIndex > 0 })
	if now := f.Status().LastLogIndex; now < last {
		t.Errorf("after a restart its log ends at %d, and ended at %d", now, last)
	}
	x.stop()
	h.drop(nil)
	h.cut.Store(false)
	c.write("c", "1")
	c.everywhere("b", "1")
	c.everywhere("a", "backup")
}
