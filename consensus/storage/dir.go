package storage

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	"golang.org/x/sys/unix"
)

// Options is the location and the settings of a data directory.
type Options struct {
	// Dir is the directory. Open creates it if it does not exist.
	Dir string
	// Reserve is the number of bytes that a preallocated file keeps free; 0 keeps none.
	Reserve uint64
	// Logger receives one line for each fact that an operator should know. Required.
	Logger hclog.Logger
}

// Dir is a locked, verified and opened data directory: a Storage on a file system. Its log must be written
// through a Guarded, because Open expects the guard's checksums in the entries.
type Dir struct {
	path      string
	lock      *os.File
	reserve   *reserveFile
	log       *boltLog
	vote      *voteFile
	snapshots *snapshots

	closeOnce sync.Once
	closeErr  error
}

// Open opens a data directory, and creates what a new one lacks. Errors: *LockedError if another process uses it,
// *DamagedError for damage, unless an older snapshot and the log cover the entries of a damaged snapshot.
func Open(o Options) (*Dir, error) {
	logger := o.Logger.Named("storage")
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("create data directory %s: %w", o.Dir, err)
	}
	lock, err := lockDir(o.Dir)
	if err != nil {
		return nil, err
	}
	d := &Dir{path: o.Dir, lock: lock}
	if err := d.open(o, logger); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

func (d *Dir) open(o Options, logger hclog.Logger) (err error) {
	if err := removeTemps(d.path); err != nil {
		return fmt.Errorf("clear data directory %s: %w", d.path, err)
	}
	if err := finishSetAside(d.path); err != nil {
		return fmt.Errorf("set the data in %s aside: %w", d.path, err)
	}
	if d.reserve, err = openReserve(d.file(reserveName), o.Reserve); err != nil {
		return err
	}
	err = d.openStores(logger)
	if _, held := d.reserve.Reserve(); err == nil || !held || !isNoSpace(err) {
		return err
	}
	// The disk is full except for the reserve, so the reserve is released here. The node starts, and the
	// first check of the space makes it read-only.
	if err := errors.Join(d.closeStores(), d.reserve.ReleaseReserve()); err != nil {
		return err
	}
	return d.openStores(logger)
}

func (d *Dir) openStores(logger hclog.Logger) error {
	if err := checkWritable(d.path); err != nil {
		return fmt.Errorf("data directory %s is not writable: %w", d.path, err)
	}
	found, err := scanSnapshots(d.file(snapshotsName))
	if err != nil {
		return fmt.Errorf("look through the snapshots: %w", err)
	}
	if err := d.create(found); err != nil {
		return err
	}
	if d.vote, err = openVote(d.file(voteName)); err != nil {
		return err
	}
	log, err := checkData(d.path, found, d.vote.durable.currentTerm, nil)
	if err != nil {
		return err
	}
	if d.log, err = openLog(d.file(logName), log); err != nil {
		return err
	}
	if err := found.removeUnusable(d.path, logger); err != nil {
		return fmt.Errorf("clear the snapshots: %w", err)
	}
	if d.snapshots, err = openSnapshots(d.path, logger); err != nil {
		return err
	}
	return errors.Join(syncDir(d.file(snapshotsName)), syncDir(d.path))
}

// create makes the files of a new data directory, the vote file last: if that exists, all others have existed.
func (d *Dir) create(found snapshotScan) error {
	haveVote, voteErr := exists(d.file(voteName))
	haveLog, logErr := exists(d.file(logName))
	if err := errors.Join(voteErr, logErr); err != nil {
		return err
	}
	switch {
	case haveVote && haveLog:
		return nil
	case haveVote:
		return &DamagedError{Path: d.file(logName), What: "it is missing"}
	case len(found.good)+len(found.damaged) > 0:
		return &DamagedError{Path: d.file(voteName), What: "it is missing, though there are snapshots"}
	}
	if haveLog {
		// A crash during the first opening leaves a log without entries.
		log, err := checkLog(d.file(logName), noEntries, nil)
		if err != nil {
			return err
		}
		if len(log.spans) > 0 {
			return &DamagedError{Path: d.file(voteName), What: "it is missing, though there is a log"}
		}
	} else if err := createLog(d.file(logName)); err != nil {
		return err
	}
	return saveFile(d.file(voteName), newVoteFile())
}

