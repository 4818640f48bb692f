package consensus

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"northstar/cluster"
	"northstar/consensus/raftnode"
)

// firstElectionPoll is how often a node that stands first asks whether enough others would vote.
const firstElectionPoll = 5 * time.Millisecond

// bestPlaced reports whether self is to lead the new cluster: of the members that have answered, and itself, it has the
// highest priority, and the lowest ID of those. It need not wait for Raft's timer then, which no other member does. If
// several think so, or the best one does not start, the timers decide.
func (in *startInputs) bestPlaced(self cluster.Peer) bool {
	if self.Priority == 0 || !self.Eligible {
		return false
	}
	for id, a := range in.answers {
		better := a.peer.Priority > self.Priority || a.peer.Priority == self.Priority && id < self.NodeID
		if better && a.peer.Eligible {
			return false
		}
	}
	return true
}

// standFirst starts the first election of a new cluster when a majority of its members exchanges votes with this node.
// After TimeoutMin it leaves that to Raft's timers. With leases no node votes that early.
func (n *Node) standFirst(ctx context.Context, inst *raftnode.Instance) {
	if !n.standsFirst || n.lease != nil || n.deps.StartElection == nil {
		return
	}
	term := inst.CurrentTerm()
	ctx, cancel := context.WithTimeout(ctx, n.cfg.TimeoutMin)
	defer cancel()
	voting := every(ctx, firstElectionPoll, func() bool {
		return n.exchangeVotes(ctx) >= cluster.Quorum(len(n.cfg.InitialCluster))
	})
	if !voting || inst.CurrentTerm() != term || inst.Leader() != "" {
		return
	}
	n.mu.Lock()
	n.elections.standsFirst = true
	n.mu.Unlock()
	if err := n.deps.StartElection(ctx, term); err != nil {
		n.log.Debug("first election not started", "error", err)
	}
}

// exchangeVotes probes the other members of initial-cluster, and returns how many of all exchange votes with this node,
// which counts.
func (n *Node) exchangeVotes(ctx context.Context) int {
	var voters atomic.Int64
	var asking sync.WaitGroup
	for _, m := range n.cfg.InitialCluster {
		if m.ID == n.cfg.Self.NodeID {
			continue
		}
		asking.Go(func() {
			if _, verdict, err := n.deps.Probe(ctx, m.RaftAddress); err == nil && verdict.Votes {
				voters.Add(1)
			}
		})
	}
	asking.Wait()
	return int(voters.Load()) + 1
}
