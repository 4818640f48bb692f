// Package overlay makes changed copies of source files for the -overlay flag of the go command: a program is then
// built from them, while the files themselves, and so what ships, stay as they are.
//
// Two things are built so: a toolchain whose simulated clusters can be
// replayed exactly (Replay), and nodes without one of their guards.
package overlay

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
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

// Write puts the changed files into dir, which must be an absolute path, and returns the path of the file for -overlay.
// When some edits do not apply, the error names all of them.
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
	replace := map[string]string{} // each content is stored under the name of its file, and the overlay beside them
	for i, path := range slices.Sorted(maps.Keys(changed)) {
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

// Hunk is one change of a unified diff: lines with a ' ', '-' or '+' before them.
type Hunk struct {
	File  string
	Lines []string
}

// Edit returns the hunk as the replacement of its old lines by its new ones.
func (h Hunk) Edit() Edit {
	e := Edit{File: h.File}
	for _, line := range h.Lines {
		if line[0] != '+' {
			e.Old += line[1:]
		}
		if line[0] != '-' {
			e.New += line[1:]
		}
	}
	return e
}

// Patch returns a unified diff as edits of the sources below root.
func Patch(root, diff string) Set {
	set := Set{Root: root}
	for _, h := range Hunks(diff) {
		set.Edits = append(set.Edits, h.Edit())
	}
	return set
}

// Hunks takes a unified diff apart. Where in its file a hunk stands is found by its text, which must be there once.
func Hunks(diff string) (all []Hunk) {
	file := ""
	for line := range strings.Lines(diff) {
		switch {
		case strings.HasPrefix(line, "--- "):
		case strings.HasPrefix(line, "+++ b/"):
			file = strings.TrimSpace(strings.TrimPrefix(line, "+++ b/"))
		case strings.HasPrefix(line, "@@"):
			all = append(all, Hunk{File: file})
		case len(all) > 0:
			all[len(all)-1].Lines = append(all[len(all)-1].Lines, line)
		}
	}
	return all
}
