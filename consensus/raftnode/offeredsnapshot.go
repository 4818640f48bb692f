package raftnode

import (
	"fmt"

	"github.com/hashicorp/raft"
)

// OfferedSnapshot is a snapshot that a leader sends. That leader's log is what the snapshot holds, and later entries.
type OfferedSnapshot struct {
	Leader uint64      // the leader's term
	End    LogPosition // of the snapshot
}

// HoldsConflicting reports whether this node's log has another entry at the end of the snapshot, and so everything from
// there on conflicts with the leader's log. raft.Raft keeps such entries when it installs the snapshot. It would go to
// elections with them, and match appends that continue them.
func (i *Instance) HoldsConflicting(s OfferedSnapshot) (bool, error) {
	if i.Raft.LastIndex() < s.End.Index {
		return false, nil
	}
	return s.conflicts(i.store)
}

func (s OfferedSnapshot) conflicts(log raft.LogStore) (bool, error) {
	var e raft.Log
	if err := log.GetLog(s.End.Index, &e); err != nil {
		return false, fmt.Errorf("read log entry %d: %w", s.End.Index, err)
	}
	return e.Term != s.End.Term, nil
}

// DeleteConflicting deletes the entries that conflict with the log of the snapshot's leader. They are not committed.
// raft.Raft must not run. If currentTerm, which the storage has, is a later one, nothing is deleted: this node may have
// acknowledged the entries to the leader of that term. Nor is anything if the newest snapshot ends later: this node has
// installed it in the meantime, and may have acknowledged what follows it.
func (s OfferedSnapshot) DeleteConflicting(log raft.LogStore, currentTerm, newest uint64) error {
	last, err := log.LastIndex()
	if err != nil || currentTerm != s.Leader || newest >= s.End.Index || last < s.End.Index {
		return err
	}
	if yes, err := s.conflicts(log); !yes || err != nil {
		return err
	}
	return log.DeleteRange(s.End.Index, last)
}
