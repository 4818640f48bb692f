package storage

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

const (
	pendingResetName = "next"      // what the directory becomes at its next opening
	asideName        = "set-aside" // the archives of its earlier data
	maxArchives      = 2           // older ones are removed; of damaged snapshots, too
)

// pendingReset records that the next opening sets all data aside, and the one small file with which the
// directory then starts.
type pendingReset struct {
	Aside string `json:"aside"` // name of the folder in set-aside
	File  string `json:"file"`  // name of the small file
	Data  []byte `json:"data"`  // its content
}

// SetAside makes the next opening move all data out of the way and start with one small file; see Storage.
func (d *Dir) SetAside(aside, file string, data []byte) error {
	if err := errors.Join(checkName(aside), checkName(file)); err != nil {
		return err
	}
	content, err := json.Marshal(pendingReset{Aside: aside, File: file, Data: data})
	if err != nil {
		return err
	}
	if err := saveFile(d.file(pendingResetName), addHeader(content)); err != nil {
		return fmt.Errorf("set the data aside: %w", err)
	}
	return nil
}

// finishSetAside carries out what SetAside has recorded. Each step can be repeated, and the record is removed
// last. So the next opening finishes what a crash has interrupted.
func finishSetAside(dir string) error {
	content, err := loadFile(filepath.Join(dir, pendingResetName))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var n pendingReset
	if err := json.Unmarshal(content, &n); err != nil {
		return &DamagedError{Path: filepath.Join(dir, pendingResetName), What: err.Error()}
	}
	if err := errors.Join(checkName(n.Aside), checkName(n.File)); err != nil {
		return &DamagedError{Path: filepath.Join(dir, pendingResetName), What: err.Error()}
	}
	if err := archiveData(dir, n.Aside); err != nil {
		return err
	}
	if err := saveFile(filepath.Join(dir, n.File), addHeader(n.Data)); err != nil {
		return err
	}
	if err := os.Remove(filepath.Join(dir, pendingResetName)); err != nil {
		return err
	}
	return errors.Join(syncDir(dir), pruneArchives(filepath.Join(dir, asideName), n.Aside))
}

// archiveData moves the data into a folder of set-aside. A file that is already in the folder was moved
// before a crash. The file of that name in the directory is then the new one.
func archiveData(dir, name string) error {
	to := filepath.Join(dir, asideName, name)
	if err := os.MkdirAll(to, 0o700); err != nil {
		return err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if isInfrastructure(e.Name()) {
			continue
		}
		target := filepath.Join(to, e.Name())
		moved, err := exists(target)
		if err == nil && !moved {
			err = os.Rename(filepath.Join(dir, e.Name()), target)
		}
		if err != nil {
			return err
		}
	}
	return errors.Join(syncDir(to), syncDir(filepath.Join(dir, asideName)), syncDir(dir))
}

// isInfrastructure reports whether a file belongs to the directory itself and not to its data.
func isInfrastructure(name string) bool {
	return slices.Contains([]string{lockName, reserveName, pendingResetName, asideName, damagedName}, name) ||
		strings.HasSuffix(name, tempSuffix)
}

// pruneArchives removes all but the newest archives. It always keeps latest.
func pruneArchives(dir, latest string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	modified := map[string]int64{}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			return err
		}
		modified[e.Name()] = info.ModTime().UnixNano()
	}
	entries = slices.DeleteFunc(entries, func(e os.DirEntry) bool { return e.Name() == latest })
	slices.SortFunc(entries, func(a, b os.DirEntry) int {
		return cmp.Compare(modified[b.Name()], modified[a.Name()])
	})
	for _, e := range entries[min(maxArchives-1, len(entries)):] {
		if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	return nil
}
