package consensus

import (
	"errors"
	"fmt"

	"github.com/hashicorp/raft"

	"northstar/consensus/raftnode"
	"northstar/state"
)

// ElectionView returns the View by which this node decides whether it may start an election: only its members,
// settings and last leader-start count. It is View, except after a restart: until View has reached what the log held
// then, it is that, committed or not. Entries that a leader has overwritten no longer count.
//
// The newest entry counts for two reasons. A node that is elected commits its whole log, so that is what applies while
// it leads. And every node that can be elected has every committed entry in its log, so no restart undoes a pause. An
// entry that was never committed holds back only nodes that have it, and no operator's request.
func (n *Node) ElectionView() *state.View {
	v := n.View()
	if ahead := n.ahead.Load(); ahead != nil && v.AppliedIndex() < ahead.AppliedIndex() {
		return ahead
	}
	return v
}

// lookAhead sets what ElectionView returns after a restart. It reads the log behind the newest snapshot and View. inst
// has restored that snapshot.
func (n *Node) lookAhead(inst *raftnode.Instance) error {
	ahead, log := n.View(), n.store.Log()
	last, err := log.LastIndex()
	if err != nil {
		return fmt.Errorf("read the log: %w", err)
	}
	for index := max(ahead.AppliedIndex(), inst.SnapshotIndex()) + 1; index <= last; index++ {
		var e raft.Log
		switch err := log.GetLog(index, &e); {
		case errors.Is(err, raft.ErrLogNotFound):
			continue // deleted meanwhile
		case err != nil:
			return fmt.Errorf("read log entry %d: %w", index, err)
		case e.Type != raft.LogCommand:
			continue
		}
		next, err := ahead.LookAhead(e.Index, e.Term, e.Data)
		if err != nil { // if it is committed, this node stops when it applies it
			n.log.Warn("cannot read a log entry that may be uncommitted", "index", index, "error", err)
			continue
		}
		ahead = next
	}
	n.ahead.Store(ahead)
	return nil
}

// aheadState is what has become of the newest entry that lookAhead has found.
type aheadState int

const (
	aheadPending     aheadState = iota // it is in the log, and not applied
	aheadApplied                       // View has reached it
	aheadOverwritten                   // it is no longer in the log
)

// checkAhead compares that entry, of aheadTerm, with View and with the log's entry at its index, of logTerm, 0 if there
// is none. A commit index that a leader has sent proves nothing: it may be lower than what is committed.
func checkAhead(applied, ahead, aheadTerm, logTerm uint64) aheadState {
	switch {
	case applied >= ahead:
		return aheadApplied
	case logTerm != aheadTerm:
		return aheadOverwritten
	}
	return aheadPending
}

// updateAhead ends the use of what lookAhead has found when View has reached it, and looks again if a leader has
// overwritten it. Otherwise a pause that was never committed would hold this node back, perhaps for ever, or an end of
// a pause that was never committed would let it start elections.
func (n *Node) updateAhead(inst *raftnode.Instance) {
	ahead := n.ahead.Load()
	if ahead == nil {
		return
	}
	var e raft.Log
	if err := n.store.Log().GetLog(ahead.AppliedIndex(), &e); err != nil && !errors.Is(err, raft.ErrLogNotFound) {
		return // the storage reports it
	}
	// View is read after the log: an entry that is deleted because a snapshot holds it is in View before.
	switch checkAhead(n.View().AppliedIndex(), ahead.AppliedIndex(), ahead.AppliedTerm(), e.Term) {
	case aheadApplied:
		n.ahead.Store(nil)
	case aheadOverwritten:
		if err := n.lookAhead(inst); err != nil {
			n.log.Warn("cannot read the log", "error", err)
		}
	}
}
