package leadercall

import (
	"context"
	"sync/atomic"
	"time"
)

// subscribeInterval is how often a node repeats its subscription to the leader's commit index. It lasts longer.
const subscribeInterval = time.Second

// subscription is why this node wants to know the commit index immediately.
type subscription struct {
	wake   chan struct{} // capacity 1: a client has read this node's state
	readAt atomic.Int64  // when it did so last, in nanoseconds after begun
	begun  time.Time
}

func newSubscription() *subscription {
	return &subscription{wake: make(chan struct{}, 1), begun: time.Now()}
}

// NoteLocalRead tells that a client has read this node's state without asking the leader. For a short time the leader
// then sends this node each commit index immediately, as it does while clients here wait for changes.
func (c *Calls) NoteLocalRead() {
	c.subscribing.readAt.Store(int64(time.Since(c.subscribing.begun)))
	select {
	case c.subscribing.wake <- struct{}{}:
	default:
	}
}

// subscribe subscribes to the leader's commit index while clients wait for changes of this node's state, or have just
// read it. It ends with ctx.
func (c *Calls) subscribe(ctx context.Context) {
	_, watched := c.Consensus.Watched()
	for ctx.Err() == nil {
		select {
		case <-watched:
		case <-c.subscribing.wake:
		case <-ctx.Done():
		}
		for ctx.Err() == nil && c.wantsCommitIndex() {
			leader := c.Forward.Leader.Current()
			if leader.ID != "" && leader.ID != c.Forward.Self {
				asking, cancel := context.WithTimeout(ctx, 2*c.TimeoutMax)
				stop := context.AfterFunc(leader.Changed, cancel)
				_, _ = c.ask(asking, leader.ID, subscribe, message{}) // repeated anyway
				stop()
				cancel()
			}
			wait := time.NewTimer(subscribeInterval)
			select {
			case <-leader.Changed.Done():
			case <-wait.C:
			case <-ctx.Done():
			}
			wait.Stop()
		}
	}
}

// wantsCommitIndex reports whether a client waits for changes here, or has just read.
func (c *Calls) wantsCommitIndex() bool {
	watched, _ := c.Consensus.Watched()
	return watched || time.Since(c.subscribing.begun)-time.Duration(c.subscribing.readAt.Load()) < subscribeInterval
}
