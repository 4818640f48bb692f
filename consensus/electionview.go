package consensus

import (
	"errors"
	"fmt"

	"github.com/hashicorp/raft"

	"northstar/consensus/raftnode"
	"northstar/state"
)

// ElectionView returns the View by which this node decides whether it may start an election: only its members,
// settings and last leader-start count. It is View, except after a restart: until a leader has told this node what is
// committed, it is what the log holds, committed or not.
//
// The newest entry counts for two reasons. A node that is elected commits its whole log, so that is what applies while
// it leads. And every node that can be elected has every committed entry in its log, so no restart undoes a pause. An
// entry that was never committed holds back only nodes that have it, and no operator's order.
func (n *Node) ElectionView() *state.View {
	v := n.View()
	if ahead := n.ahead.Load(); ahead != nil && v.AppliedIndex() < ahead.AppliedIndex() {
		return ahead
	}
	return v
}

// lookAhead sets what ElectionView returns after a restart. It reads the log behind the newest snapshot. inst has
// restored that, and is not bound to the transport yet.
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
