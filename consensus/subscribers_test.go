package consensus_test

import (
	"fmt"
	"testing"

	"northstar/cluster"
)

// A follower that has subscribed applies a write without waiting for the next one, or for the leader's periodic commit
// index: before a follower that has not, also on a slow machine.
func TestSubscribe(t *testing.T) {
	t.Parallel()
	c, leader := startCalmCluster(t, 3)
	subscribed, other := c.others(leader)[0], c.others(leader)[1]
	const most, want = 300, 15 // rounds, and in how many more than half of them the subscribed one is first
	first, rounds := 0, 0
	for ; rounds < most && 2*first-rounds < 2*want; rounds++ {
		if err := leader.Subscribe(subscribed.id); err != nil {
			t.Fatal(err)
		}
		c.write("counter", fmt.Sprint(rounds))
		index := leader.Applied()
		if err := subscribed.AwaitApplied(within(t, testTimeout), index); err != nil {
			t.Fatal(err)
		}
		if other.Applied() < index {
			first++
		}
	}
	// Without the commit index each follower waits for 50 to 100 ms of its own: either of them is first, in about half
	// of the rounds. On a busy machine the other one may apply a write before this test looks.
	if 2*first-rounds < 2*want {
		t.Errorf("the subscribed follower was first with %d of %d writes", first, rounds)
	}
	wantCode(t, leader.Subscribe("stranger"), cluster.CodeBadRequest)
	wantCode(t, leader.Subscribe(leader.id), cluster.CodeBadRequest)
	for _, n := range c.others(leader) {
		wantCode(t, n.Subscribe(leader.id), cluster.CodeNoLeader)
	}
}
