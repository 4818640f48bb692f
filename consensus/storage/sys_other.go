//go:build !linux

package storage

import "os"

// fdatasync makes the file's content durable.
func fdatasync(f *os.File) error { return f.Sync() }

// allocate reserves size bytes of disk space for the file, so that no other file can use them.
func allocate(f *os.File, size int64) error { return writeZeros(f, size) }
