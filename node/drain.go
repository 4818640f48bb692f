package node

import (
	"context"
	"fmt"
	"sync"
	"time"

	"northstar/cluster"
)

const (
	drainRetryDelay      = 100 * time.Millisecond // between two attempts to transfer leadership
	drainNoTargetTimeout = 2 * time.Second        // how long there may be no eligible target
)

// Drain prepares the node for its stop, within drain-timeout or the end of ctx: it starts no elections, rejects new
// writes, transfers leadership, ends its streams and finishes requests in flight. End Run's context next.
func (n *Node) Drain(ctx context.Context) {
	if !n.draining.CompareAndSwap(false, true) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, n.cfg.DrainTimeout)
	defer cancel()
	n.env.Notify("STOPPING=1")
	n.consensus.SetDraining(true)
	n.eventLog.Append(cluster.Event{Type: "node", Message: "this node is draining"})
	n.api.Drain()
	// etcd's clients are told first. Leadership does not wait for their calls: writes among them wait for the next
	// leader.
	var leaving sync.WaitGroup
	leaving.Go(func() { n.drainEtcd(ctx) })
	n.handOver(ctx)
	// The listener closes first. Requests in flight may need the new leader, which is known by now. They have their
	// time also while a call of an etcd client takes all of it.
	if err := n.http.Shutdown(ctx); err != nil {
		n.log.Warn("aborting in-flight requests", "error", err)
	}
	leaving.Wait()
	n.handOver(ctx) // another node may have transferred leadership to this one meanwhile
}

// eligibilityPollInterval is how often a leader checks whether its member record lets it lead.
const eligibilityPollInterval = 100 * time.Millisecond

// handOverIfIneligible is the leader task that transfers leadership while this node is drained or ineligible.
func (n *Node) handOverIfIneligible(ctx context.Context, _ uint64) {
	warned := "" // reason already logged; the error text differs between attempts
	for ; ctx.Err() == nil; sleep(ctx, eligibilityPollInterval) {
		m, ok := n.consensus.View().Member(n.cfg.ID)
		why := m.IneligibleReason()
		if !ok || why == "" || n.draining.Load() {
			warned = ""
			continue
		}
		moving, cancel := n.failover.DetachFromLeadership(ctx)
		_, err := n.transfer.Execute(moving, cluster.TransferNotice{
			Trigger: "transfer",
			Reason:  fmt.Sprintf("node %s %s", n.cfg.ID, why),
		})
		cancel()
		// The change that made this node ineligible may hold the lock yet.
		busy := cluster.IsCode(err, cluster.CodeBusy)
		if err != nil && !busy && ctx.Err() == nil && warned != why {
			warned = why
			n.log.Warn("this node "+why+" and leads: leadership transfer failed", "error", err)
		}
	}
}

// handOver transfers leadership and retries, until another node leads or there is no target for a while.
func (n *Node) handOver(ctx context.Context) {
	var trouble string
	var noTargetSince time.Time // since when there is no eligible target; zero: there is one
	for ctx.Err() == nil {
		st := n.consensus.Status()
		if st.Role != cluster.Leader || cluster.CountVoters(st.Servers) < 2 {
			return
		}
		outcome, err := n.transfer.Execute(ctx, cluster.TransferNotice{
			Trigger: "transfer",
			Reason:  fmt.Sprintf("node %s is stopping", n.cfg.ID),
		})
		if err == nil {
			n.log.Info("leadership transferred", "to", string(outcome.NewLeader), "term", outcome.Term, "took",
				outcome.Duration)
			return
		}
		if err.Error() != trouble {
			trouble = err.Error()
			n.log.Warn("leadership transfer failed", "error", err)
		}
		if _, err := n.transfer.Best(); err == nil {
			noTargetSince = time.Time{}
		} else if now := time.Now(); noTargetSince.IsZero() {
			noTargetSince = now
		} else if now.Sub(noTargetSince) > drainNoTargetTimeout {
			return
		}
		sleep(ctx, drainRetryDelay)
	}
}
