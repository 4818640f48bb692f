package consensus_test

import (
	"testing"

	"northstar/cluster"
	"northstar/transport"
)

// TestWritesGoWithTheLeaderStart has a leader that cannot commit anything yet: the
// writes that wait for it are in its log already, and none is acknowledged before
// its leader-start is applied.
func TestWritesGoWithTheLeaderStart(t *testing.T) {
	c, old := startCluster(t, 3)
	c.write("a", "1")
	c.everywhere("a", "1")
	next, other := c.others(old)[0], c.others(old)[1]
	other.idle.Store(true)
	next.drop(func(m transport.Message) bool { return m.Kind == "append" })
	old.stop()
	eventually(t, "the next one leads", func() bool { return next.Status().Role == cluster.Leader })
	acked := make(chan error, 1)
	go func() { acked <- next.put("b", "2") }()
	eventually(t, "Raft's own entry, the leader-start and the write are in its log", func() bool { return next.Riding() })
	select {
	case err := <-acked:
		t.Errorf("answered before anything of this reign was committed: %v", err)
	default:
	}
	if next.has("b", "2") {
		t.Error("applied before anything of this reign was committed")
	}
	next.drop(nil)
	if err := <-acked; err != nil {
		t.Fatal(err)
	}
	if term, node := next.View().LeaderStart(); node != next.id || term != next.Status().Term {
		t.Errorf("acknowledged, and the last leader-start is that of %s in term %d", node, term)
	}
	c.write("c", "3")
}
