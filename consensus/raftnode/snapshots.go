package raftnode

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/raft"
)

// LogPosition is an index of the log with its term.
type LogPosition struct {
	Index uint64 `json:"index"`
	Term  uint64 `json:"term"`
}

// endsSnapshot reports whether a snapshot ends at p.
func (p LogPosition) endsSnapshot(m *raft.SnapshotMeta) bool {
	return p == LogPosition{m.Index, m.Term}
}

// Snapshots refuses to fall back, at start, to a snapshot that the log does not continue: raft.Raft would panic at the
// next commit. It tells the FSM the index of the snapshot's configuration, and keeps where the newest snapshot ends.
type Snapshots struct {
	raft.SnapshotStore
	log    raft.LogStore
	fsm    *FSM
	newest atomic.Pointer[LogPosition] // nil: none; written under recording

	newestSize atomic.Int64 // bytes of the newest snapshot

	continuedAt atomic.Pointer[LogPosition] // the end of a snapshot that the log is known to continue; nil: none
	recording   sync.Mutex
	// ownRecordSem is held from the record of a snapshot that raft.Raft takes itself until raft.Raft has ended with it.
	ownRecordSem chan struct{}               // capacity 1
	deleteRange  func(from, to uint64) error // deletes entries; Start sets it to that of raft.Raft's log
}

// OpenSnapshots removes what is left of the restore that ended at undone, and without which the cluster has gone on. It
// is called before Start.
func OpenSnapshots(store raft.SnapshotStore, log raft.LogStore, fsm *FSM, undone LogPosition) (*Snapshots, error) {
	s := &Snapshots{
		SnapshotStore: store, log: log, fsm: fsm, deleteRange: log.DeleteRange, ownRecordSem: make(chan struct{}, 1),
	}
	fsm.snapshotEnd.Store(0)
	list, err := s.List()
	if err != nil {
		return nil, fmt.Errorf("list snapshots: %w", err)
	}
	if err := s.checkUndo(list, undone); err != nil {
		return nil, err
	}
	// The log first: without the snapshot it would have a hole, and the data directory would be taken for damaged.
	if err := s.truncate(undone, list); err != nil {
		return nil, err
	}
	for _, m := range list {
		if !undone.endsSnapshot(m) {
			if s.newest.Load() == nil {
				s.record(LogPosition{m.Index, m.Term}, m.Size)
			}
			continue
		}
		store, ok := s.SnapshotStore.(remover)
		if !ok {
			return nil, fmt.Errorf("snapshot %s is of an abandoned restore and this storage cannot remove it", m.ID)
		}
		if err := store.Remove(m.ID); err != nil {
			return nil, fmt.Errorf("remove the snapshot of an abandoned restore: %w", err)
		}
	}
	return s, nil
}

// checkUndo fails if the log does not reach back to the snapshot before the undone restore: that one is lost, and
// nothing has what is between. Then nothing is removed, and every start fails with this error.
func (s *Snapshots) checkUndo(list []*raft.SnapshotMeta, undone LogPosition) error {
	if !slices.ContainsFunc(list, undone.endsSnapshot) {
		return nil
	}
	before := uint64(0)
	if i := slices.IndexFunc(list, func(m *raft.SnapshotMeta) bool { return !undone.endsSnapshot(m) }); i >= 0 {
		before = list[i].Index
	}
	first, err := s.log.FirstIndex()
	if err != nil {
		return fmt.Errorf("read the log: %w", err)
	}
	if first > before+1 && first <= undone.Index {
		return fmt.Errorf("the restore that ended at %d is abandoned, and the log, which begins at %d, continues no other "+
			"snapshot: clear the data directory and have the node re-admitted", undone.Index, first)
	}
	return nil
}

// truncate takes the entries that followed an undone restore out of the log. They may be of any later term: a node that
// held the restore may have led. Nothing of the leader that the cluster went on with is stored before.
//
// While the snapshot of the restore exists, this has not been done. Without that snapshot, which can be damaged, a hole
// at its end shows the same. But a snapshot that the leader has sent since leaves such a hole, too. What follows it is
// of the cluster's log, and acknowledged.
func (s *Snapshots) truncate(undone LogPosition, list []*raft.SnapshotMeta) error {
	last, err := s.log.LastIndex()
	if err != nil {
		return fmt.Errorf("read the log: %w", err)
	}
	exists := slices.ContainsFunc(list, undone.endsSnapshot)
	if i := slices.IndexFunc(list, func(m *raft.SnapshotMeta) bool {
		return m.Index >= undone.Index && !undone.endsSnapshot(m)
	}); i >= 0 {
		if !exists {
			return nil
		}
		last = min(last, list[i].Index)
	}
	if undone.Index == 0 || last < undone.Index {
		return nil
	}
	if !exists {
		first, err := s.log.FirstIndex()
		if err != nil {
			return fmt.Errorf("read the log: %w", err)
		}
		err = s.log.GetLog(undone.Index, &raft.Log{})
		if err == nil || errors.Is(err, raft.ErrLogNotFound) && first > undone.Index {
			return nil // done before
		}
		if !errors.Is(err, raft.ErrLogNotFound) {
			return fmt.Errorf("read log entry %d: %w", undone.Index, err)
		}
	}
	return s.log.DeleteRange(undone.Index, last)
}

