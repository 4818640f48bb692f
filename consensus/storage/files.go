package storage

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// tempSuffix marks a file that is being written. Open removes such files, which only a crash leaves.
const tempSuffix = ".tmp"

// maxSmallFile bounds the size of a small file.
const maxSmallFile = 16 << 20

// fileHeader is the first line of a small file. The data follows unchanged.
const fileHeader = "northstar-file 1 crc32c=%08x size=%d\n"

// addHeader puts the line with the checksum before the data.
func addHeader(data []byte) []byte {
	return append(fmt.Appendf(nil, fileHeader, crc32.Checksum(data, castagnoli), len(data)), data...)
}

// stripHeader checks and removes that line.
func stripHeader(content []byte) ([]byte, error) {
	head, data, ok := bytes.Cut(content, []byte("\n"))
	if !ok {
		return nil, errors.New("it has no first line with a checksum")
	}
	want := fmt.Appendf(nil, fileHeader, crc32.Checksum(data, castagnoli), len(data))
	if !bytes.Equal(append(head, '\n'), want) {
		return nil, errors.New("its checksum does not match")
	}
	return data, nil
}

// loadFile reads a file that saveFile wrote.
func loadFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	content, err := io.ReadAll(io.LimitReader(f, maxSmallFile+1))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	if len(content) > maxSmallFile {
		return nil, &DamagedError{Path: path, What: "it is too large"}
	}
	data, err := stripHeader(content)
	if err != nil {
		return nil, &DamagedError{Path: path, What: err.Error()}
	}
	return data, nil
}

// saveFile replaces path with content. It syncs a temporary file, renames it, and syncs the directory.
func saveFile(path string, content []byte) (err error) {
	temp := path + tempSuffix
	f, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	err = keepOwner(f, path)
	if err == nil {
		_, err = f.Write(content)
	}
	if err == nil {
		err = f.Sync()
	}
	err = errors.Join(err, f.Close())
	if err == nil {
		err = os.Rename(temp, path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(temp))
	}
	return syncDir(filepath.Dir(path))
}

// keepOwner sets the owner of f to that of the file that it is to replace. Root may change the directory of a node that
// runs as another user, with northstar-node recover; that node could not read a file of root.
func keepOwner(f *os.File, path string) error {
	if os.Geteuid() != 0 {
		return nil
	}
	var old unix.Stat_t
	if err := unix.Stat(path, &old); err != nil || old.Uid == 0 && old.Gid == 0 {
		return nil // there is none, or it is root's as well
	}
	return f.Chown(int(old.Uid), int(old.Gid))
}

// syncDir makes creations, renames and removals in a directory durable.
func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// removeTemps removes the half-written files that a crash left in a directory.
func removeTemps(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), tempSuffix) {
			if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

func exists(path string) (bool, error) {
	_, err := os.Lstat(path)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}
