package consensus_test

import (
	"fmt"
	"testing"
	"time"

	"northstar/cluster"
)

// A follower that has subscribed applies a write without waiting for the next one, or for the leader's periodic commit
// index.
func TestSubscribe(t *testing.T) {
	t.Parallel()
	c, leader := startCalmCluster(t, 3)
	const rounds = 40
	waited := time.Duration(0)
	for i := range rounds {
		for _, n := range c.others(leader) {
			if err := leader.Subscribe(n.id); err != nil {
				t.Fatal(err)
			}
		}
		c.write("counter", fmt.Sprint(i))
		start := time.Now()
		for _, n := range c.others(leader) {
			if err := n.AwaitApplied(within(t, testTimeout), leader.Applied()); err != nil {
				t.Fatal(err)
			}
		}
		waited += time.Since(start)
	}
	// Without the commit index a follower waits for 50 to 100 ms, or for the next write.
	if average := waited / rounds; average > 25*time.Millisecond {
		t.Errorf("a write reached the followers after %v on average", average)
	}
	wantCode(t, leader.Subscribe("stranger"), cluster.CodeBadRequest)
	wantCode(t, leader.Subscribe(leader.id), cluster.CodeBadRequest)
	for _, n := range c.others(leader) {
		wantCode(t, n.Subscribe(leader.id), cluster.CodeNoLeader)
	}
}
