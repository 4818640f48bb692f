package consensus

import (
	"context"
	"sync"
	"time"

	"northstar/cluster"
)

// appliedPollInterval is how often a node that has not caught up is polled.
const appliedPollInterval = 10 * time.Millisecond

// AwaitAppliedEverywhere returns when every other node that responds has applied what this node has applied. A follower
// learns the commit index up to twice commitTimeout after the leader. Until then it acts on old values. A setting that
// was confirmed to an operator must be known to the nodes that survive the leader. Nodes that do not respond are not
// waited for, and the whole wait ends after twice timeout-max. A node that acknowledges appends and answers no poll, as
// in the first moments of a process, is waited for: it may lead next.
func (n *Node) AwaitAppliedEverywhere(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 2*n.cfg.TimeoutMax)
	defer cancel()
	index := n.fsm.Applied()
	var asking sync.WaitGroup
	for _, id := range n.serverIDs() {
		if id != n.cfg.Self.NodeID {
			asking.Go(func() { n.awaitApplied(ctx, id, index) })
		}
	}
	asking.Wait()
}

// awaitApplied waits until a node reports that it has applied index, or answers neither polls nor appends.
func (n *Node) awaitApplied(ctx context.Context, id cluster.NodeID, index uint64) {
	tick := time.NewTicker(appliedPollInterval)
	defer tick.Stop()
	for {
		seen, answered := n.deps.Poll(ctx, []cluster.NodeID{id})[id]
		if answered && seen.Claim.AppliedIndex >= index || !answered && !n.inContact(id) {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}