// Create starts a snapshot.
func (s *Snapshots) Create(version raft.SnapshotVersion, index, term uint64,
	c raft.Configuration, cIndex uint64, t raft.Transport,
) (raft.SnapshotSink, error) {
	if err := s.discardReplaced(); err != nil {
		return nil, fmt.Errorf("delete the log before snapshot %d: %w", s.newestIndex(), err)
	}
	sink, err := s.SnapshotStore.Create(version, index, term, c, cIndex, t)
	if err != nil {
		return nil, err
	}
	return &recordingSink{SnapshotSink: sink, snaps: s, end: LogPosition{index, term}}, nil
}

// errNewerSnapshot is why a snapshot fails that raft.Raft takes itself. raft.Raft writes it beside its main loop, which
// may have restored or installed another one meanwhile, and would take its own for the newest. As a leader it would
// then find nothing to precede the first entry after the newest, and send that snapshot to every follower without end.
// For the same reason a restored or installed one ends only once raft.Raft has taken note of its own: see ownRecordSem.
var errNewerSnapshot = errors.New("a newer snapshot was stored in the meantime")

type recordingSink struct {
	raft.SnapshotSink
	snaps *Snapshots
	end   LogPosition
	size  int64
	own   bool // raft.Raft takes it itself
	holds bool // ownRecordSem
}

// Write adds data to the snapshot.
func (s *recordingSink) Write(p []byte) (int, error) {
	n, err := s.SnapshotSink.Write(p)
	s.size += int64(n)
	return n, err
}

// Close ends the snapshot. It fails if there is a newer one.
func (s *recordingSink) Close() error {
	if err := s.SnapshotSink.Close(); err != nil {
		return err
	}
	if !s.holds {
		s.snaps.ownRecordSem <- struct{}{}
		s.holds = true
	}
	if !s.own {
		defer s.release()
	}
	if !s.snaps.record(s.end, s.size) {
		return errNewerSnapshot
	}
	return s.snaps.removeOld()
}

// release ends what Close began. For raft.Raft's own snapshot it is called when raft.Raft has ended with it.
func (s *recordingSink) release() {
	if s.holds {
		s.holds = false
		<-s.snaps.ownRecordSem
	}
}

// keptSnapshots is how many snapshots are always kept: the older one is for the case that the newest is damaged.
const keptSnapshots = 2

// remover is a raft.SnapshotStore that can remove a snapshot durably.
type remover interface{ Remove(id string) error }

// removeOld removes the snapshots that no start needs. The newest one that the log continues is needed, and those after
// it: each may be of a restore that is abandoned, also several in a row. Of those that end at one place the newest is
// enough: a leader repeats a snapshot that this node cannot read, and the storage would drop good ones for the copies.
func (s *Snapshots) removeOld() error {
	store, ok := s.SnapshotStore.(remover)
	if !ok {
		return nil
	}
	list, err := s.List()
	if err != nil {
		return fmt.Errorf("list snapshots: %w", err)
	}
	needless := false
	for i, m := range list {
		end := LogPosition{m.Index, m.Term}
		remove := needless && i >= keptSnapshots
		if !needless {
			if remove = i > 0 && end.endsSnapshot(list[i-1]); !remove {
				needless, err = s.continued(end)
			}
		}
		if err != nil {
			return fmt.Errorf("read the log: %w", err)
		}
		if remove {
			if err := store.Remove(m.ID); err != nil {
				return fmt.Errorf("remove an old snapshot: %w", err)
			}
		}
	}
	return nil
}

// Open opens a snapshot that the log reaches back to.
func (s *Snapshots) Open(id string) (*raft.SnapshotMeta, io.ReadCloser, error) {
	meta, r, err := s.SnapshotStore.Open(id)
	if err != nil {
		return nil, nil, err
	}
	first, err := s.log.FirstIndex()
	if err == nil && first > meta.Index+1 {
		err = fmt.Errorf("snapshot %s ends at %d and the log begins at %d: a newer snapshot is missing or damaged; "+
			"clear the data directory and have the node re-admitted", id, meta.Index, first)
	}
	if err != nil {
		return nil, nil, errors.Join(err, r.Close())
	}
	s.fsm.sawConfiguration(meta.ConfigurationIndex)
	return meta, r, nil
}

func (s *Snapshots) newestIndex() uint64 {
	if p := s.newest.Load(); p != nil {
		return p.Index
	}
	return 0
}

// record makes p the end of the newest snapshot, which has size bytes. It reports false if there is a newer one.
func (s *Snapshots) record(p LogPosition, size int64) bool {
	s.recording.Lock()
	defer s.recording.Unlock()
	if s.newestIndex() > p.Index {
		return false
	}
	s.newestSize.Store(size)
	s.newest.Store(&p)
	s.fsm.snapshotEnd.Store(p.Index)
	return true
}

// endsAt reports whether the newest snapshot ends at p.
func (s *Snapshots) endsAt(p LogPosition) bool {
	newest := s.newest.Load()
	return newest != nil && *newest == p
}

// conflictsWithNewest reports whether an entry is not of the log that the newest snapshot, which ends at p, is of.
// Terms only grow along a log.
func (s *Snapshots) conflictsWithNewest(index, term uint64) (p LogPosition, yes bool) {
	newest := s.newest.Load()
	if newest == nil {
		return p, false
	}
	p = *newest
	return p, index == p.Index && term != p.Term || index < p.Index && term > p.Term
}
