// Package storage is a node's durable data: the Raft log, the vote, the
// snapshots and a few small files in one locked directory (Dir), and a guard
// (Guarded) that goes over any Storage and turns slow, full and failing disks
// into something the node can act on. DESIGN.md says why it has this shape.
package storage

import (
	"errors"
	"fmt"

	"github.com/hashicorp/raft"
)

// Storage is what consensus keeps its data in. Dir is the real one; a
// simulation brings its own. Methods may be called from any goroutine.
type Storage interface {
	// Log holds the Raft log. Whatever StoreLogs or DeleteRange has answered
	// without an error survives a crash.
	Log() raft.LogStore
	// Stable holds term and vote. An unknown key is an error with exactly the
	// text "not found", which the Raft library compares.
	Stable() raft.StableStore
	// Snapshots holds the state machine's snapshots; one exists from the
	// moment its sink's Close has returned nil.
	Snapshots() raft.SnapshotStore
	// Load reads a small file written by Save. The error is fs.ErrNotExist
	// when there is none, and a *DamagedError when its content is not what
	// Save wrote.
	Load(name string) ([]byte, error)
	// Save replaces a small file, atomically and durably. The name is a plain
	// file name.
	Save(name string, data []byte) error
	// SetAside makes the next opening of this storage move all that it holds out
	// of the way, under the name aside, and begin with nothing but one small file.
	// That is durable, and nothing else has changed, when it returns without an
	// error; what is written afterwards is set aside with the rest.
	SetAside(aside, file string, data []byte) error
	// Space is the disk space under the storage.
	Space() Space
	// Close ends the use of the storage. Nothing may be in use by then.
	Close() error
}

// Space is disk space, part of which a storage occupies as a reserve. Methods
// may be called from any goroutine, one change of the reserve at a time.
type Space interface {
	// Free returns the bytes that the file system has left for this process,
	// without the reserve.
	Free() (uint64, error)
	// Reserve returns the size in bytes of the reserve, 0 for none, and reports
	// whether it is held now.
	Reserve() (size uint64, held bool)
	// HoldReserve occupies the reserve's space; without enough space it fails
	// and occupies nothing.
	HoldReserve() error
	// ReleaseReserve gives the reserve's space back to the file system.
	ReleaseReserve() error
}

// VoteStore is a raft.StableStore that records a term together with a vote.
type VoteStore interface {
	raft.StableStore
	// RecordVote makes the current term, and a vote for candidate in voteTerm,
	// durable in one record: after a crash there are both or neither.
	RecordVote(term, voteTerm uint64, candidate []byte) error
}

// SnapshotRemover is a raft.SnapshotStore from which a snapshot can be removed,
// durably. Those of Dir and of Guarded are.
type SnapshotRemover interface {
	Remove(id string) error
}

// ErrClosed answers every operation after Close.
var ErrClosed = errors.New("storage is closed")

// ErrReadOnly answers the start of a snapshot while the disk has less than
// the reserve left.
var ErrReadOnly = errors.New("the disk has less space left than disk.reserve keeps free")

// errNotFound has the text that the Raft library compares (api.go, raft.go).
var errNotFound = errors.New("not found")

// DamagedError says that a file of the data directory is not what was
// written: truncated, overwritten or with flipped bits.
type DamagedError struct {
	Path string // the file, or the directory of a snapshot
	What string // what is wrong with it
}

// Error names the file and what to do about it.
func (e *DamagedError) Error() string {
	return fmt.Sprintf(
		"%s is damaged: %s; this node's data cannot be used: restore it, or clear the data directory and have an operator re-admit the node", e.Path, e.What)
}

// LockedError says that another process uses the data directory.
type LockedError struct {
	Dir string
}

// Error names the directory.
func (e *LockedError) Error() string {
	return fmt.Sprintf("data directory %s: another process holds its lock", e.Dir)
}
