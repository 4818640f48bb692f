package transfer

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"northstar/cluster"
	"northstar/election"
	"northstar/state"
)

// caughtUpLag is the maximum lag of a target. The leader then pauses writes and sends it the rest.
const caughtUpLag = 16

// farBehind is the lag above which a target comes after all others: what one append of Raft can hold. To catch up may
// take longer than the caller can wait, and a leader that stops takes no writes meanwhile. A better placed node takes
// leadership over later.
const farBehind = 512

// evaluateTarget returns whether id may take over from the node with status st, once it has caught up. The error is
// Reason with its code. It is a pure function of its arguments.
func evaluateTarget(id cluster.NodeID, st cluster.NodeStatus, peers []cluster.PeerStatus,
	v *state.View,
) (cluster.TargetOption, *cluster.Error) {
	server, inConfig := cluster.FindServer(st.Servers, id)
	if !inConfig {
		err := cluster.Errorf(cluster.CodeBadRequest, "target_leader_id: %s: no such member", id)
		err.Status = 404
		return cluster.TargetOption{}, err
	}
	m, known := v.Member(id)
	c := cluster.TargetOption{ID: id, Voter: server.Suffrage == cluster.Voter, Priority: m.Priority}
	var peer cluster.PeerStatus
	at := slices.IndexFunc(peers, func(p cluster.PeerStatus) bool { return p.ID == id })
	if at >= 0 {
		peer = peers[at]
	}
	c.LagEntries = peer.LagEntries
	switch {
	case id == st.NodeID:
		c.Reason = fmt.Sprintf("node %s leads already", id)
	case !c.Voter:
		c.Reason = fmt.Sprintf("node %s is not a voter", id)
	case !known:
		c.Reason = fmt.Sprintf("node %s has no member record yet", id)
	case !m.Eligible || m.Priority == 0:
		c.Reason = fmt.Sprintf("node %s is not eligible to lead", id)
	case m.Lifecycle != cluster.Active:
		c.Reason = fmt.Sprintf("node %s is %s", id, m.Lifecycle)
	case at < 0:
		c.Reason = fmt.Sprintf("nothing is known of node %s", id)
	case !peer.Healthy:
		c.Reason = fmt.Sprintf("node %s is not healthy: %s", id, strings.Join(peer.Reasons, "; "))
	default:
		c.Reason = peer.TransferBlocked
	}
	if c.Eligible = c.Reason == ""; !c.Eligible {
		return c, cluster.Errorf(cluster.CodeTransferFailed, "%s", c.Reason)
	}
	return c, nil
}

// compareTargets orders targets: the eligible ones, those that are not far behind, the highest priority, the preferred
// zone, the least lag, the name. A lag up to caughtUpLag does not count: under load it changes all the time, and the
// choice with it.
func compareTargets(a, b cluster.TargetOption) int {
	waits := func(c cluster.TargetOption) uint64 {
		if c.LagEntries <= caughtUpLag {
			return 0
		}
		return c.LagEntries
	}
	return cmp.Or(cluster.CompareBool(b.Eligible, a.Eligible),
		cluster.CompareBool(a.LagEntries > farBehind, b.LagEntries > farBehind), cmp.Compare(b.Priority, a.Priority),
		cmp.Compare(a.ZoneRank, b.ZoneRank), cmp.Compare(waits(a), waits(b)), cmp.Compare(a.ID, b.ID))
}

// Best returns the best target, or CodeTransferFailed with the reason against each server.
func (t *Transfer) Best() (cluster.NodeID, error) {
	all := t.evaluateTargets()
	var why []string
	for _, c := range all {
		why = append(why, c.Reason)
	}
	if len(all) > 0 {
		if best := slices.MinFunc(all, compareTargets); best.Eligible {
			return best.ID, nil
		}
	}
	return "", cluster.Errorf(cluster.CodeTransferFailed, "no node can take over: %s", strings.Join(why, "; "))
}

// evaluateTargets evaluates every server but this node, the leader.
func (t *Transfer) evaluateTargets() []cluster.TargetOption {
	st, peers, v := t.node.Status(), t.node.Peers(), t.node.View()
	ranks := election.ZoneRanks(t.opts.Zones, v.Members())
	all := make([]cluster.TargetOption, 0, len(st.Servers))
	for _, s := range st.Servers {
		if s.ID != st.NodeID {
			c, _ := evaluateTarget(s.ID, st, peers, v) // its error is Reason
			c.ZoneRank = ranks[s.ID]
			all = append(all, c)
		}
	}
	return all
}

// Choices returns every other server as a target, the best first. A server that only lags is eligible.
func (t *Transfer) Choices() []cluster.TargetOption {
	all := t.evaluateTargets()
	slices.SortStableFunc(all, compareTargets)
	return all
}
