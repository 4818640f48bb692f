package storage

import (
	"errors"
	"fmt"

	"github.com/hashicorp/raft"
)

// maxStoreBatch bounds the size of one call of the store's StoreLogs, except for a single larger entry. A
// call is one disk operation, and a long one delays Raft's main loop.
const maxStoreBatch = 1 << 20

// guardedLog is a raft.LogStore. It must not be a raft.MonotonicLogStore: after an installed snapshot the
// Raft library may leave a gap in the log.
type guardedLog struct {
	guard *Guarded
	store raft.LogStore
}

// FirstIndex returns the first index stored, 0 for an empty log.
func (l *guardedLog) FirstIndex() (uint64, error) { return l.store.FirstIndex() }

// LastIndex returns the last index stored, 0 for an empty log.
func (l *guardedLog) LastIndex() (uint64, error) { return l.store.LastIndex() }

// GetLog reads an entry. If the entry is not what was stored, that is fatal.
func (l *guardedLog) GetLog(index uint64, out *raft.Log) error {
	if l.guard.cache.get(index, out) {
		return nil
	}
	var e raft.Log
	err := l.guard.timed(OpRead, func() error { return l.store.GetLog(index, &e) })
	if errors.Is(err, raft.ErrLogNotFound) {
		return raft.ErrLogNotFound // compared by ==
	}
	if err == nil {
		err = verifyChecksum(index, &e)
	}
	if err != nil {
		err = fmt.Errorf("read log entry %d: %w", index, err)
		l.guard.fail(err)
		l.guard.blockUntilClosed()
		return err
	}
	*out = e
	return nil
}

// StoreLog stores one entry.
func (l *guardedLog) StoreLog(e *raft.Log) error { return l.StoreLogs([]*raft.Log{e}) }

// StoreLogs stores entries in calls of bounded size, and replaces those of the same index. An error is fatal,
// and a prefix of the entries may then be stored.
func (l *guardedLog) StoreLogs(entries []*raft.Log) error {
	for len(entries) > 0 {
		n := batchLen(entries)
		sealed := addChecksums(entries[:n])
		if err := l.guard.write(OpAppend, func() error { return l.store.StoreLogs(sealed) }); err != nil {
			l.guard.cache.clear()
			return l.failed(fmt.Errorf("store log entries %d to %d: %w", entries[0].Index, entries[n-1].Index, err))
		}
		l.guard.cache.add(entries[:n])
		entries = entries[n:]
	}
	return nil
}

// DeleteRange deletes the entries min to max. An error is fatal.
func (l *guardedLog) DeleteRange(min, max uint64) error {
	l.guard.cache.deleteRange(min, max)
	if err := l.guard.write(OpTruncate, func() error { return l.store.DeleteRange(min, max) }); err != nil {
		return l.failed(fmt.Errorf("delete log entries %d to %d: %w", min, max, err))
	}
	return nil
}

func (l *guardedLog) failed(err error) error {
	l.guard.fail(err)
	return err
}

// batchLen returns how many of the entries go into one call.
func batchLen(entries []*raft.Log) int {
	size := 0
	for i, e := range entries {
		size += entrySize(e)
		if size > maxStoreBatch && i > 0 {
			return i
		}
	}
	return len(entries)
}

// guardedStable is a raft.StableStore.
type guardedStable struct {
	guard *Guarded
	store VoteStore
}

// Get reads a key. The error is "not found" if it was never set.
func (s *guardedStable) Get(key []byte) ([]byte, error) { return s.store.Get(key) }

// GetUint64 reads a key. The error is "not found" if it was never set.
func (s *guardedStable) GetUint64(key []byte) (uint64, error) { return s.store.GetUint64(key) }

// Set stores a key durably. An error is fatal.
func (s *guardedStable) Set(key, val []byte) error {
	return s.write(key, func() error { return s.store.Set(key, val) })
}

// SetUint64 stores a key durably. An error is fatal.
func (s *guardedStable) SetUint64(key []byte, val uint64) error {
	return s.write(key, func() error { return s.store.SetUint64(key, val) })
}

// RecordVote stores term and vote durably, in one record. An error is fatal.
func (s *guardedStable) RecordVote(term, voteTerm uint64, candidate []byte) error {
	return s.write([]byte(keyLastVoteCand), func() error { return s.store.RecordVote(term, voteTerm, candidate) })
}

func (s *guardedStable) write(key []byte, f func() error) error {
	err := s.guard.write(OpVote, f)
	if err != nil {
		err = fmt.Errorf("store %s: %w", key, err)
		s.guard.fail(err)
		s.guard.blockUntilClosed()
	}
	return err
}
