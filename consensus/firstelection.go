package consensus

import (
	"context"
	"slices"
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
	voting := every(ctx, firstElectionPoll, func() bool { return n.majorityVotes(ctx) })
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

// majorityVotes probes the other members of initial-cluster, and reports whether a majority of all exchanges votes with
// this node, which counts. It does not wait for the others then.
func (n *Node) majorityVotes(ctx context.Context) bool {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	others := slices.DeleteFunc(slices.Clone(n.cfg.InitialCluster), func(m FirstMember) bool {
		return m.ID == n.cfg.Self.NodeID
	})
	votes := make(chan bool, len(others))
	for _, m := range others {
		n.jobs.Go(func() { // ends with ctx
			_, verdict, err := n.deps.Probe(ctx, m.RaftAddress)
			votes <- err == nil && verdict.Votes
		})
	}
	for voters := 1; voters < cluster.Quorum(len(n.cfg.InitialCluster)); {
		if len(others) == 0 {
			return false
		}
		others = others[1:]
		if <-votes {
			voters++
		}
	}
	return true
}
