package consensus_test

import (
	"testing"

	"northstar/cluster"
	"northstar/transport"
)

// TestWriteAtAReplacedLeader: the Raft node of a leader is replaced. Its leadership has ended, and the library still
// leads, because a write is in flight. Another write is queued meanwhile, and no leadership follows on this node. That
// write must not wait for its deadline.
func TestWriteAtAReplacedLeader(t *testing.T) {
	t.Parallel()
	c, _ := startCluster(t, 3)
	c.write("a", "1")
	eventually(t, "a write was queued", func() (queued bool) {
		leader := c.leader()
		leader.drop(func(m transport.Message) bool { return m.Kind == "append" })
		defer leader.drop(nil)
		flying := make(chan error, 1)
		go func() { flying <- leader.put("a", "2") }()
		eventually(t, "a write in flight, or none", func() bool { return leader.HasWrites() || len(flying) > 0 })
		leader.RestartRaft("the test")
		eventually(t, "its leadership has ended", func() bool { return leader.Status().LeaderSince.IsZero() })
		result := make(chan error, 1)
		go func() {
			_, err := leader.Propose(within(t, 20*timeoutMax), put("a", "3"))
			result <- err
		}()
		eventually(t, "a write is queued, or refused", func() bool { return leader.QueuedWrites() > 0 || len(result) > 0 })
		queued = len(result) == 0
		leader.cut.Store(true) // it must not lead again
		defer leader.cut.Store(false)
		wantCode(t, <-result, cluster.CodeNoLeader)
		<-flying
		return queued
	})
}