func (d *Dir) file(name string) string { return filepath.Join(d.path, name) }

// Log returns the Raft log.
func (d *Dir) Log() raft.LogStore { return d.log }

// Stable returns the vote file.
func (d *Dir) Stable() VoteStore { return d.vote }

// Snapshots returns the snapshot directory.
func (d *Dir) Snapshots() raft.SnapshotStore { return d.snapshots }

// ownNames are the files of the directory that are not small files.
var ownNames = []string{
	lockName, reserveName, logName, journalName, voteName, snapshotsName, damagedName, pendingResetName, asideName,
}

func checkName(name string) error {
	if name == "" || name != filepath.Base(name) || name[0] == '.' || filepath.Ext(name) == tempSuffix ||
		slices.Contains(ownNames, name) {
		return fmt.Errorf("%q is no name for a small file", name)
	}
	return nil
}

// Load reads a small file; see Storage.
func (d *Dir) Load(name string) ([]byte, error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	return loadFile(d.file(name))
}

// Save replaces a small file; see Storage.
func (d *Dir) Save(name string, data []byte) error {
	if err := checkName(name); err != nil {
		return err
	}
	return saveChecksummed(d.path, name, data)
}

func saveChecksummed(dir, name string, data []byte) error {
	content := addHeader(data)
	if len(content) > maxSmallFile {
		return fmt.Errorf("save %s: %d bytes are more than %d", name, len(content), maxSmallFile)
	}
	if err := saveFile(filepath.Join(dir, name), content); err != nil {
		return fmt.Errorf("save %s: %w", name, err)
	}
	return nil
}

// Space returns the file system's space, with the disk reserve.
func (d *Dir) Space() Space { return d.reserve }

// Close closes the files and releases the lock. The reserve stays on disk.
func (d *Dir) Close() error {
	d.closeOnce.Do(func() {
		d.closeErr = errors.Join(d.closeStores(), d.lock.Close())
	})
	return d.closeErr
}

func (d *Dir) closeStores() (err error) {
	if d.log != nil {
		err = d.log.close()
		d.log = nil
	}
	if d.vote != nil {
		err = errors.Join(err, d.vote.close())
		d.vote = nil
	}
	return err
}

const lockName = "lock"

// lockDir locks the directory. The lock ends with the process, even after a crash. The file stays: if it were
// removed, two processes could lock one directory through two files.
func lockDir(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, lockName), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("data directory %s is not writable: %w", dir, err)
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if err == nil {
		return f, nil
	}
	if errors.Is(err, unix.EWOULDBLOCK) {
		err = &LockedError{Dir: dir}
	} else {
		err = fmt.Errorf("lock data directory %s: %w", dir, err)
	}
	return nil, errors.Join(err, f.Close())
}

const (
	// boltLockWait bounds how long an opening waits for bbolt's lock on the log. A killed process loses the lock of the
	// directory when its descriptors are closed, and this one when its memory is torn down: bbolt maps the file.
	boltLockWait = 30 * time.Second
	lockPoll     = time.Millisecond
)

// awaitFileLock returns when no other process holds the lock of a file. The caller has the directory's: no process may
// take this one meanwhile.
func awaitFileLock(path string, limit time.Duration) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // which releases the lock
	for end := time.Now().Add(limit); ; time.Sleep(lockPoll) {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case err == nil:
			return nil
		case !errors.Is(err, unix.EWOULDBLOCK):
			return fmt.Errorf("lock %s: %w", path, err)
		case time.Now().After(end):
			return fmt.Errorf("%s: another process, which is probably ending, has held its lock for %v", path, limit)
		}
	}
}

func checkWritable(dir string) error {
	path := filepath.Join(dir, "probe"+tempSuffix)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(f.Close(), os.Remove(path))
}
