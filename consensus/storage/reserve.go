package storage

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

const reserveName = "reserve"

// reserveFile reserves disk space by occupying it.
type reserveFile struct {
	path string
	size uint64
	held atomic.Bool
}

// openReserve occupies the space unless that was done. With too little disk space the node starts read-only.
func openReserve(path string, size uint64) (*reserveFile, error) {
	r := &reserveFile{path: path, size: size}
	if size == 0 {
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
		return r, nil
	}
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err == nil && uint64(st.Size) == size && uint64(st.Blocks)*512 >= size {
		r.held.Store(true)
		return r, nil
	}
	if err := r.HoldReserve(); err != nil && !isNoSpace(err) {
		return nil, err
	}
	return r, nil
}

// Free returns the free space of the file system for this process.
func (r *reserveFile) Free() (uint64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(filepath.Dir(r.path), &st); err != nil {
		return 0, fmt.Errorf("free space of %s: %w", filepath.Dir(r.path), err)
	}
	return uint64(st.Bavail) * uint64(st.Bsize), nil
}

// Reserve returns the size and reports whether the space is occupied.
func (r *reserveFile) Reserve() (size uint64, held bool) {
	return r.size, r.held.Load()
}

// HoldReserve occupies the space, all of it or none.
func (r *reserveFile) HoldReserve() error {
	f, err := os.OpenFile(r.path, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("take the disk reserve: %w", err)
	}
	err = allocate(f, int64(r.size))
	if err == nil {
		err = f.Sync()
	}
	if err != nil {
		return fmt.Errorf("take the disk reserve: %w", errors.Join(err, f.Truncate(0), f.Close()))
	}
	r.held.Store(true)
	return f.Close()
}

// ReleaseReserve returns the space to the file system. Some free the blocks only at a sync.
func (r *reserveFile) ReleaseReserve() error {
	f, err := os.OpenFile(r.path, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("release the disk reserve: %w", err)
	}
	r.held.Store(false)
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("release the disk reserve: %w", err)
	}
	return nil
}

// writeZeros occupies space where the file system cannot preallocate.
func writeZeros(f *os.File, size int64) error {
	zeros := make([]byte, 1<<20)
	for off := int64(0); off < size; off += int64(len(zeros)) {
		if _, err := f.WriteAt(zeros[:min(int64(len(zeros)), size-off)], off); err != nil {
			return err
		}
	}
	return nil
}
