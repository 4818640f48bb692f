package consensus

import (
	"context"
	"sync"
	"time"

	"northstar/cluster"
)

// appliedPollInterval is how often a node is asked again that has not caught up.
const appliedPollInterval = 10 * time.Millisecond

// AwaitAppliedEverywhere returns once every other node that answers has applied what this one
// has applied. A follower learns up to twice commitTimeout after the leader what
// is committed, and until then acts on what it knew before: a setting that an
// operator was told of must be known to those who survive the leader. Nodes that
// do not answer are not waited for, nobody for longer than twice timeout-max. Who
// answers appends and no question yet, as in the first moments of a process, is:
// it may be the next to lead.
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

// awaitApplied waits until a node says that it has applied index, or answers
// neither this question nor appends.
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
