package storage

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/hashicorp/raft"
)

// Inspection is the content of a stopped node's data directory, read without a change, and locked until Close.
type Inspection struct {
	CurrentTerm uint64
	VotedTerm   uint64 // 0: it never voted
	VotedFor    string // address of the candidate

	SnapshotIndex, SnapshotTerm uint64 // of the newest good snapshot; 0: none
	LastIndex, LastTerm         uint64 // of the last entry, in log or snapshot

	Configuration raft.Configuration // the latest, committed or not

	dir      string
	lock     *os.File
	snapshot string // ID of the newest good snapshot; "": none
}

// Inspect reads a data directory. It returns a *LockedError if a process uses it, and a *DamagedError if its
// content is not what was written. It returns os.ErrNotExist if the directory has no node's data.
func Inspect(dir string) (*Inspection, error) {
	for _, name := range []string{voteName, logName} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			return nil, fmt.Errorf("%s holds no node's data: %w", dir, err)
		}
	}
	lock, err := lockDir(dir)
	if err != nil {
		return nil, err
	}
	l := &Inspection{dir: dir, lock: lock}
	if err := l.read(); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

func (l *Inspection) read() error {
	if pending, err := exists(l.file(pendingResetName)); err != nil || pending {
		return errors.Join(err, fmt.Errorf("the data in %s is being set aside: start the node once", l.dir))
	}
	content, err := readBounded(l.file(voteName), 2*slotSize)
	if err != nil {
		return fmt.Errorf("read %s: %w", l.file(voteName), err)
	}
	vote, err := readVote(content)
	if err != nil {
		return &DamagedError{Path: l.file(voteName), What: err.Error()}
	}
	l.CurrentTerm = vote.currentTerm
	if vote.hasVote {
		l.VotedTerm, l.VotedFor = vote.voteTerm, string(vote.candidate)
	}
	found, err := scanSnapshots(l.file(snapshotsName))
	if err != nil {
		return fmt.Errorf("look through the snapshots: %w", err)
	}
	best := found.best()
	l.SnapshotIndex, l.SnapshotTerm, l.Configuration = best.Index, best.Term, best.Configuration
	l.snapshot = best.ID
	log, err := checkData(l.dir, found, l.CurrentTerm, l.onConfiguration)
	if err != nil {
		return err
	}
	l.LastIndex, l.LastTerm = best.Index, best.Term
	if last := log.spans.last(); last > best.Index {
		l.LastIndex, l.LastTerm = last, log.term
	}
	return nil
}

// onConfiguration records a configuration among the entries after the snapshot.
func (l *Inspection) onConfiguration(e raft.Log) error {
	conf, err := decodeConfiguration(e.Data)
	l.Configuration = conf
	return err
}

// decodeConfiguration is raft.DecodeConfiguration without its panic.
func decodeConfiguration(data []byte) (conf raft.Configuration, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("its configuration does not decode: %v", p)
		}
	}()
	return raft.DecodeConfiguration(data), nil
}

func (l *Inspection) file(name string) string { return filepath.Join(l.dir, name) }

// Snapshot opens the content of the newest good snapshot; nil if there is none.
func (l *Inspection) Snapshot() (io.ReadCloser, error) {
	if l.snapshot == "" {
		return nil, nil
	}
	return os.Open(filepath.Join(l.file(snapshotsName), l.snapshot, snapshotState))
}

// Load reads a small file; see Storage.
func (l *Inspection) Load(name string) ([]byte, error) { return loadFile(l.file(name)) }

// Save replaces a small file; see Storage.
func (l *Inspection) Save(name string, data []byte) error { return saveChecksummed(l.dir, name, data) }

// Close releases the directory.
func (l *Inspection) Close() error { return l.lock.Close() }
