package consensus

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/raft"

	"northstar/cluster"
	"northstar/consensus/raftnode"
)

// watchLeadership follows role, term and leader. The library's observer hook wakes it at
// every transition; it also looks by itself, because the term can change without
// one. It reads the state and not a stream of events, so that nothing can be
// lost: a reign is known by its term, and a second one is never the first again.
func (n *Node) watchLeadership(ctx context.Context, inst *raftnode.Instance) {
	tick := time.NewTicker(n.cfg.TimeoutMin)
	defer tick.Stop()
	for {
		n.updateSoftState(inst.SoftState())
		select {
		case <-inst.Changed():
		case <-tick.C:
			n.periodicChecks(inst)
			if e := n.unresolvedElection(n.now()); e != nil && n.deps.Hooks.Election != nil {
				n.deps.Hooks.Election(*e)
			}
		case <-ctx.Done():
			return
		}
	}
}

// periodicChecks is what has to be looked at from time to time.
func (n *Node) periodicChecks(inst *raftnode.Instance) {
	if n.store.Stalled() {
		n.queue.abandon(errors.New("the leader's disk is stalled"))
	}
	inst.Maintain()
	if n.caughtUp.Load() {
		return
	}
	// What was committed when this node started is known once a leader has told
	// it a commit index.
	commit := inst.CommitIndex()
	if n.currentSoftState().Leader == "" || commit == 0 {
		return
	}
	if n.startCommit == 0 {
		n.startCommit = commit
	}
	if n.appliedThrough(n.startCommit) {
		n.caughtUp.Store(true)
	}
}

// appliedThrough says whether the state holds all up to index. The library does not
// show the state machine every entry: those at the end are passed over here.
func (n *Node) appliedThrough(index uint64) bool {
	for applied := n.fsm.Applied(); index > applied; index-- {
		var l raft.Log
		if err := n.store.Log().GetLog(index, &l); err != nil || l.Type == raft.LogCommand || l.Type == raft.LogConfiguration {
			return false
		}
	}
	return true
}

// updateSoftState takes in what was sighted.
func (n *Node) updateSoftState(s raftnode.SoftState) {
	now := n.now()
	n.mu.Lock()
	before := n.lastSoftState
	n.lastSoftState = s
	if s == before {
		n.mu.Unlock()
		return
	}
	leaderChanged := s.Leader != before.Leader || s.Leader != "" && s.Term != before.Term
	if leaderChanged {
		close(n.leaderCh)
		n.leaderCh = make(chan struct{})
	}
	lost := n.cancelLeadership != nil && (s.Role != cluster.Leader || s.Term != n.leadershipTerm)
	end := n.cancelLeadership
	lostElection := n.updateElectionTimes(s, before, now)
	n.mu.Unlock()

	if lost {
		end(ErrLeadershipLost)
	}
	if lostElection != nil && n.deps.Hooks.Election != nil {
		n.deps.Hooks.Election(*lostElection)
	}
	if leaderChanged {
		n.log.Info("leader", "leader_id", s.Leader, "term", s.Term)
		if n.deps.Hooks.Leader != nil {
			n.deps.Hooks.Leader(s.Leader, s.Term)
		}
	}
}

// updateElectionTimes keeps what an election's record needs: since when there is no
// leader, since when this node stands. It gives the record of an election that
// this node stood in and another node won. The caller holds mu.
func (n *Node) updateElectionTimes(s, before raftnode.SoftState, now time.Time) (lost *Election) {
	if s.Leader == "" && before.Leader != "" {
		n.leaderlessSince, n.previousLeader = n.lastLeaderContact(before, now), before.Leader
	}
	if before.Role == cluster.Leader && (s.Role != cluster.Leader || s.Term != before.Term) {
		n.candidateSince = time.Time{} // also of an election that was won, and lost again before it could be told of
	}
	if s.Leader != "" {
		n.lastLeaderTerm = s.Term
	}
	if s.Role == cluster.Candidate && n.candidateSince.IsZero() {
		n.candidateSince, n.reportElectionAfter, n.candidacyMinTerm = now, n.cfg.TimeoutMax, max(s.Term, n.lastLeaderTerm+1)
	}
	if s.Role == cluster.Leader && (before.Role != cluster.Leader || before.Term != s.Term) {
		n.electedAt = now
	}
	if s.Leader == "" || s.Role == cluster.Leader {
		return nil // not decided, or won: the reign makes the record
	}
	if !n.candidateSince.IsZero() {
		lost = n.candidacy(s.Term, now)
	}
	n.candidateSince, n.leaderlessSince, n.leaderSeen = time.Time{}, time.Time{}, true
	return lost
}

