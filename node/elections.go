package node

import (
	"context"
	"fmt"
	"time"

	"northstar/cluster"
	"northstar/consensus"
	"northstar/transport"
)

var (
	_ transport.Membership = (*membership)(nil)
	_ transport.Elections  = elections{}
)

// membership is what the transport knows of the members: consensus, and the
// split-brain detector, which hears of each hello as well.
type membership struct {
	*consensus.Node // nil until it is made; the transport asks after that
	n               *Node
}

// OnHello hears of each completed hello. It does not block.
func (m *membership) OnHello(p cluster.Peer, a cluster.Admission) {
	m.Node.OnHello(p, a)
	m.n.splitBrain.OnHello(p)
}

// elections decides about this node's votes and elections for the transport, from
// what failover, consensus and the split-brain detector say.
type elections struct{ n *Node }

func (e elections) VetoPreVote(candidate cluster.NodeID, now time.Time) string {
	return e.n.failover.VetoPreVote(candidate, now)
}

func (e elections) MayIgnoreLeader(candidate cluster.NodeID, term uint64, now time.Time) bool {
	return e.n.failover.MayIgnoreLeader(candidate, term, now)
}

// ApproveTimeoutNow rejects every TimeoutNow while this node is about to stop.
func (e elections) ApproveTimeoutNow(ctx context.Context, by cluster.NodeID, term uint64) string {
	if e.n.draining.Load() {
		return fmt.Sprintf("node %s is draining", e.n.cfg.ID)
	}
	return e.n.failover.ApproveTimeoutNow(ctx, by, term)
}

// MayStartElection reports whether this node may start elections by itself. It may not while it is about to
// stop or part of a split brain. It may not if its record forbids it, or, before there is one, its
// configuration. It may not while failover is paused, with two exceptions: the cluster's first election, and the
// last leader, which was stopped or cut off for a while. A node that is drained or not eligible may if no other
// node could lead, and transfers leadership then.
func (e elections) MayStartElection() bool {
	n := e.n
	if n.draining.Load() || !n.consensus.MayStartElection() || n.splitBrain.Refusing() != "" {
		return false
	}
	allowed := n.autoFailoverEnabled() || n.consensus.LedLast()
	m, ok := n.consensus.View().Member(n.cfg.ID)
	if !ok {
		return n.cfg.Priority > 0 && n.cfg.Eligible && allowed
	}
	return allowed && (m.IneligibleReason() == "" || n.failover.LastResort())
}

func (e elections) MayVote() bool { return e.n.consensus.MayVote() && e.n.splitBrain.MayVote() }

func (e elections) VoteReceived(a cluster.VoteResponse) { e.n.failover.OnVoteResponse(a) }

func (e elections) VoteAnswered(granted bool, reason string) { e.n.metrics.Vote(granted, reason) }
