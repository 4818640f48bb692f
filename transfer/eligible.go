package transfer

import (
	"cmp"
	"slices"
	"strings"

	"northstar/cluster"
	"northstar/state"
)

// caughtUpLag is the maximum lag of a target that counts as caught up. The leader pauses writes then and sends
// it the rest.
const caughtUpLag = 16

// targetCheck is the evaluation of one node as a target.
type targetCheck struct {
	id       cluster.NodeID
	voter    bool
	priority int
	lag      uint64
	err      *cluster.Error // why it cannot be the target; nil: it can, once it has caught up
}

// evaluateTarget returns whether id may take over from the node with status st. It is a pure function of its
// arguments.
func evaluateTarget(id cluster.NodeID, st cluster.NodeStatus, peers []cluster.PeerStatus, v *state.View) targetCheck {
	c := targetCheck{id: id}
	m, known := v.Member(id)
	server, inConfig := cluster.FindServer(st.Servers, id)
	peer := slices.IndexFunc(peers, func(p cluster.PeerStatus) bool { return p.ID == id })
	c.voter, c.priority = server.Suffrage == cluster.Voter, m.Priority
	if peer >= 0 {
		c.lag = peers[peer].LagEntries
	}
	refuse := func(format string, args ...any) targetCheck {
		c.err = cluster.Errorf(cluster.CodeTransferFailed, format, args...)
		return c
	}
	switch {
	case !inConfig:
		c.err = cluster.Errorf(cluster.CodeBadRequest, "target_leader_id: %s: no such member", id)
		c.err.Status = 404
		return c
	case id == st.NodeID:
		return refuse("node %s leads already", id)
	case server.Suffrage != cluster.Voter:
		return refuse("node %s is not a voter", id)
	case !known:
		return refuse("node %s has no member record yet", id)
	case !m.Eligible || m.Priority == 0:
		return refuse("node %s is not eligible to lead", id)
	case m.Lifecycle != cluster.Active:
		return refuse("node %s is %s", id, m.Lifecycle)
	case peer < 0:
		return refuse("nothing is known of node %s", id)
	case !peers[peer].Healthy:
		return refuse("node %s is not healthy: %s", id, strings.Join(peers[peer].Reasons, "; "))
	case peers[peer].TransferBlocked != "":
		return refuse("%s", peers[peer].TransferBlocked)
	}
	return c
}

// best returns the first target without an error.
func best(candidates []targetCheck) (targetCheck, bool) {
	fit := slices.DeleteFunc(slices.Clone(candidates), func(c targetCheck) bool { return c.err != nil })
	if len(fit) == 0 {
		return targetCheck{}, false
	}
	return slices.MinFunc(fit, rank), true
}

// rank orders targets: those without an error, the highest priority, the least lag, the name. A lag up to
// caughtUpLag does not count: under load it changes all the time, and the choice with it.
func rank(a, b targetCheck) int {
	can := func(c targetCheck) int {
		if c.err == nil {
			return 0
		}
		return 1
	}
	waits := func(c targetCheck) uint64 {
		if c.lag <= caughtUpLag {
			return 0
		}
		return c.lag
	}
	return cmp.Or(cmp.Compare(can(a), can(b)), cmp.Compare(b.priority, a.priority), cmp.Compare(waits(a), waits(b)),
		cmp.Compare(a.id, b.id))
}

// Best returns the best target, or CodeTransferFailed with the reason against each server.
func (t *Transfer) Best() (cluster.NodeID, error) {
	all := t.evaluateTargets()
	if c, ok := best(all); ok {
		return c.id, nil
	}
	var why []string
	for _, c := range all {
		why = append(why, c.err.Detail)
	}
	return "", cluster.Errorf(cluster.CodeTransferFailed, "no node can take over: %s", strings.Join(why, "; "))
}

// evaluateTargets evaluates every server but this node, the leader.
func (t *Transfer) evaluateTargets() []targetCheck {
	st, peers, v := t.node.Status(), t.node.Peers(), t.node.View()
	var all []targetCheck
	for _, s := range st.Servers {
		if s.ID != st.NodeID {
			all = append(all, evaluateTarget(s.ID, st, peers, v))
		}
	}
	return all
}

// Choices returns every server but this node, the leader, as a target, the best first. A server that only lags
// is eligible.
func (t *Transfer) Choices() []cluster.TargetOption {
	all := t.evaluateTargets()
	slices.SortStableFunc(all, rank)
	choices := make([]cluster.TargetOption, len(all))
	for i, c := range all {
		choices[i] = cluster.TargetOption{
			ID: c.id, Eligible: c.err == nil, Voter: c.voter, Priority: c.priority,
			LagEntries: c.lag,
		}
		if c.err != nil {
			choices[i].Reason = c.err.Detail
		}
	}
	return choices
}