// unresolvedElection is the record so far of an election that this node stands in and
// that has brought no leader: after timeout-max, and then each time that it has
// lasted twice as long. Nil when there is nothing to say.
func (n *Node) unresolvedElection(now time.Time) *Election {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.candidateSince.IsZero() || n.lastSoftState.Leader != "" || now.Sub(n.candidateSince) < n.reportElectionAfter {
		return nil
	}
	n.reportElectionAfter = 2 * now.Sub(n.candidateSince)
	e := n.candidacy(n.lastSoftState.Term+1, now) // what pre-votes ask for
	e.Open = true
	return e
}

// candidacy is the record of a candidacy that has not been won. The caller holds
// mu.
func (n *Node) candidacy(term uint64, now time.Time) *Election {
	return &Election{
		Term: term, FromTerm: n.candidacyMinTerm, Candidate: n.cfg.Self.NodeID, Trigger: n.electionTrigger(), Reason: n.timerReason(),
		StartedAt: n.candidateSince, Duration: now.Sub(n.candidateSince), Leaderless: n.leaderlessFor(now),
	}
}

// lastLeaderContact is when the leader that was sighted before gave its last sign: its
// followers lose it only some time after. It takes no lock of this package.
func (n *Node) lastLeaderContact(before raftnode.SoftState, now time.Time) time.Time {
	inst := n.inst.Load()
	if inst == nil || before.Role == cluster.Leader {
		return now
	}
	if last := inst.LastContact(); !last.IsZero() && last.Before(now) {
		return last
	}
	return now
}

// electionTrigger is why this node stands as far as it knows by itself. The
// caller holds mu.
func (n *Node) electionTrigger() string {
	if !n.leaderSeen {
		return "startup"
	}
	return "timeout"
}

// timerReason says in words why this node stands when nobody has told it to. The
// caller holds mu.
func (n *Node) timerReason() string {
	switch {
	case n.previousLeader == "":
		return "Raft's timer fired: no leader has been heard since this node started"
	case n.previousLeader == n.cfg.Self.NodeID:
		return "Raft's timer fired: this node led before, and lost leadership"
	case n.leaderlessSince.IsZero() || n.candidateSince.IsZero():
		return fmt.Sprintf("Raft's timer fired: leader %s was not heard", n.previousLeader)
	}
	return fmt.Sprintf("Raft's timer fired: leader %s was not heard for %v", n.previousLeader, max(0, n.candidateSince.Sub(n.leaderlessSince)).Round(time.Millisecond))
}

func (n *Node) leaderlessFor(now time.Time) time.Duration {
	if n.leaderlessSince.IsZero() {
		return 0
	}
	return now.Sub(n.leaderlessSince)
}

// currentSoftState is the last raftnode.SoftState.
func (n *Node) currentSoftState() raftnode.SoftState {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.lastSoftState
}

// LeaderChanged is closed at the next change of the leader, or of its term, as
// this node sees it. Ask again for the one after: first take the channel, then
// look at Status, then wait.
func (n *Node) LeaderChanged() <-chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.leaderCh
}

// readyChanged is closed when a reign begins here or ends.
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
		n.leadershipSince = n.now()
	}
	close(n.readyCh)
	n.readyCh = make(chan struct{})
	n.mu.Unlock()
}

// piggybackVersion says whether Raft says that this node leads, now.
func (n *Node) leads() bool {
	inst := n.inst.Load()
	return inst != nil && inst.Leads(inst.CurrentTerm())
}
