package consensus_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"northstar/cluster"
	"northstar/consensus"
	"northstar/transport"
)

// TestStepDown: a leader that must step down immediately refuses what only a leader does. It raises no term and sends
// no TimeoutNow. Nothing that it acknowledged is lost.
func TestStepDown(t *testing.T) {
	t.Parallel()
	c, leader := startClusterAt(t, 3, 3) // no node may lose leadership for another reason than this test
	c.write("before", "1")
	var sent atomic.Bool
	leader.drop(func(m transport.Message) bool {
		if m.Kind == "timeout_now" {
			sent.Store(true)
		}
		return false
	})
	term := leader.Status().Term
	leader.StepDown(term-1, "an earlier term")
	if err := leader.put("still", "1"); err != nil {
		t.Fatalf("deposed for an earlier term: %v", err)
	}

	var writers sync.WaitGroup
	acked := make(chan string, 10000)
	for w := range 4 {
		writers.Go(func() {
			for i := 0; ; i++ {
				key := fmt.Sprintf("w%d-%d", w, i)
				if err := leader.put(key, "1"); err != nil {
					return
				}
				acked <- key
			}
		})
	}
	eventually(t, "writes are under way", func() bool { return len(acked) > 20 })
	leader.StepDown(term, "a test")
	if err := leader.put("refused", "1"); !cluster.IsCode(err, cluster.CodeNoLeader) {
		t.Errorf("a write after it: %v", err)
	}
	if err := leader.ReadBarrier(context.Background()); !cluster.IsCode(err, cluster.CodeNoLeader) {
		t.Errorf("a read after it: %v", err)
	}
	if st := leader.Status(); st.Term != term {
		t.Errorf("term %d, it was %d", st.Term, term)
	}
	writers.Wait()
	close(acked)
	eventually(t, "another leadership begins", func() bool {
		for _, n := range c.nodes {
			if st := n.Status(); st.Role == cluster.Leader && st.Term > term && !st.LeaderSince.IsZero() {
				return true
			}
		}
		return false
	})
	c.write("after", "1")
	c.everywhere("after", "1")
	c.everywhere("before", "1")
	for key := range acked {
		c.everywhere(key, "1")
	}
	if sent.Load() {
		t.Error("it sent TimeoutNow to another node")
	}
	if leader.StepDownPending() {
		t.Error("its Raft node was not replaced")
	}
}

// TestStepDownEndsLeadership: leader tasks end, with the reason that they know.
func TestStepDownEndsLeadership(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1)
	n := c.nodes["n1"]
	ended := make(chan error, 10)
	n.tasks = append(n.tasks, func(ctx context.Context, _ uint64) {
		<-ctx.Done()
		ended <- context.Cause(ctx)
	})
	n.start()
	leader := c.elect()
	first := leader.Status().Term
	leader.StepDown(first, "a test")
	if err := <-ended; !errors.Is(err, consensus.ErrLeadershipLost) {
		t.Errorf("tasks ended because of %v", err)
	}
	eventually(t, "it leads in a later term", func() bool {
		return leader.Status().Term > first &&
			leader.put("k", "v") == nil
	})
}
