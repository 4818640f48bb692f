package node

import (
	"context"
	"fmt"
	"time"

	"northstar/cluster"
)

const (
	drainRetryDelay      = 100 * time.Millisecond // until leadership is offered again
	drainNoTargetTimeout = 2 * time.Second        // how long no node at all may be fit to take it
)

// Drain makes the node ready to be stopped, within drain-timeout or the end of
// ctx: it stands for election no more and leads no further write, hands
// leadership to the best placed voter and sees it arrive, ends its streams,
// lets requests in flight finish, and takes no new ones. The node goes on as a
// follower; end Run's context next.
func (n *Node) Drain(ctx context.Context) {
	if !n.draining.CompareAndSwap(false, true) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, n.cfg.DrainTimeout)
	defer cancel()
	n.env.Notify("STOPPING=1")
	n.consensus.SetDraining(true)
	n.journal.Append(cluster.Event{Type: "node", Message: "this node is draining"})
	n.api.Drain()
	n.handOver(ctx)
	// It takes no new connections from here on; requests in flight may still
	// need the leader, which is known by now.
	if err := n.http.Shutdown(ctx); err != nil {
		n.log.Warn("requests in flight are cut off", "error", err)
	}
	n.handOver(ctx) // should another node have handed leadership here meanwhile
}

// eligibilityPollInterval is how often a leader looks whether its record lets it lead.
const eligibilityPollInterval = 100 * time.Millisecond

// handOverIfIneligible is the leader task of a node that an operator has drained, or keeps
// from leading: it hands leadership over, again and again until another node leads.
func (n *Node) handOverIfIneligible(ctx context.Context, _ uint64) {
	warned := "" // of what was told already: errors differ at each look
	for ; ctx.Err() == nil; sleep(ctx, eligibilityPollInterval) {
		m, ok := n.consensus.View().Member(n.cfg.ID)
		why := m.IneligibleReason()
		if !ok || why == "" || n.draining.Load() {
			warned = ""
			continue
		}
		moving, cancel := n.failover.DetachFromLeadership(ctx)
		_, err := n.transfer.Execute(moving, cluster.TransferNotice{Trigger: "transfer", Reason: fmt.Sprintf("node %s %s", n.cfg.ID, why)})
		cancel()
		if err != nil && ctx.Err() == nil && warned != why {
			warned = why
			n.log.Warn("this node "+why+" and leads: leadership could not be handed over", "error", err)
		}
	}
}

// handOver gives leadership away, again and again until another node leads. It
// gives up early where nobody can take over and nobody is about to.
func (n *Node) handOver(ctx context.Context) {
	var trouble string
	var nobody time.Time // since when there is no candidate; zero: there is one
	for ctx.Err() == nil {
		st := n.consensus.Status()
		if st.Role != cluster.Leader || cluster.CountVoters(st.Servers) < 2 {
			return
		}
		outcome, err := n.transfer.Execute(ctx, cluster.TransferNotice{Trigger: "transfer", Reason: fmt.Sprintf("node %s is stopping", n.cfg.ID)})
		if err == nil {
			n.log.Info("leadership handed over", "to", string(outcome.NewLeader), "term", outcome.Term, "took", outcome.Duration)
			return
		}
		if err.Error() != trouble {
			trouble = err.Error()
			n.log.Warn("leadership could not be handed over", "error", err)
		}
		if _, err := n.transfer.Best(); err == nil {
			nobody = time.Time{}
		} else if now := time.Now(); nobody.IsZero() {
			nobody = now
		} else if now.Sub(nobody) > drainNoTargetTimeout {
			return
		}
		sleep(ctx, drainRetryDelay)
	}
}
