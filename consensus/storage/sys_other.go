//go:build !linux

package storage

import "os"

func fdatasync(f *os.File) error { return f.Sync() }

func allocate(f *os.File, size int64) error { return writeZeros(f, size) }
