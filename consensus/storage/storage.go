// Package storage keeps a node's durable data: the Raft log, the vote, the snapshots and a few small files in
// one locked directory (Dir). Its guard (Guarded) wraps any Storage, and reports slow, full and failing disks
// in a form on which the node can act. DESIGN.md explains the design.
package storage

import (
	"errors"
	"fmt"

	"github.com/hashicorp/raft"
)

// Storage is where consensus keeps its data. Methods may be called from any goroutine.
type Storage interface {
	// Log returns the Raft log. What StoreLogs and DeleteRange have done without an error survives a crash.
	Log() raft.LogStore
	// Stable returns the store of term and vote. An unknown key is an error with exactly the text "not
	// found", which the Raft library compares.
	Stable() VoteStore
	// Snapshots returns the store of snapshots. One exists when the Close of its sink has returned nil.
	Snapshots() raft.SnapshotStore
	// Load reads a small file written by Save. The error is fs.ErrNotExist if there is none, and a
	// *DamagedError if its content is not what Save wrote.
	Load(name string) ([]byte, error)
	// Save replaces a small file, atomically and durably. The name is a plain file name.
	Save(name string, data []byte) error
	// SetAside makes the next opening move all data, also what is written until then, out of the way under the name
	// aside, and start with only one small file. That is durable when it returns without an error.
	SetAside(aside, file string, data []byte) error
	// Space returns the disk space under the storage.
	Space() Space
	// Close ends the use of the storage. Nothing may be in use by then.
	Close() error
}

// Space is disk space, part of which a storage occupies as a reserve. Methods may be called from any
// goroutine, but only one change of the reserve may run at a time.
type Space interface {
	// Free returns the free bytes of the file system for this process, without the reserve.
	Free() (uint64, error)
	// Reserve returns the size in bytes of the reserve, 0 for none, and reports whether it is held now.
	Reserve() (size uint64, held bool)
	// HoldReserve occupies the reserve's space. Without enough space it fails and occupies nothing.
	HoldReserve() error
	// ReleaseReserve returns the reserve's space to the file system.
	ReleaseReserve() error
}

// VoteStore is a raft.StableStore that records a term together with a vote.
type VoteStore interface {
	raft.StableStore
	// RecordVote makes the current term, and a vote for candidate in voteTerm, durable in one record. After a
	// crash the storage has both or neither.
	RecordVote(term, voteTerm uint64, candidate []byte) error
}

// SnapshotRemover is a raft.SnapshotStore that can remove a snapshot durably, like those of Dir and Guarded.
type SnapshotRemover interface {
	Remove(id string) error
}

// ErrClosed is the error of every operation after Close.
var ErrClosed = errors.New("storage is closed")

// ErrReadOnly is the error of the start of a snapshot while the node is read-only for lack of disk space.
var ErrReadOnly = errors.New("the disk has less space left than disk.reserve keeps free")

// errNotFound has the text that the Raft library compares (api.go, raft.go).
var errNotFound = errors.New("not found")

// DamagedError reports that a file is not what was written: truncated, overwritten or with flipped bits.
type DamagedError struct {
	Path string // the file, or the directory of a snapshot
	What string // the defect
}

// Error returns the file's name and what to do about it.
func (e *DamagedError) Error() string {
	return fmt.Sprintf(
		"%s is damaged: %s; this node's data cannot be used: restore it, or clear the data directory and have an operator re-admit the node", e.Path, e.What)
}

// LockedError reports that another process uses the data directory.
type LockedError struct {
	Dir string
}

// Error returns the directory's name.
func (e *LockedError) Error() string {
	return fmt.Sprintf("data directory %s: another process holds its lock", e.Dir)
}
