package consensus_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"northstar/cluster"
	"northstar/transport"
)

// countCommitMessages counts the messages by which a leader sends a follower nothing but its commit index, and those to
// all others.
func countCommitMessages(leader, follower *testNode, to, toOthers *atomic.Int64) {
	leader.drop(func(m transport.Message) bool {
		switch {
		case m.Kind != "append" || m.Size > 0:
		case m.To == follower.id:
			to.Add(1)
		default:
			toOthers.Add(1)
		}
		return false
	})
}

// A follower that has subscribed gets the commit index of a write immediately: it waits neither for the next write nor
// for the leader's periodic commit index, which goes to all followers alike.
func TestSubscribe(t *testing.T) {
	t.Parallel()
	c, leader := startCalmCluster(t, 3)
	subscribed, other := c.others(leader)[0], c.others(leader)[1]
	var toSubscribed, toOther atomic.Int64
	countCommitMessages(leader, subscribed, &toSubscribed, &toOther)
	const rounds = 100
	sent := int64(0) // to the subscribed one, and not to the other
	for i := range rounds {
		before := toSubscribed.Load() - toOther.Load()
		if err := leader.Subscribe(subscribed.id); err != nil {
			t.Fatal(err)
		}
		c.write("counter", fmt.Sprint(i))
		index := leader.Applied()
		ctx, cancel := context.WithCancel(within(t, testTimeout))
		applied := make(chan error, 2)
		for _, n := range []*testNode{subscribed, other} {
			go func() { applied <- n.AwaitApplied(ctx, index) }()
		}
		if err := <-applied; err != nil { // by either of them
			t.Fatal(err)
		}
		sent += toSubscribed.Load() - toOther.Load() - before
		cancel()
		if err := subscribed.AwaitApplied(within(t, testTimeout), index); err != nil {
			t.Fatal(err)
		}
	}
	// Without a subscription, the two get as many. On a busy machine, a periodic message may be the first one.
	if sent < rounds/4 {
		t.Errorf("with %d writes, the subscribed follower got %d messages more than the other", rounds, sent)
	}
	wantCode(t, leader.Subscribe("stranger"), cluster.CodeBadRequest)
	wantCode(t, leader.Subscribe(leader.id), cluster.CodeBadRequest)
	for _, n := range c.others(leader) {
		wantCode(t, n.Subscribe(leader.id), cluster.CodeNoLeader)
	}
}
