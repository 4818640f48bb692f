package consensus

import (
	"context"
	"sync"
	"time"

	"northstar/cluster"
	"northstar/consensus/raftnode"
)

// probeInterval is how often a node without a leader probes the others.
const probeInterval = time.Second

// probePeersLoop probes the other nodes while no leader is known. A node that starts no elections, because it is a
// non-voter or was removed, would otherwise hear from no peer, and not learn that it is refused.
//
// The first probe comes when Raft runs, and this node takes part in no election before it. Members of an old generation
// that start together are a quorum of their own: they must first learn that there is a newer one.
func (n *Node) probePeersLoop(ctx context.Context) {
	if n.ident.get().ClusterID != "" {
		select {
		case <-n.running:
		case <-ctx.Done():
			return
		}
		if inst := n.inst.Load(); inst != nil {
			n.probePeers(ctx, inst)
		}
	}
	n.peersProbed.Store(true)
	tick := time.NewTicker(probeInterval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		if inst := n.inst.Load(); inst != nil && n.currentSoftState().Leader == "" {
			n.probePeers(ctx, inst)
			n.rejoinRecovered(ctx)
		}
	}
}

// minProbeTimeout is what a probe has at least.
const minProbeTimeout = 500 * time.Millisecond

// probeTimeout bounds a probe, which takes three round trips with TLS. Distant nodes have longer election timeouts.
func (c *Config) probeTimeout() time.Duration { return max(minProbeTimeout, 2*c.TimeoutMin) }

// probe is Deps.Probe within probeTimeout.
func (n *Node) probe(ctx context.Context, addr string) (cluster.Peer, cluster.Admission, error) {
	ctx, cancel := context.WithTimeout(ctx, n.cfg.probeTimeout())
	defer cancel()
	return n.deps.Probe(ctx, addr)
}

// probePeers sends hellos to all others, for probeTimeout at most. OnHello, OnAdmitted and OnRefused get the responses.
func (n *Node) probePeers(ctx context.Context, inst *raftnode.Instance) {
	servers := inst.Servers()
	if len(servers) == 0 {
		servers = firstServers(n.cfg.InitialCluster)
	}
	var asking sync.WaitGroup
	for _, s := range servers {
		if s.ID != n.cfg.Self.NodeID {
			asking.Go(func() { _, _, _ = n.probe(ctx, s.Address) })
		}
	}
	asking.Wait()
}

// appliedPollInterval is how often a node that has not caught up is polled.
const appliedPollInterval = 10 * time.Millisecond

// AwaitAppliedEverywhere returns when every other node that responds has applied what this node has applied: a follower
// learns the commit index up to twice commitTimeout later, and a setting that was confirmed to an operator must be
// known to the nodes that survive the leader. It waits for twice timeout-max at most, and not for nodes that do not
// respond. One that acknowledges appends and answers no poll yet is waited for: it may lead next.
func (n *Node) AwaitAppliedEverywhere(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 2*n.cfg.TimeoutMax)
	defer cancel()
	index := n.fsm.Applied()
	var asking sync.WaitGroup
	for _, id := range n.otherServers() {
		asking.Go(func() { n.awaitApplied(ctx, id, index) })
	}
	asking.Wait()
}

// awaitApplied waits until a node reports that it has applied index, or answers neither polls nor appends.
func (n *Node) awaitApplied(ctx context.Context, id cluster.NodeID, index uint64) {
	every(ctx, appliedPollInterval, func() bool {
		seen, answered := n.deps.Poll(ctx, []cluster.NodeID{id})[id]
		return answered && seen.Claim.AppliedIndex >= index || !answered && !n.inContact(id)
	})
}

// every calls f now, and then every d until it returns true. It returns false when ctx ends first.
func every(ctx context.Context, d time.Duration, f func() (done bool)) bool {
	return everyOr(ctx, d, nil, f)
}

// everyOr is every that also calls f when it receives from wake.
func everyOr(ctx context.Context, d time.Duration, wake <-chan struct{}, f func() (done bool)) bool {
	tick := time.NewTicker(d)
	defer tick.Stop()
	for !f() {
		select {
		case <-tick.C:
		case <-wake:
		case <-ctx.Done():
			return false
		}
	}
	return true
}
