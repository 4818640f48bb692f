package consensus

import (
	"cmp"
	"fmt"
	"time"

	"northstar/cluster"
	"northstar/consensus/raftnode"
	"northstar/state"
)

// startRaft starts Raft on this node's storage. With rebuilt the state is that of the previous instance.
func (n *Node) startRaft(rebuilt bool) (*raftnode.Instance, error) {
	undone, err := n.restoreToUndo()
	if err != nil {
		return nil, err
	}
	snaps, err := raftnode.OpenSnapshots(n.store.Snapshots(), n.store.Log(), n.fsm, undone)
	if err != nil {
		return nil, err
	}
	if err := n.logRecovery(); err != nil {
		return nil, err
	}
	if rebuilt && undone != (raftnode.LogPosition{}) {
		// The state is that of the abandoned restore. No reader gets the empty one, nor an older snapshot. It goes
		// first, and then the record: until then readers see it at the index of the older snapshot.
		n.caughtUp.Store(false)
		n.catchUp.reset()
		if err := n.fsm.Reset(state.New(n.cfg.stateOptions()).Snapshot()); err != nil {
			return nil, fmt.Errorf("undo a restore: %w", err)
		}
		rebuilt = false
	}
	if err := n.forgetAbandonedRestore(); err != nil {
		return nil, err
	}
	inst, err := raftnode.Start(raftnode.Config{
		Self: n.cfg.Self.NodeID, TimeoutMin: n.cfg.TimeoutMin, TimeoutMax: n.cfg.TimeoutMax,
		SnapshotThreshold: n.cfg.SnapshotThreshold, SnapshotInterval: n.cfg.SnapshotInterval,
		TrailingLogs: n.cfg.TrailingLogs, LogBytes: cmp.Or(n.cfg.LogBytes, raftnode.DefaultLogBytes),
		Log: n.store.Log(), Stable: n.store.Stable(), Snapshots: snaps, Transport: n.deps.Transport(),
		FSM: n.fsm, KeepState: rebuilt, FirstStart: n.bootstrapped && !rebuilt, Logger: n.log,
		ElectionBlocked: func(last uint64) bool { ident := n.ident.get(); return ident.beforeOwnAdmission(last) },
		OnStuckTransfer: func() { n.RestartRaft("leadership transfer stuck in raft library") },
	})
	if err != nil {
		return nil, err
	}
	n.startLog.Store(inst.LastIndex())
	n.catchUp.raftRuns(time.Now(), n.fsm.Applied())
	if inst.ElectionBlocked() {
		n.log.Info("elections blocked until the log reaches this node's admission entry",
			"log", inst.LastIndex(), "admission", n.ident.get().RosterIndex)
	}
	if !n.caughtUp.Load() {
		if err := n.lookAhead(inst); err != nil {
			n.fail(err)
		}
	}
	return inst, nil
}

// RestartRaft has the Raft node replaced by another one, which follows. It does not wait.
func (n *Node) RestartRaft(why string) {
	select {
	case n.rebuild <- why:
	default: // a restart is pending
	}
}

// restoreToUndo returns where the abandoned restore ended that this start of Raft must undo; zero: none.
func (n *Node) restoreToUndo() (end raftnode.LogPosition, err error) {
	ident := n.ident.get()
	if ident.AbandonedRestore == end {
		return end, nil
	}
	term, err := n.store.Stable().GetUint64(keyCurrentTerm)
	if err != nil {
		return end, fmt.Errorf("read the term: %w", err)
	}
	return ident.restoreToUndo(term), nil
}

// restoreToUndo returns where the abandoned restore ended that a start of Raft in a term must undo; zero: none. In a
// later term than that of the leader that has shown it, this node may have acknowledged entries after the restore, or
// led with it. The restore stays then, and is undone if a leader shows it again.
func (f *identityFile) restoreToUndo(term uint64) (end raftnode.LogPosition) {
	if term > f.AbandonedFor {
		return end
	}
	return f.AbandonedRestore
}

// abandonRestore records that the leader of a term has shown that the restore which ended at end is abandoned. It
// reports whether the record has changed: a leader of an earlier term may still show the same.
func (f *identityFile) abandonRestore(end raftnode.LogPosition, leader uint64) (changed bool) {
	if f.AbandonedRestore == end && f.AbandonedFor >= leader {
		return false
	}
	f.AbandonedRestore, f.AbandonedFor = end, leader
	return true
}

// forgetAbandonedRestore clears the record of a restore that is undone. The same restore may be installed again, and
// be committed.
func (n *Node) forgetAbandonedRestore() error {
	err := n.ident.update(func(f *identityFile) (bool, error) {
		changed := f.AbandonedRestore != raftnode.LogPosition{}
		f.AbandonedRestore, f.AbandonedFor = raftnode.LogPosition{}, 0
		return changed, nil
	})
	if err != nil {
		return fmt.Errorf("forget the abandoned restore: %w", err)
	}
	return nil
}

