package consensus_test

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"northstar/cluster"
)

// TestMayWrite: the further conditions for writes are checked when a write arrives, and again when it is submitted to
// Raft. They may change in between. This package's own commands are not checked.
func TestMayWrite(t *testing.T) {
	t.Parallel()
	c, _ := startCluster(t, 3)
	c.write("a", "1")
	l := c.whileLeading("a write that is refused when it is submitted", func(l *testNode) error {
		var asked atomic.Int64
		refuse := func() error {
			if asked.Add(1) > 1 {
				return errors.New("the lock is another's")
			}
			return nil
		}
		l.mayWrite.Store(&refuse)
		defer l.mayWrite.Store(nil)
		err := l.put("a", "2")
		if !cluster.IsCode(err, cluster.CodeNoLeader) || !strings.Contains(err.Error(), "the lock is another's") ||
			l.has("a", "2") {
			return fmt.Errorf("it was answered with %w", err)
		}
		return nil
	})
	never := func() error { return errors.New("never") }
	for _, n := range c.nodes {
		n.mayWrite.Store(&never)
	}
	l.stop()
	next := c.leader() // its leader-start is applied
	if err := next.put("a", "3"); !cluster.IsCode(err, cluster.CodeNoLeader) {
		t.Error(err)
	}
	for _, n := range c.nodes {
		n.mayWrite.Store(nil)
	}
	c.write("a", "3")
}

// TestMayWrite_Restore: a restore is a write. The further conditions are checked before writes are paused for it, and
// again before it is installed.
func TestMayWrite_Restore(t *testing.T) {
	t.Parallel()
	c, leader := startCalmCluster(t, 3)
	c.write("a", "backup")
	var backup bytes.Buffer
	if err := leader.Backup(within(t, testTimeout), &backup); err != nil {
		t.Fatal(err)
	}
	c.write("a", "new")
	refused := func(when string, err error) {
		t.Helper()
		if !cluster.IsCode(err, cluster.CodeNoLeader) || !strings.Contains(err.Error(), "the lock is another's") {
			t.Errorf("a restore %s: %v", when, err)
		}
	}
	never := func() error { return errors.New("the lock is another's") }
	leader.mayWrite.Store(&never)
	merged := false
	refused("from the start", leader.RestoreWith(within(t, testTimeout), bytes.NewReader(backup.Bytes()), func() {
		merged = true
	}))
	if merged {
		t.Error("it was merged first, while writes were paused")
	}
	leader.mayWrite.Store(nil)
	refused("since the merge", leader.RestoreWith(within(t, testTimeout), bytes.NewReader(backup.Bytes()), func() {
		leader.mayWrite.Store(&never)
	}))
	leader.mayWrite.Store(nil)
	c.write("b", "1")
	c.everywhere("a", "new")
}
