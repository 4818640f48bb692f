package storage

import (
	"fmt"

	"github.com/hashicorp/raft"
)

// guardedStable is a raft.StableStore.
type guardedStable struct {
	guard *Guarded
	store raft.StableStore
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

// RecordVote stores term and vote durably, in one record if the storage can. Otherwise it stores the term
// first, as Raft itself does. An error is fatal.
func (s *guardedStable) RecordVote(term, voteTerm uint64, candidate []byte) error {
	return s.write([]byte(keyLastVoteCand), func() error {
		if both, ok := s.store.(VoteStore); ok {
			return both.RecordVote(term, voteTerm, candidate)
		}
		if err := s.store.SetUint64([]byte(keyCurrentTerm), term); err != nil {
			return err
		}
		if err := s.store.SetUint64([]byte(keyLastVoteTerm), voteTerm); err != nil {
			return err
		}
		return s.store.Set([]byte(keyLastVoteCand), candidate)
	})
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
