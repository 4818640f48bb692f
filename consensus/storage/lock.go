package storage

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

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

// checkWritable creates and removes a file.
func checkWritable(dir string) error {
	path := filepath.Join(dir, "probe"+tempSuffix)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(f.Close(), os.Remove(path))
}
