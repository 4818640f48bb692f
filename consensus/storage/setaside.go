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
	pendingResetName = "next"      // what the directory is to become at its next opening
	asideName        = "set-aside" // what it was before
	maxArchives      = 2           // older ones are removed
)

// pendingReset says that all data is to be set aside, and with which small file the
// directory begins anew.
type pendingReset struct {
	Aside string `json:"aside"` // name of the folder in set-aside
	File  string `json:"file"`  // name of the small file
	Data  []byte `json:"data"`  // its content
}

// SetAside makes the next opening move everything out of the way, and begin
// with one small file; see Storage.
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

// finishSetAside does what SetAside announced. Each step can be repeated: a
// crash in the middle is finished by the next opening, since the announcement
// goes last.
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

// archiveData moves the data into a folder of set-aside. What is there already was
// moved before a crash: the file of that name in the directory is the new one.
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

// isInfrastructure says whether a file is of the directory and not of its data.
func isInfrastructure(name string) bool {
	return slices.Contains([]string{lockName, reserveName, pendingResetName, asideName, damagedName}, name) ||
		strings.HasSuffix(name, tempSuffix)
}

// pruneArchives removes all but the newest of what was set aside; latest is kept in
// any case.
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
