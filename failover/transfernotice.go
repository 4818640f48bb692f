package failover

import (
	"context"
	"fmt"
	"time"

	"northstar/cluster"
)

// announceTime bounds how long the target may take to hear why it is to lead.
const announceTime = 20 * time.Millisecond

// AnnounceTransfer tells h.To that this node, which leads, hands leadership to it, and
// goes on saying so to whoever asks until retract is called. One at a time.
func (c *Controller) AnnounceTransfer(ctx context.Context, h cluster.TransferNotice) (retract func()) {
	set := func(h cluster.TransferNotice) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.handover = h
	}
	set(h)
	// Asking a peer tells it this node's own claim too.
	ctx, cancel := context.WithTimeout(ctx, announceTime)
	defer cancel()
	c.deps.Peers.Poll(ctx, []cluster.NodeID{h.To})
	return func() { set(cluster.TransferNotice{}) }
}

// ApproveTimeoutNow hears that the leader of that term tells this node to stand, and says why
// it will not, "" when it will. The message may be old: this process, or the
// network, may have been stopped since, and the leader have given up. So the
// leader's announcement must be recent, or it is asked for one.
func (c *Controller) ApproveTimeoutNow(ctx context.Context, from cluster.NodeID, term uint64) (refuse string) {
	now := c.now()
	seen := c.deps.Peers.Claims()[from]
	if !c.announcesTransfer(seen.Claim, term) || now.Sub(seen.At) >= c.cfg.TimeoutMin {
		ctx, cancel := context.WithTimeout(ctx, c.cfg.TimeoutMin)
		defer cancel()
		seen = c.deps.Peers.Poll(ctx, []cluster.NodeID{from})[from]
	}
	if !c.announcesTransfer(seen.Claim, term) {
		return fmt.Sprintf("node %s does not say that it hands leadership to this node", from)
	}
	h := seen.Claim.Handover
	c.book.begin(candidacy{term: term + 1, trigger: h.Trigger, reason: h.Reason, operator: h.Operator, startedAt: now, leaderlessSince: now})
	return ""
}

// announcesTransfer says whether a leader of that term claims to hand over to this node.
func (c *Controller) announcesTransfer(leader cluster.Claim, term uint64) bool {
	return leader.Role == cluster.Leader && leader.Term == term && leader.Handover.To == c.cfg.Self
}

// ReclaimLeadership makes this node, which has handed leadership away in an earlier term,
// stand for it again: nobody leads.
func (c *Controller) ReclaimLeadership(ctx context.Context, term uint64, h cluster.TransferNotice) error {
	now := c.now()
	reason := fmt.Sprintf("node %s was told to lead and does not; node %s stands again", h.To, c.cfg.Self)
	if h.Reason != "" {
		reason += " (" + h.Reason + ")"
	}
	c.book.begin(candidacy{term: term + 1, trigger: h.Trigger, operator: h.Operator, startedAt: now, leaderlessSince: now, reason: reason})
	return c.deps.Raft().StartElection(ctx, term, cluster.CauseTransferFailed)
}
