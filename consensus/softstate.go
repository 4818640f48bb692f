package consensus

import (
	"cmp"
	"context"
	"errors"
	"time"

	"northstar/cluster"
	"northstar/consensus/raftnode"
)

// maxCheckInterval is between two periodic checks of a node with long election timeouts.
const maxCheckInterval = 150 * time.Millisecond

// watchLeadership follows role, term and leader: at every transition, and periodically, because the term can change
// without one. It reads the state instead of a stream of events, so no change can be lost: terms do not repeat.
func (n *Node) watchLeadership(ctx context.Context, inst *raftnode.Instance) {
	tick := time.NewTicker(min(n.cfg.TimeoutMin, maxCheckInterval))
	defer tick.Stop()
	for {
		n.updateSoftState(inst.SoftState(), inst.LastContact())
		n.checkCaughtUp(inst)
		select {
		case <-inst.Changed():
		case <-n.catchUp.progress:
		case <-tick.C:
			n.periodicChecks(inst)
			n.reportUnresolvedElection()
		case <-ctx.Done():
			return
		}
	}
}

// periodicChecks does what is due from time to time.
func (n *Node) periodicChecks(inst *raftnode.Instance) {
	if n.store.Stalled() {
		n.queue.abandon(errors.New("the leader's disk is stalled"))
	}
	inst.Maintain()
	n.updateAhead(inst)
}

func (n *Node) updateSoftState(s raftnode.SoftState, lastContact time.Time) {
	now := time.Now()
	n.mu.Lock()
	leaderChanged, lostElection := n.elections.observe(s, lastContact, now)
	if leaderChanged {
		close(n.leaderCh)
		n.leaderCh = make(chan struct{})
	}
	lost := n.cancelLeadership != nil && (s.Role != cluster.Leader || s.Term != n.leadershipTerm)
	end := n.cancelLeadership
	n.mu.Unlock()

	if lost {
		end(ErrLeadershipLost)
	}
	if lostElection != nil && n.deps.Hooks.Election != nil {
		n.deps.Hooks.Election(*lostElection)
	}
	if leaderChanged {
		n.log.Debug("leader", "leader_id", s.Leader, "term", s.Term) // Hooks.Leader logs it for operators
		if n.deps.Hooks.Leader != nil {
			n.deps.Hooks.Leader(s.Leader, s.Term)
		}
	}
}

func (n *Node) reportUnresolvedElection() {
	n.mu.Lock()
	e := n.elections.unresolved(time.Now())
	n.mu.Unlock()
	if e != nil && n.deps.Hooks.Election != nil {
		n.deps.Hooks.Election(*e)
	}
}

func (n *Node) currentSoftState() raftnode.SoftState {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.elections.softState
}

// LedLast reports whether this node is the last leader that this process has known. If it has known none, the last one
// in its log counts: only a node whose log has the newest leader-start can be elected.
func (n *Node) LedLast() bool {
	n.mu.Lock()
	last := cmp.Or(n.elections.softState.Leader, n.elections.previousLeader)
	n.mu.Unlock()
	if last == "" {
		_, last = n.ElectionView().LeaderStart()
	}
	return last == n.cfg.Self.NodeID
}

// LeaderChanged returns a channel that is closed at the next change of the leader, or of its term, as this node knows
// it. To miss nothing, get the channel first, then read Status, then wait.
func (n *Node) LeaderChanged() <-chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.leaderCh
}

// readyChanged returns a channel that is closed when a leadership begins or ends here.
func (n *Node) readyChanged() <-chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.readyCh
}

func (n *Node) setReady(term uint64) {
	n.mu.Lock()
	n.readyTerm.Store(term)
	n.leadershipSince = time.Time{}
	if term != 0 {
		n.leadershipSince = time.Now()
	}
	close(n.readyCh)
	n.readyCh = make(chan struct{})
	n.mu.Unlock()
}

func (n *Node) leads() bool {
	inst := n.inst.Load()
	return inst != nil && inst.Leads(inst.CurrentTerm())
}
