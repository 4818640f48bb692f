package consensus

import (
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"northstar/consensus/storage"
)

// logPoint is an index of the log with its term.
type logPoint struct {
	Index uint64 `json:"index"`
	Term  uint64 `json:"term"`
}

// checkedSnapshots refuses to fall back, at start, to a snapshot that the log
// does not continue: the library would panic at the next commit. It keeps the
// configuration index that the snapshot carries, and where the newest one ends.
type checkedSnapshots struct {
	raft.SnapshotStore
	log    raft.LogStore
	config *atomic.Uint64
	newest atomic.Pointer[logPoint] // nil: none
}

// discardAbandonedRestore removes what is left of a restore that the cluster has gone on without,
// and looks where the newest snapshot ends. To be called before Raft starts.
func (s *checkedSnapshots) discardAbandonedRestore(undone logPoint) error {
	list, err := s.List()
	if err != nil {
		return fmt.Errorf("list snapshots: %w", err)
	}
	for _, m := range list {
		if p := (logPoint{m.Index, m.Term}); p != undone {
			s.newest.CompareAndSwap(nil, &p)
			continue
		}
		store, ok := s.SnapshotStore.(storage.SnapshotRemover)
		if !ok {
			return fmt.Errorf("snapshot %s was undone and this storage cannot remove it", m.ID)
		}
		if err := store.Remove(m.ID); err != nil {
			return fmt.Errorf("remove the snapshot of an undone restore: %w", err)
		}
	}
	return s.truncate(undone)
}

// truncate takes the entries that followed an undone restore out of the log.
func (s *checkedSnapshots) truncate(undone logPoint) error {
	last, err := s.log.LastIndex()
	if err != nil {
		return fmt.Errorf("read the log: %w", err)
	}
	if undone.Index == 0 || last < undone.Index {
		return nil
	}
	var e raft.Log
	if err := s.log.GetLog(last, &e); err != nil {
		return fmt.Errorf("read log entry %d: %w", last, err)
	}
	if e.Term > undone.Term {
		return nil // done before; these are of the leader that the cluster went on with
	}
	return s.log.DeleteRange(undone.Index, last)
}

// Create starts a snapshot.
func (s *checkedSnapshots) Create(version raft.SnapshotVersion, index, term uint64, c raft.Configuration, cIndex uint64, t raft.Transport) (raft.SnapshotSink, error) {
	sink, err := s.SnapshotStore.Create(version, index, term, c, cIndex, t)
	if err != nil {
		return nil, err
	}
	return &recordingSink{sink, func() { s.newest.Store(&logPoint{index, term}) }}, nil
}

type recordingSink struct {
	raft.SnapshotSink
	done func()
}

// Close ends the snapshot.
func (s *recordingSink) Close() error {
	err := s.SnapshotSink.Close()
	if err == nil {
		s.done()
	}
	return err
}

// Open opens a snapshot that the log reaches back to.
func (s *checkedSnapshots) Open(id string) (*raft.SnapshotMeta, io.ReadCloser, error) {
	meta, r, err := s.SnapshotStore.Open(id)
	if err != nil {
		return nil, nil, err
	}
	first, err := s.log.FirstIndex()
	if err == nil && first > meta.Index+1 {
		err = fmt.Errorf("snapshot %s ends at %d and the log begins at %d: a newer snapshot is missing or damaged; clear the data directory and have the node re-admitted", id, meta.Index, first)
	}
	if err != nil {
		return nil, nil, errors.Join(err, r.Close())
	}
	s.config.Store(max(s.config.Load(), meta.ConfigurationIndex))
	return meta, r, nil
}

func (s *checkedSnapshots) newestIndex() uint64 {
	if p := s.newest.Load(); p != nil {
		return p.Index
	}
	return 0
}

// conflictsWithNewest says that an entry is not of the log that the newest snapshot,
// which ends at p, is of. Terms only grow along a log.
func (s *checkedSnapshots) conflictsWithNewest(index, term uint64) (p logPoint, yes bool) {
	newest := s.newest.Load()
	if newest == nil {
		return p, false
	}
	p = *newest
	return p, index == p.Index && term != p.Term || index < p.Index && term > p.Term
}

// checkEntry ends this node when the leader of the current term has another
// history than its newest snapshot. A committed one would be that leader's too,
// so it is that of a restore: the library replaces the leader's state first and
// asks the others then, and each of them replaces its own before a majority has.
// When the cluster goes on without it, whoever took it would keep a state that
// never was, and skip the entries that were committed in its place.
func (n *Node) checkEntry(snaps *checkedSnapshots, index, term uint64) error {
	p, yes := snaps.conflictsWithNewest(index, term)
	if !yes {
		return nil
	}
	err := n.ident.update(func(f *identityFile) (bool, error) {
		changed := f.AbandonedRestore != p
		f.AbandonedRestore = p
		return changed, nil
	})
	if err != nil {
		err = fmt.Errorf("note an undone restore: %w", err)
	} else {
		err = fmt.Errorf("the cluster has gone on without the restored backup that this node holds (index %d of term %d): it is undone at the next start", p.Index, p.Term)
	}
	n.fail(err)
	return err
}

const (
	// firstSnapshotDivisor is which part of snapshot.interval passes before the library
	// looks for the first time, or twice that. It begins to count anew with each
	// start: of a node that is started again more often than that no log would ever
	// be compacted, and each start would read more of it, and vote later.
	firstSnapshotDivisor = 24

	minSnapshotInterval = 5 * time.Millisecond // the library's
)

// resetSnapshotInterval lets the library look every snapshot.interval, once it has begun
// to wait for the first time.
func (n *Node) resetSnapshotInterval(inst *raftInstance) {
	if inst.shortSnapshotIntervalUntil.IsZero() || n.now().Before(inst.shortSnapshotIntervalUntil) {
		return
	}
	inst.shortSnapshotIntervalUntil = time.Time{}
	conf := inst.raft.ReloadableConfig()
	conf.SnapshotInterval = n.cfg.SnapshotInterval
	if err := inst.raft.ReloadConfig(conf); err != nil {
		n.log.Error("cannot set the interval of snapshots", "error", err)
	}
}
