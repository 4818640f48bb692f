package storage

import (
	"errors"
	"io"
	"sync/atomic"

	"github.com/hashicorp/raft"
)

// guardedSnapshots is a raft.SnapshotStore that counts bytes and starts no snapshot on a full disk. A
// snapshot may take any time, so it does not count as an operation of the disk.
type guardedSnapshots struct {
	guard *Guarded
	store raft.SnapshotStore
}

// Create starts a snapshot. The error is ErrReadOnly while the node is read-only.
func (s *guardedSnapshots) Create(version raft.SnapshotVersion, index, term uint64, configuration raft.Configuration,
	configurationIndex uint64, trans raft.Transport,
) (raft.SnapshotSink, error) {
	if s.guard.isClosed() {
		return nil, ErrClosed
	}
	if err := s.guard.Err(); err != nil {
		return nil, err
	}
	if s.guard.ReadOnly() {
		return nil, ErrReadOnly
	}
	sink, err := s.store.Create(version, index, term, configuration, configurationIndex, trans)
	if err != nil {
		return nil, err
	}
	return &countedSink{sink, &s.guard.progress}, nil
}

// List returns the snapshots, newest first.
func (s *guardedSnapshots) List() ([]*raft.SnapshotMeta, error) { return s.store.List() }

// Open opens a snapshot for reading.
func (s *guardedSnapshots) Open(id string) (*raft.SnapshotMeta, io.ReadCloser, error) {
	meta, r, err := s.store.Open(id)
	if err != nil {
		return nil, nil, err
	}
	return meta, &countedReader{r, &s.guard.progress}, nil
}

// Remove removes a snapshot, if the store can.
func (s *guardedSnapshots) Remove(id string) error {
	store, ok := s.store.(SnapshotRemover)
	if !ok {
		return errors.New("this store cannot remove snapshots")
	}
	return store.Remove(id)
}

type countedSink struct {
	raft.SnapshotSink
	count *atomic.Uint64
}

func (s *countedSink) Write(p []byte) (int, error) {
	n, err := s.SnapshotSink.Write(p)
	s.count.Add(uint64(n))
	return n, err
}

type countedReader struct {
	io.ReadCloser
	count *atomic.Uint64
}

func (r *countedReader) Read(p []byte) (int, error) {
	n, err := r.ReadCloser.Read(p)
	r.count.Add(uint64(n))
	return n, err
}
