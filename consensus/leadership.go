package consensus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"northstar/cluster"
	"northstar/consensus/raftnode"
	"northstar/election"
	"northstar/state"
)

// leadershipLoop runs one leadership after another. The next begins when every task of the previous one has returned.
func (n *Node) leadershipLoop(ctx context.Context, inst *raftnode.Instance) {
	for {
		changed := n.LeaderChanged()
		s := n.currentSoftState()
		if s.Role == cluster.Leader && inst.Leads(s.Term) {
			n.runLeadership(ctx, inst, s.Term)
		}
		if !n.leads() { // what was queued in a leadership that this loop has not seen, or behind its end
			n.queue.refuse(n.notLeading())
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// runLeadership leads for one term: leader-start, a new cluster's ID, the gate for writes, and the leader tasks.
func (n *Node) runLeadership(ctx context.Context, inst *raftnode.Instance, term uint64) {
	ctx, end := context.WithCancelCause(ctx)
	defer end(ErrLeadershipLost)
	if !n.registerLeadership(term, end) {
		return
	}
	defer n.unregisterLeadership(term)
	if !n.commitLeaderStart(ctx, inst, term) {
		return
	}
	noCluster := func() bool { return n.View().ClusterID() == "" }
	if !n.retry(ctx, "cannot initialize the new cluster", noCluster, func() error { return n.proposeInit(ctx, inst) }) ||
		!n.proposeGeneration(ctx) || !n.awaitPreviousLease(ctx, term) {
		return
	}
	won := n.wonElectionRecord(term, time.Now(), true) // the member record is known now: it may forbid writes
	n.setReady(term)
	n.queue.setGate(true)
	n.log.Debug("leadership started", "term", term, "trigger", won.Trigger, "election", won.Duration, "leaderless",
		won.Leaderless)
	if n.deps.Hooks.Election != nil {
		n.deps.Hooks.Election(won)
	}
	var tasks sync.WaitGroup
	tasks.Go(func() { n.reconcileMembers(ctx, inst, term) })
	for _, t := range n.tasks {
		tasks.Go(func() { t(ctx, term) })
	}
	<-ctx.Done()
	n.closeGate()
	if !waitFor(tasks.Wait, stopWait) {
		n.log.Warn("leader tasks still running: next leadership is delayed", "term", term)
	}
	tasks.Wait()
}

// registerLeadership lets updateSoftState end the leadership. It reports false when that is over already.
func (n *Node) registerLeadership(term uint64, end context.CancelCauseFunc) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if s := n.elections.softState; s.Role != cluster.Leader || s.Term != term {
		return false
	}
	n.leadershipTerm, n.cancelLeadership = term, end
	return true
}

func (n *Node) unregisterLeadership(term uint64) {
	n.mu.Lock()
	n.cancelLeadership = nil
	n.mu.Unlock()
	n.closeGate()
	n.log.Debug("leadership ended", "term", term)
}

// closeGate rejects what this node has not proposed. It may be called twice.
func (n *Node) closeGate() {
	if n.readyTerm.Load() != 0 {
		n.setReady(0)
	}
	n.queue.refuse(n.notLeading())
}

// commitLeaderStart commits this term's leader-start entry. It keeps trying while the commit or the applied index
// moves, as during a long replay. When neither moves for four times timeout-max, it transfers leadership.
func (n *Node) commitLeaderStart(ctx context.Context, inst *raftnode.Instance, term uint64) bool {
	start := n.leaderStart(term)
	for ctx.Err() == nil {
		cmd := state.Command{Kind: state.KindLeaderStart, LeaderStart: start}
		result, err := n.proposeWhileProgressing(ctx, inst, cmd, n.piggybackCommandVersion(inst, term))
		switch {
		case err == nil && result.Err == nil:
			return inst.Leads(term)
		case err == nil:
			n.log.Warn("leader-start rejected", "term", term, "error", result.Err)
			return false // it is of another term: the next sample begins that leadership
		case ctx.Err() != nil:
			return false
		case errors.Is(err, raft.ErrLeadershipTransferInProgress):
			// The flag is left from an earlier leadership. It goes away soon, or the watchdog finds it by these
			// rejected attempts.
			select {
			case <-time.After(n.cfg.TimeoutMin / 2):
			case <-ctx.Done():
			}
			continue
		}
		n.log.Warn("cannot commit leader-start: transferring leadership", "term", term, "error", err)
		n.transferToAny(ctx, inst)
	}
	return false
}

// maxUnappliedScan bounds how many unapplied entries are read before a leader-start.
const maxUnappliedScan = 16

// piggybackCommandVersion returns the highest command version of users' writes that may be appended with this
// leader-start: 0 when something else comes before the gate opens, the oldest when a member record may be unapplied.
func (n *Node) piggybackCommandVersion(inst *raftnode.Instance, term uint64) uint32 {
	known := n.membersUpToDate(inst)
	switch v := n.View(); {
	case v.ClusterID() == "" || n.generationPending() || n.electedOverLiveLeader(term):
		return 0
	case !known:
		return 1
	default:
		return v.MinSupportedVersion(n.serverIDs())
	}
}

// membersUpToDate reports whether no unapplied entry is about members: the leader-start changes no record then.
func (n *Node) membersUpToDate(inst *raftnode.Instance) bool {
	applied, last := n.fsm.Applied(), inst.LastIndex()
	if last > applied+maxUnappliedScan {
		return false
	}
	for i := applied + 1; i <= last; i++ {
		var e raft.Log
		switch err := inst.GetLog(i, &e); {
		case errors.Is(err, raftnode.ErrNoopPending): // the library's own entry
		case err != nil || !keepsMembership(&e):
			return false
		}
	}
	return true
}

// keepsMembership reports whether an entry changes neither a member's record nor the set of members.
func keepsMembership(e *raft.Log) bool {
	if e.Type != raft.LogCommand {
		return e.Type == raft.LogNoop || e.Type == raft.LogBarrier
	}
	cmds, err := state.DecodeBatch(e.Data)
	return err == nil && !slices.ContainsFunc(cmds, func(c state.Command) bool { return c.Kind.Administrative() })
}

// electedOverLiveLeader reports whether voters elected this node although they knew a leader that may have a lease.
func (n *Node) electedOverLiveLeader(term uint64) bool {
	return n.LeaseWait() > 0 && n.readyTerm.Load() != term && n.facts(term).OverLiveLeader
}

// awaitPreviousLease waits until a leader that the voters ignored has no lease any longer: its lease reads then end
// before this leader writes. Voters acknowledge nothing of an older term now. False: the leadership ended first.
func (n *Node) awaitPreviousLease(ctx context.Context, term uint64) bool {
	if !n.electedOverLiveLeader(term) {
		return true
	}
	wait := n.LeaseWait()
	n.log.Info("elected by operator request: waiting for the previous leader's lease to expire", "term", term, "wait",
		wait)
	select {
	case <-time.After(wait):
		return true
	case <-ctx.Done():
		return false
	}
}

// leaderStart returns the command that begins the leadership of term, with the record of its election.
func (n *Node) leaderStart(term uint64) *state.LeaderStart {
	now := time.Now()
	return leaderStartOf(n.wonElectionRecord(term, now, false), term, now, n.View().Time())
}

// leaderStartOf makes that command from the record of the election, at now. Its times are on the clock of the state, as
// state.Election.LedAt: an earlier leader's clock may have been ahead of this node's, and the difference must not count
// as time without a leader.
func leaderStartOf(e Election, term uint64, now, stateTime time.Time) *state.LeaderStart {
	ahead := max(0, stateTime.Sub(now))
	start := &state.LeaderStart{
		Term: term, Node: e.Candidate, Trigger: e.Trigger, Reason: e.Reason, Operator: e.Operator,
	}
	if !e.StartedAt.IsZero() {
		start.StartedAt = e.StartedAt.Add(ahead).UnixNano()
	}
	if e.Leaderless > 0 {
		start.LeaderlessAt = now.Add(ahead - e.Leaderless).UnixNano()
	}
	if len(e.Votes) > 0 {
		start.Votes, _ = json.Marshal(e.Votes) // strings and a bool: cannot fail
	}
	return start
}

// proposeWhileProgressing proposes, and gives up when neither commit nor apply has moved for four times timeout-max.
// Writes up to piggybackVersion may be appended with the command.
func (n *Node) proposeWhileProgressing(ctx context.Context, inst *raftnode.Instance, cmd state.Command,
	piggybackVersion uint32,
) (state.Result, error) {
	type reply struct {
		result state.Result
		err    error
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan reply, 1)
	go func() {
		result, err := n.propose(ctx, &proposal{cmd: cmd, own: true, piggybackVersion: piggybackVersion})
		done <- reply{result, err}
	}()
	tick := time.NewTicker(4 * n.cfg.TimeoutMax)
	defer tick.Stop()
	commit, applied := inst.CommitIndex(), n.fsm.Applied()
	for {
		select {
		case r := <-done:
			return r.result, r.err
		case <-tick.C:
			c, a := inst.CommitIndex(), n.fsm.Applied()
			if c == commit && a == applied {
				cancel()
			}
			commit, applied = c, a
		}
	}
}

// transferToAny transfers leadership to any voter, if possible to one that may lead, and otherwise waits: without a
// quorum the library steps down.
func (n *Node) transferToAny(ctx context.Context, inst *raftnode.Instance) {
	pause, cancel := context.WithTimeout(ctx, 2*n.cfg.TimeoutMax)
	defer cancel()
	why := fmt.Sprintf("node %s leads and cannot commit", n.cfg.Self.NodeID)
	fit, ineligible := successors(inst.Servers(), n.View().Members(), n.cfg.Self.NodeID)
	for _, m := range append(fit, ineligible...) {
		if n.inContact(m.ID) {
			notice := cluster.TransferNotice{To: m.ID, Trigger: election.TriggerDiskStall, Reason: why}
			if n.TransferTo(pause, notice) == nil {
				return
			}
		}
	}
	<-pause.Done()
}

func (n *Node) facts(term uint64) ElectionFacts {
	if n.deps.Facts == nil {
		return ElectionFacts{}
	}
	return n.deps.Facts(term)
}

// wonElectionRecord returns what is known about the election that this node has won. With over the candidacy ends.
func (n *Node) wonElectionRecord(term uint64, now time.Time, over bool) Election {
	facts := n.facts(term)
	recovery, first := n.ident.get().Recovery, n.generationPending()
	n.mu.Lock()
	defer n.mu.Unlock()
	if first {
		n.elections.recoveredTerm = term
	}
	if recovery != nil && n.elections.recoveredTerm == term {
		facts = recovery.electionFacts(facts, now)
	}
	record := n.elections.won(term, facts, now)
	if over {
		n.elections.finish(term)
	}
	return record
}

// retry proposes what must be applied before a leadership serves, until it is. False: the leadership ended first.
func (n *Node) retry(ctx context.Context, trouble string, missing func() bool, propose func() error) bool {
	for missing() {
		err := propose()
		if err == nil {
			continue
		}
		if ctx.Err() != nil {
			return false
		}
		n.log.Warn(trouble+": retrying", "error", err)
		select {
		case <-time.After(n.cfg.TimeoutMax):
		case <-ctx.Done():
		}
	}
	return true
}

// proposeInit proposes the cluster's identity. The roster holds every data directory that completed a hello with this
// node or is recorded. None of them can then be taken for a wiped one, or a wiped one for one of them.
func (n *Node) proposeInit(ctx context.Context, inst *raftnode.Instance) error {
	id, err := randomID(n.deps.Entropy)
	if err != nil {
		return err
	}
	init := &state.ClusterInit{
		ClusterID: id, Generation: cluster.Generation{Number: 1},
		AutoFailover: n.cfg.AutoFailover,
	}
	hellos := n.peers.hellos(n.Identity().Generation)
	hellos[n.cfg.Self.NodeID] = n.LocalPeer()
	recorded := n.ident.get().BootstrapIncarnations
	for _, s := range inst.Servers() {
		p, met := hellos[s.ID]
		m := newMemberRecord(s, p, met, n.cfg.InitialCluster)
		if recorded[s.ID] != "" {
			m.Incarnation = recorded[s.ID] // also of a node that was not heard since this node restarted
		}
		init.Members = append(init.Members, m)
	}
	return n.proposeInternal(ctx, state.Command{Kind: state.KindClusterInit, ClusterInit: init})
}

func newMemberRecord(s cluster.Server, p cluster.Peer, met bool, first []FirstMember) cluster.Member {
	m := cluster.Member{
		ID: s.ID, RaftAddress: s.Address, Priority: cluster.DefaultPriority, Eligible: true,
		Lifecycle: cluster.Active,
	}
	for _, f := range first {
		if f.ID == s.ID {
			m.HTTPAddress = f.HTTPAddress
		}
	}
	if met {
		m.HTTPAddress, m.Priority, m.Eligible, m.Zone = p.HTTPAddress, p.Priority, p.Eligible, p.Zone
		m.Incarnation, m.Version, m.Reads = p.Incarnation, p.Version, p.CommandVersion
	}
	return m
}
