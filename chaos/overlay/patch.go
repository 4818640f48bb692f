package overlay

import (
	"os"
	"path/filepath"
	"strings"
)

// hunk is one change of a file: lines with a ' ', '-' or '+' before them.
type hunk struct {
	file  string
	lines []string
}

// fuzz is how many lines of context may have changed on either side of a hunk.
const fuzz = 3

// edit returns the hunk without so many lines of context at each end.
func (h hunk) edit(without int) Edit {
	lines := h.lines
	for range without {
		if len(lines) > 0 && lines[0][0] == ' ' {
			lines = lines[1:]
		}
		if n := len(lines); n > 0 && lines[n-1][0] == ' ' {
			lines = lines[:n-1]
		}
	}
	e := Edit{File: h.file}
	for _, line := range lines {
		if line[0] != '+' {
			e.Old += line[1:]
		}
		if line[0] != '-' {
			e.New += line[1:]
		}
	}
	return e
}

// Patch fits a unified diff to the sources below root. It uses as much of the context
// as the sources still have. It also returns edits that do not match: Write reports the error.
func Patch(root, diff string) (Set, error) {
	set := Set{Root: root}
	for _, h := range hunks(diff) {
		text, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(h.file)))
		if err != nil {
			return set, err
		}
		e := h.edit(0)
		for without := 1; without <= fuzz && strings.Count(string(text), e.Old) != 1; without++ {
			e = h.edit(without)
		}
		set.Edits = append(set.Edits, e)
	}
	return set, nil
}

// hunks takes a unified diff apart. Where in its file a hunk stands is found by its
// text, which must be there once.
func hunks(diff string) (all []hunk) {
	file := ""
	for line := range strings.Lines(diff) {
		switch {
		case strings.HasPrefix(line, "--- "):
		case strings.HasPrefix(line, "+++ b/"):
			file = strings.TrimSpace(strings.TrimPrefix(line, "+++ b/"))
		case strings.HasPrefix(line, "@@"):
			all = append(all, hunk{file: file})
		case len(all) > 0:
			all[len(all)-1].lines = append(all[len(all)-1].lines, line)
		}
	}
	return all
}
