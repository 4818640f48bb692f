package failover

import (
	"context"
	"fmt"
	"time"

	"northstar/cluster"
	"northstar/election"
	"northstar/state"
)

const (
	leadMin = 10 * time.Millisecond // between two checks of a leader
	leadMax = time.Second
	// freshClaim is the maximum age of a peer's claim about its disk.
	freshClaim = 3 * time.Second
	// moveTime limits one attempt to transfer leadership.
	moveTime = 10 * time.Second
	// fullDiskInterval is how often a leader checks whether its disk is full. Then the cluster accepts no writes.
	fullDiskInterval = 100 * time.Millisecond
	// fullDiskRetry is how often a leader without disk space retries a transfer to the same node.
	fullDiskRetry = 5 * time.Second
)

// MonitorLeadership is the leader task that transfers leadership to a better target, or away from a bad disk.
func (c *Controller) MonitorLeadership(ctx context.Context, term uint64) {
	tick := time.NewTicker(min(max(c.cfg.TakeoverDelay/5, leadMin), leadMax))
	defer tick.Stop()
	full := time.NewTicker(fullDiskInterval)
	defer full.Stop()
	fitSince := map[cluster.NodeID]time.Time{}
	slowSince, fullTried := time.Time{}, time.Time{}
	var fullTo cluster.NodeID // time of the last attempt
	for {
		select {
		case <-tick.C:
		case <-full.C:
			if !c.deps.Consensus.Status().Disk.ReadOnly {
				continue
			}
		case <-ctx.Done():
			return
		}
		in, own := c.leading(fitSince)
		if !in.Params.Slow(own.DiskState) {
			slowSince = time.Time{}
		} else if slowSince.IsZero() {
			slowSince = in.Now
		}
		own.SlowSince = slowSince
		if to, why := election.FullDiskTarget(in, own.DiskState); to != "" {
			if to != fullTo || in.Now.Sub(fullTried) >= fullDiskRetry {
				fullTried, fullTo = in.Now, to
				h := cluster.TransferNotice{To: to, Trigger: election.TriggerDiskStall, Reason: why}
				_ = c.transferWithEvent(ctx, term, h) // the next check tries again
			}
			continue
		}
		h := cluster.TransferNotice{Trigger: election.TriggerPriority}
		if h.To, h.Reason = election.PriorityTarget(in); h.To == "" {
			h.Trigger = election.TriggerDiskStall
			h.To, h.Reason = election.SlowDiskTarget(in, own)
		}
		if h.To != "" {
			c.startCooldown(h, c.transferWithEvent(ctx, term, h))
		}
	}
}

// leftDisks returns when leadership last moved for a disk, and the node that it has left for its slow disk in the last
// SlowDiskInterval, "" if none. A later election may be of a time in the future, by another node's clock.
func leftDisks(elections []state.Election, now time.Time) (moved time.Time, left cluster.NodeID) {
	for i, e := range elections {
		at := time.Unix(0, e.LedAt)
		if e.Trigger != election.TriggerDiskStall || at.After(now) {
			continue
		}
		if at.After(moved) {
			moved = at
		}
		if i > 0 && election.IsSlowDisk(e.Trigger, e.Reason) && now.Sub(at) < election.SlowDiskInterval {
			left = elections[i-1].Node
		}
	}
	return moved, left
}

// leading returns the input of the transfer policy. It updates since when each peer has been fit.
func (c *Controller) leading(fitSince map[cluster.NodeID]time.Time) (election.LeaderView, election.OwnDisk) {
	now := time.Now()
	st, view, claims := c.deps.Consensus.Status(), c.deps.Consensus.View(), c.deps.Peers.Claims()
	in := election.LeaderView{
		Now: now, Delay: c.cfg.TakeoverDelay, Paused: !view.AutoFailover(now), Disk: st.Disk, Params: c.params(),
	}
	var known bool
	if in.Self, known = view.Member(c.cfg.Self); !known {
		return in, election.OwnDisk{} // a new cluster: the records are not complete
	}
	c.mu.Lock()
	own := election.OwnDisk{DiskState: st.Disk, Moved: c.cooldown.disk}
	in.NotBefore = c.cooldown.until
	c.mu.Unlock()
	moved, left := leftDisks(view.Elections(), now)
	if in.Left = left; moved.After(own.Moved) {
		own.Moved = moved
	}
	for _, ps := range c.deps.Consensus.Peers() {
		sv, _ := cluster.FindServer(st.Servers, ps.ID)
		member, known := view.Member(ps.ID)
		if !known {
			continue
		}
		p := election.Peer{
			Member: member, Healthy: ps.Healthy, Reasons: ps.Reasons, LagEntries: ps.LagEntries,
			NoTransfer: ps.TransferBlocked, IsVoter: sv.Suffrage == cluster.Voter,
		}
		if s, ok := claims[ps.ID]; ok && s.Connected && now.Sub(s.At) < freshClaim {
			p.Disk, p.DiskKnown = s.Claim.Disk, true
			p.SelfIneligible = s.Claim.Draining || s.Claim.Lifecycle == cluster.Draining || !s.Claim.Eligible
		}
		if fit, _ := p.Fit(); !fit {
			delete(fitSince, ps.ID)
		} else if fitSince[ps.ID].IsZero() {
			fitSince[ps.ID] = now
		}
		p.FitSince = fitSince[ps.ID]
		in.Peers = append(in.Peers, p)
	}
	return in, own
}

// transferWithEvent records an event and transfers leadership.
func (c *Controller) transferWithEvent(ctx context.Context, term uint64, h cluster.TransferNotice) error {
	c.deps.Event(cluster.Event{
		Type: "failover", Term: term, Message: fmt.Sprintf("transferring leadership from node %s to node %s: %s",
			c.cfg.Self,
			h.To, h.Reason),
		Fields: map[string]any{"trigger": h.Trigger, "target_leader_id": string(h.To)},
	})
	ctx, cancel := c.DetachFromLeadership(ctx)
	defer cancel()
	_, err := c.deps.Transfer.Execute(ctx, h)
	return err
}

// DetachFromLeadership returns a context that survives the end of leadership for a while, for a transfer that a
// leader task starts. A successful transfer ends the leadership just before the new leader is seen. If it ended
// the transfer too, this node would start an election against the leader that it made.
func (c *Controller) DetachFromLeadership(leadership context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(leadership), moveTime)
	stop := context.AfterFunc(leadership, func() {
		late := time.AfterFunc(2*c.cfg.TimeoutMax, cancel)
		context.AfterFunc(ctx, func() { late.Stop() })
	})
	return ctx, func() { stop(); cancel() }
}

// startCooldown starts the pause after an attempt to transfer leadership.
func (c *Controller) startCooldown(h cluster.TransferNotice, err error) {
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cooldown.last = election.Cooldown(c.cooldown.last, c.cfg.TakeoverDelay, err == nil)
	c.cooldown.until = now.Add(c.cooldown.last)
	if h.Trigger == election.TriggerDiskStall {
		c.cooldown.disk = now
	}
}
