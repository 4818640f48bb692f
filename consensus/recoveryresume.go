package consensus

import (
	"context"
	"slices"

	"northstar/cluster"
	"northstar/state"
)

// missingSurvivors returns the survivors of a recovery that have not come back to its generation, with their old data
// directories. The new generation has no record of a data directory of theirs.
func missingSurvivors(r *recoveryRecord, g cluster.Generation, v *state.View) map[cluster.NodeID]string {
	if r == nil || len(r.OldData) == 0 || v.Generation() != g {
		return nil
	}
	missing := map[cluster.NodeID]string{}
	for id, old := range r.OldData {
		if m, known := v.Member(id); known && !m.Removed && m.Incarnation == "" {
			missing[id] = old
		}
	}
	return missing
}

// rejoinRecovered sets this node's data aside when the recovered node of a newer generation names it as a survivor, by
// its data directory: the order to do so got lost, because one of the two was down. SetAside asks that node again, at
// the address that this node's configuration has.
func (n *Node) rejoinRecovered(ctx context.Context) {
	n.peers.mu.Lock()
	by := n.peers.recoveredBy
	n.peers.mu.Unlock()
	if by.NodeID == "" || n.deps.Hooks.SetAside == nil {
		return
	}
	if err := n.SetAside(ctx, by.ClusterID, by.NodeID, by.Generation); err != nil {
		n.log.Warn("data of the old generation not set aside yet", "recovered", by.NodeID, "error", err)
		return
	}
	n.peers.mu.Lock()
	n.peers.recoveredBy = cluster.Peer{}
	n.peers.mu.Unlock()
	n.deps.Hooks.SetAside()
}

// ResumeRecovery returns the recovery that a repeated request completes, if any: its plan, and the generation. On the
// recovered node it is the one that has made it the only voter, while some of the survivors have not come back. On a
// node of the old generation it names the recovered node, which must be asked.
func (n *Node) ResumeRecovery(o cluster.RecoveryRequest) (cluster.RecoveryPlan, cluster.Generation, bool) {
	f := n.ident.get()
	plan := cluster.RecoveryPlan{ClusterID: f.ClusterID, Chosen: f.NodeID, Generation: f.Generation.Number}
	if o.Confirm != f.ClusterID || f.ClusterID == "" {
		return plan, f.Generation, false
	}
	n.peers.mu.Lock()
	by := n.peers.recoveredBy
	n.peers.mu.Unlock()
	if by.NodeID != "" && slices.Contains(o.Survivors, by.NodeID) {
		plan.Chosen, plan.Generation = by.NodeID, by.Generation.Number
		return plan, by.Generation, true
	}
	if !n.leads() || len(missingSurvivors(f.Recovery, f.Generation, n.View())) == 0 {
		return plan, f.Generation, false
	}
	named := append(slices.Clone(f.Recovery.Rejoining), f.NodeID)
	slices.Sort(named)
	if asked := slices.Sorted(slices.Values(o.Survivors)); !slices.Equal(asked, named) {
		return plan, f.Generation, false
	}
	plan.Survivors = []cluster.Survivor{survivorOf(n.Claim())}
	for _, id := range f.Recovery.Rejoining {
		plan.Survivors = append(plan.Survivors, cluster.Survivor{
			ID: id, Voter: slices.Contains(f.Recovery.Voters, id),
		})
	}
	for _, s := range f.Recovery.Servers {
		if !slices.Contains(named, s.ID) {
			plan.Lost = append(plan.Lost, s.ID)
		}
	}
	plan.Voters = len(f.Recovery.Voters) + 1
	plan.Needed = cluster.Quorum(plan.Voters)
	return plan, f.Generation, true
}