// checkEntry restarts raft without the newest snapshot if the leader of a term, which is no earlier than this node's,
// has another history. A committed snapshot would match the leader's log, so this one is an uncommitted restore.
// raft.Raft installs a restore on each node before it commits. If the cluster continues without the restore, this
// node's state diverges and skips committed entries.
func (n *Node) checkEntry(inst *raftnode.Instance, leader, index, term uint64) error {
	p, conflicts := inst.ConflictingSnapshot(index, term)
	if !conflicts {
		return nil
	}
	err := n.ident.update(func(f *identityFile) (bool, error) { return f.abandonRestore(p, leader), nil })
	if err != nil {
		err = fmt.Errorf("record the abandoned restore: %w", err)
		n.fail(err)
		return err
	}
	err = fmt.Errorf("the cluster has continued without the restored backup of this node (index %d of term %d)",
		p.Index, p.Term)
	if n.inst.Load() == inst { // otherwise it is being replaced
		n.RestartRaft(err.Error())
	}
	return err
}

// checkSnapshot returns why raft must not install a snapshot of the current term's leader now. If the log has entries
// that conflict with that leader's, raft is restarted without them. The leader sends the snapshot again.
func (n *Node) checkSnapshot(inst *raftnode.Instance, s raftnode.OfferedSnapshot) error {
	conflicting, err := inst.HoldsConflicting(s)
	if err != nil || !conflicting {
		return err
	}
	err = fmt.Errorf("this node has to delete its entries from index %d on before it installs a snapshot that ends there",
		s.End.Index)
	if n.inst.Load() == inst { // otherwise it is being replaced
		inst.Conflicting.Store(&s)
		n.RestartRaft(err.Error())
	}
	return err
}

// deleteConflicting does what checkSnapshot has had an instance of raft replaced for. That instance has ended.
func (n *Node) deleteConflicting(inst *raftnode.Instance) error {
	s := inst.Conflicting.Load()
	if s == nil || inst.Final.Load() || n.store.Err() != nil {
		return nil
	}
	err := n.runUnlessStorageFails(func() error {
		term, err := n.store.Stable().GetUint64(keyCurrentTerm)
		if err != nil {
			return err
		}
		return s.DeleteConflicting(n.store.Log(), term, inst.SnapshotIndex())
	})
	if err != nil {
		return fmt.Errorf("delete the log from index %d on: %w", s.End.Index, err)
	}
	return nil
}

// beforeOwnAdmission reports whether this data directory was admitted to a running cluster and its log, which ends with
// the entry last, does not reach the admission entry yet. Its configurations may be of another data directory that had
// this node's ID, perhaps as the only voter: this node would elect itself. A recovered one has its own at the end.
func (f *identityFile) beforeOwnAdmission(last uint64) bool {
	return f.JoinOnly && f.Recovery == nil && BeforeAdmission(f.Roster[f.NodeID], f.Incarnation, f.RosterIndex, last)
}

// BeforeAdmission reports whether a log that ends with the entry last may lack the one that admitted this incarnation:
// the roster as of rosterIndex has another record of it, or the log ends before that index.
func BeforeAdmission(own cluster.Record, incarnation string, rosterIndex, last uint64) bool {
	return own != cluster.Record{Incarnation: incarnation} || last < rosterIndex
}

func voterIDs(servers []cluster.Server) []cluster.NodeID {
	ids := make([]cluster.NodeID, 0, len(servers))
	for _, s := range servers {
		if s.Suffrage == cluster.Voter {
			ids = append(ids, s.ID)
		}
	}
	return ids
}

// RaftCallbacks is the running Raft node as the transport sees it. Its methods may be called from any goroutine. Only
// CheckEntry, CheckSnapshot and FlushBeforeReply may block, for the disk.
type RaftCallbacks struct {
	*raftnode.Instance
	n *Node
}

// Progress returns the last applied index, and a number that grows while a snapshot is restored.
func (c RaftCallbacks) Progress() (applied, restored uint64) {
	return c.AppliedIndex(), c.n.fsm.Progress() + c.n.store.Progress()
}

// Restoring returns the size of the state that Raft's main loop replaces this leader's state with; 0: it does not.
func (c RaftCallbacks) Restoring() int64 { return c.n.restoring.Load() }

// LeaderCommit notes what a leader has sent after a time, if that is known: its commit index, and its last entry if
// that is of its own term.
func (c RaftCallbacks) LeaderCommit(index, last uint64, sentAfter time.Time) {
	if last > 0 && !sentAfter.IsZero() {
		c.n.freshness.leaderHas(c.Instance, max(index, last), c.n.fsm.Applied(), sentAfter)
	}
	if !c.n.caughtUp.Load() && c.n.inst.Load() == c.Instance {
		c.n.catchUp.leaderCommit(index, time.Now())
	}
}

// CheckEntry returns why an entry of the log of a term's leader cannot belong to what this node has applied.
func (c RaftCallbacks) CheckEntry(leader, index, term uint64) error {
	return c.n.checkEntry(c.Instance, leader, index, term)
}

// CheckSnapshot returns why raft must not install a snapshot of the current term's leader now that ends at index.
func (c RaftCallbacks) CheckSnapshot(leader, index, term uint64) error {
	end := raftnode.LogPosition{Index: index, Term: term}
	return c.n.checkSnapshot(c.Instance, raftnode.OfferedSnapshot{Leader: leader, End: end})
}
