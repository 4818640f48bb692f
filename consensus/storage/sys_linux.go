package storage

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// fdatasync makes the file's content durable.
func fdatasync(f *os.File) error {
	for {
		if err := unix.Fdatasync(int(f.Fd())); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// allocate reserves size bytes of disk space for the file, so that no other file can use them.
func allocate(f *os.File, size int64) error {
	for {
		err := unix.Fallocate(int(f.Fd()), 0, 0, size)
		switch {
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EOPNOTSUPP):
			return writeZeros(f, size)
		default:
			return err
		}
	}
}
