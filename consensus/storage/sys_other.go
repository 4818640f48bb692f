//go:build !linux

package storage

import "os"

// fdatasync makes the file's content durable.
func fdatasync(f *os.File) error { return f.Sync() }

// allocate gives the file size bytes of disk space, so that nobody else can
// have them.
func allocate(f *os.File, size int64) error { return writeZeros(f, size) }
