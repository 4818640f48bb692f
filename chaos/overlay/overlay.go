// Package overlay makes changed copies of source files for the -overlay flag of
// the go command: a program is then built from them, while the files
// themselves, and so what ships, stay as they are.
//
// Two things are built so: a toolchain whose simulated clusters can be
// replayed exactly (Replay), and nodes without one of their guards.
package overlay

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Edit is one change of a file. Old must stand in it exactly once: text that is
// not as expected is refused, never guessed at.
type Edit struct {
	File     string // below the root of its Set, with slashes
	Old, New string
}

// Set is edits below one directory.
type Set struct {
	Root  string
	Edits []Edit
}

// Write puts the changed files into dir, which must be an absolute path, and
// gives the path of the file for -overlay. When some edits do not apply, the
// error names all of them.
func Write(dir string, sets ...Set) (string, error) {
	changed := map[string]string{} // content by path
	var refused []error
	for _, set := range sets {
		for _, e := range set.Edits {
			path := filepath.Join(set.Root, filepath.FromSlash(e.File))
			refused = append(refused, apply(changed, path, e))
		}
	}
	if err := errors.Join(refused...); err != nil {
		return "", err
	}
	return write(dir, changed)
}

func apply(changed map[string]string, path string, e Edit) error {
	text, ok := changed[path]
	if !ok {
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		text = string(b)
	}
	if n := strings.Count(text, e.Old); n != 1 {
		return fmt.Errorf("%s: the text to change is there %d times, not once: %q", path, n, e.Old)
	}
	changed[path] = strings.Replace(text, e.Old, e.New, 1)
	return nil
}

// write stores each content under the name of its file, and the overlay beside
// them.
func write(dir string, changed map[string]string) (string, error) {
	replace := map[string]string{}
	paths := make([]string, 0, len(changed))
	for path := range changed {
		paths = append(paths, path)
	}
	slices.Sort(paths)
	for i, path := range paths {
		replace[path] = filepath.Join(dir, fmt.Sprintf("%d-%s", i, filepath.Base(path)))
		if err := os.WriteFile(replace[path], []byte(changed[path]), 0o600); err != nil {
			return "", err
		}
	}
	b, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	file := filepath.Join(dir, "overlay.json")
	return file, os.WriteFile(file, b, 0o600)
}
