package sim

import (
	"cmp"
	"slices"
	"time"

	"northstar/cluster"
)

// liveNode is a node that runs, with the term and index of its last entry.
type liveNode struct {
	term, index         uint64
	voteRequestsDropped bool // its requests for votes do not arrive
}

// electable reports whether a running node can win an election among so many voters. Its
// requests must reach a majority of the voters, none of which has a newer log.
func electable(voters int, all []liveNode) bool {
	return slices.ContainsFunc(all, func(c liveNode) bool {
		granted := 0
		for _, v := range all {
			if cmp.Or(cmp.Compare(v.term, c.term), cmp.Compare(v.index, c.index)) <= 0 {
				granted++
			}
		}
		return !c.voteRequestsDropped && granted > voters/2
	})
}

// liveNodes returns the nodes that run now, and whether one of them leads.
func (sim *Simulation) liveNodes() (all []liveNode, led bool) {
	dropped := sim.rpc.nodesWithDroppedVotes()
	for _, m := range sim.members {
		if _, node := m.current(); node != nil {
			term, index := m.disk.Last()
			all = append(all, liveNode{term, index, slices.Contains(dropped, m.id)})
			led = led || node.Status().Role == cluster.Leader
		}
	}
	return all, led
}

// unelectableByDrops reports whether a node could be elected only if no vote requests were dropped.
func unelectableByDrops(voters int, all []liveNode) bool {
	heard := slices.Clone(all)
	for i := range heard {
		heard[i].voteRequestsDropped = false
	}
	return !electable(voters, all) && electable(voters, heard)
}

// nodesWithDroppedVotes returns the nodes whose requests for votes are lost now.
func (r *rpcFaults) nodesWithDroppedVotes() (ids []cluster.NodeID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, f := range r.active {
		if f.Kind == DropVotes {
			ids = append(ids, r.sim.members[f.A].id)
		}
	}
	return ids
}

// excludeUnelectableTime leaves some time out of the gap between acknowledgements: the time without a leader in which
// no node can be elected because vote requests are dropped. Then one node alone has the newest log, its requests are
// lost, and the other nodes need its vote. It stops when the returned function is called.
func (sim *Simulation) excludeUnelectableTime() (stop func()) {
	if !slices.ContainsFunc(sim.cfg.Plan, func(f Fault) bool { return f.Kind == DropVotes }) {
		return func() {}
	}
	const each = 10 * time.Millisecond
	return sim.every(each, func() {
		if all, led := sim.liveNodes(); led || !unelectableByDrops(sim.cfg.Nodes, all) {
			return
		}
		sim.traffic.ExcuseGap(each)
	})
}
