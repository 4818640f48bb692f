package transfer

import (
	"cmp"
	"slices"
	"strings"

	"northstar/cluster"
	"northstar/state"
)

// caughtUpLag is how many entries a target may be behind to count as caught up: the
// leader stops taking writes then, and sends it the rest.
const caughtUpLag = 16

// targetCheck is one node judged as the target of a transfer.
type targetCheck struct {
	id       cluster.NodeID
	voter    bool
	priority int
	lag      uint64
	err      *cluster.Error // why it cannot be the target; nil: it can, once its lag is gone
}

// evaluateTarget says whether id may take over from the node whose status st is. It
// depends on nothing but its arguments.
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

// best is the first of those who can take over.
func best(candidates []targetCheck) (targetCheck, bool) {
	fit := slices.DeleteFunc(slices.Clone(candidates), func(c targetCheck) bool { return c.err != nil })
	if len(fit) == 0 {
		return targetCheck{}, false
	}
	return slices.MinFunc(fit, rank), true
}

// rank orders candidates: those who can, the highest priority, the least lag,
// and then the name. A lag that does not count for taking over does not count
// here: under load it changes from moment to moment, and the choice with it.
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
	return cmp.Or(cmp.Compare(can(a), can(b)), cmp.Compare(b.priority, a.priority), cmp.Compare(waits(a), waits(b)), cmp.Compare(a.id, b.id))
}

// Best is the node that leadership should be handed to when this one goes.
// CodeTransferFailed, with what rules each out, when there is none.
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

// evaluateTargets judges every server but this node, which leads.
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

// Choices shows every server but this node, which leads, as the target of a
// transfer, the best first. One that only lags is eligible: it is waited for.
func (t *Transfer) Choices() []cluster.TargetOption {
	all := t.evaluateTargets()
	slices.SortStableFunc(all, rank)
	choices := make([]cluster.TargetOption, len(all))
	for i, c := range all {
		choices[i] = cluster.TargetOption{ID: c.id, Eligible: c.err == nil, Voter: c.voter, Priority: c.priority, LagEntries: c.lag}
		if c.err != nil {
			choices[i].Reason = c.err.Detail
		}
	}
	return choices
}
