package consensus

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"northstar/cluster"
	"northstar/consensus/raftnode"
)

// firstProbeEvery is how often a node that may start a cluster's first election asks the members that do not run yet.
const firstProbeEvery = 5 * time.Millisecond

// firstCandidate returns the member of initial-cluster that starts a new cluster's first election without waiting for
// a timer, "" if none does. members are the descriptions of those that are known, self's included. All members must be
// known: then each of them finds the same candidate. As in an election, the priority counts, and then the last in the
// order of the configuration. In any other case Raft's timers decide.
func firstCandidate(first []FirstMember, members map[cluster.NodeID]cluster.Peer) cluster.NodeID {
	var candidates []cluster.Peer
	for _, m := range first {
		p, known := members[m.ID]
		if !known || p.ClusterID != "" {
			return ""
		}
		if p.Eligible && p.Priority > 0 {
			candidates = append(candidates, p)
		}
	}
	if len(candidates) == 0 {
		return ""
	}
	return slices.MaxFunc(candidates, func(a, b cluster.Peer) int {
		return cmp.Or(cmp.Compare(a.Priority, b.Priority), strings.Compare(string(a.NodeID), string(b.NodeID)))
	}).NodeID
}

// startFirstElection starts the first election of a cluster that this process has bootstrapped, as soon as each member
// exchanges votes with this node. Another node that does the same is no danger: it ends a timer of raft.Raft early.
func (n *Node) startFirstElection(ctx context.Context, inst *raftnode.Instance) {
	ctx, cancel := context.WithTimeout(ctx, n.cfg.TimeoutMin) // then the timers decide
	defer cancel()
	members := map[cluster.NodeID]cluster.Peer{n.cfg.Self.NodeID: n.LocalPeer()}
	every(ctx, firstProbeEvery, func() (done bool) {
		n.meetVoters(ctx, members)
		switch firstCandidate(n.cfg.InitialCluster, members) {
		case "":
			return n.currentSoftState().Leader != ""
		case n.cfg.Self.NodeID:
			n.log.Debug("first start: all members run, and this node starts the first election")
			inst.EndFirstTimeout()
		}
		return true
	})
}

// meetVoters probes the members that are not in members yet, and adds those that exchange votes with this node.
func (n *Node) meetVoters(ctx context.Context, members map[cluster.NodeID]cluster.Peer) {
	missing := slices.DeleteFunc(slices.Clone(n.cfg.InitialCluster), func(m FirstMember) bool {
		_, known := members[m.ID]
		return known
	})
	var mu sync.Mutex // guards members from here on
	var asking sync.WaitGroup
	for _, m := range missing {
		asking.Go(func() {
			p, verdict, err := n.deps.Probe(ctx, m.RaftAddress)
			if err != nil || p.NodeID != m.ID || !verdict.Votes ||
				!cluster.Admit(n.LocalPeer(), p, n.Record(p.NodeID)).Votes {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			members[m.ID] = p
		})
	}
	asking.Wait()
}
