package raftnode

import (
	"errors"

	"github.com/hashicorp/raft"
)

// snapshotLog is the log of one raft.Raft. After a restore, or an installed snapshot, the log does not continue the
// newest snapshot: in place of the snapshot's last entry it has nothing. An earlier build may have left an entry of a
// deposed leader there. Then
//
//   - what precedes that entry is not of the cluster's log, and cannot be read;
//   - nothing is compacted before an entry after the snapshot is applied. Until then the restore may be abandoned, and
//     the next start needs what the snapshot before does not hold.
//
// Snapshots.Create deletes such entries before the log continues a newer snapshot.
type snapshotLog struct {
	raft.LogStore
	snaps *Snapshots
	// leadsWithSnapshot reports whether raft.Raft leads, and has the newest snapshot. While a leader restores a backup
	// it has not, and its log is what came before.
	leadsWithSnapshot func() bool
}

// GetLog reads an entry.
func (l *snapshotLog) GetLog(index uint64, out *raft.Log) error {
	if l.snaps.replaced(index, l.leadsWithSnapshot) {
		return raft.ErrLogNotFound
	}
	return l.LogStore.GetLog(index, out)
}

// DeleteRange deletes entries. It deletes none while the newest snapshot may be abandoned, unless they are the end of
// the log.
func (l *snapshotLog) DeleteRange(from, to uint64) error {
	last, err := l.LastIndex()
	if err != nil {
		return err
	}
	if to < last && l.snaps.mayBeAbandoned() {
		return nil
	}
	return l.LogStore.DeleteRange(from, to)
}

// continued reports whether the log holds the last entry of the snapshot that ends at p, or begins after it.
func (s *Snapshots) continued(p LogPosition) (yes bool, err error) {
	if known := s.continuedAt.Load(); known != nil && *known == p {
		return true, nil
	}
	first, err := s.log.FirstIndex()
	if err != nil {
		return false, err
	}
	var e raft.Log
	switch err := s.log.GetLog(p.Index, &e); {
	case err == nil:
		yes = e.Term == p.Term
	case errors.Is(err, raft.ErrLogNotFound):
		yes = first > p.Index
	default:
		return false, err
	}
	if yes {
		s.continuedAt.Store(&p)
	}
	return yes, nil
}

// replaced reports whether an entry precedes the end of the newest snapshot in a log that does not continue that: it
// may be of a deposed leader. Only a leader cannot read the log's last entry then: raft.Raft reads it when it starts.
func (s *Snapshots) replaced(index uint64, leadsWithSnapshot func() bool) bool {
	p := s.newest.Load()
	if p == nil || index > p.Index {
		return false
	}
	if yes, err := s.continued(*p); yes || err != nil {
		return false
	}
	last, err := s.log.LastIndex()
	return err == nil && p.Index < last || leadsWithSnapshot()
}

// mayBeAbandoned reports whether the newest snapshot may be of a restore that is never committed.
func (s *Snapshots) mayBeAbandoned() bool {
	p := s.newest.Load()
	if p == nil || s.fsm.Applied() > p.Index {
		return false
	}
	yes, err := s.continued(*p)
	return err != nil || !yes
}

// discardReplaced deletes the log up to the newest snapshot, if the log does not continue it, and that snapshot is
// committed: an entry after it is applied.
func (s *Snapshots) discardReplaced() error {
	p := s.newest.Load()
	if p == nil || s.fsm.Applied() <= p.Index {
		return nil
	}
	if yes, err := s.continued(*p); yes || err != nil {
		return err
	}
	first, err := s.log.FirstIndex()
	if err != nil || first == 0 || first > p.Index {
		return err
	}
	return s.deleteRange(first, p.Index)
}
