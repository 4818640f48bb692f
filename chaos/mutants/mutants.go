// Package mutants holds bugs: for each guard that matters a patch that takes it
// away, and the kind of world that has to show it. No program is built with them
// but those that prove that the suite finds them.
package mutants

import (
	"embed"
	"fmt"
	"path"
	"strconv"
	"strings"

	"northstar/chaos/overlay"
)

//go:embed patches/*.patch
var patches embed.FS

// Mutant is one bug. Its patch applies to the tree as it is.
type Mutant struct {
	Name   string
	Guard  string   // what is taken away
	Kind   string   // of the worlds that show it
	Nodes  int      // in them
	Breaks []string // the invariants of which one must break
	Budget int      // seeds within which it must
	Seed   uint64   // the first of these; with the sources of that day it was enough
	Edits  []overlay.Edit
}

// All reads every mutant, in the order of their names.
func All() ([]Mutant, error) {
	entries, err := patches.ReadDir("patches")
	if err != nil {
		return nil, err
	}
	var all []Mutant
	for _, e := range entries {
		text, err := patches.ReadFile(path.Join("patches", e.Name()))
		if err != nil {
			return nil, err
		}
		m, err := parse(strings.TrimSuffix(e.Name(), ".patch"), string(text))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", e.Name(), err)
		}
		all = append(all, m)
	}
	return all, nil
}

// parse reads a unified diff with a head of its own: lines "Name: value", then an
// empty one.
func parse(name, text string) (Mutant, error) {
	m := Mutant{Name: name}
	head, diff, ok := strings.Cut(text, "\n\n")
	if !ok {
		return m, fmt.Errorf("no empty line ends its head")
	}
	for line := range strings.Lines(head) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		if err := m.set(key, value); err != nil {
			return m, fmt.Errorf("%s: %w", key, err)
		}
	}
	m.Edits = edits(diff)
	if m.Guard == "" || m.Kind == "" || len(m.Breaks) == 0 || m.Budget == 0 || len(m.Edits) == 0 {
		return m, fmt.Errorf("a part of the head is missing, or there is no change: %+v", m)
	}
	return m, nil
}

func (m *Mutant) set(key, value string) (err error) {
	switch key {
	case "Guard":
		m.Guard = value
	case "World":
		_, err = fmt.Sscanf(value, "%s %d", &m.Kind, &m.Nodes)
	case "Breaks":
		m.Breaks = strings.Split(value, "; ")
	case "Budget":
		m.Budget, err = strconv.Atoi(value)
	case "Seed":
		m.Seed, err = strconv.ParseUint(value, 10, 64)
	default:
		err = fmt.Errorf("there is no such key")
	}
	return err
}

// edits makes an edit of each hunk. Where in the file it stands is found by its
// text, which must be there once.
func edits(diff string) (all []overlay.Edit) {
	file := ""
	for line := range strings.Lines(diff) {
		switch {
		case strings.HasPrefix(line, "--- "):
		case strings.HasPrefix(line, "+++ b/"):
			file = strings.TrimSpace(strings.TrimPrefix(line, "+++ b/"))
		case strings.HasPrefix(line, "@@"):
			all = append(all, overlay.Edit{File: file})
		case len(all) == 0:
		default:
			e := &all[len(all)-1]
			if line[0] != '+' {
				e.Old += line[1:]
			}
			if line[0] != '-' {
				e.New += line[1:]
			}
		}
	}
	return all
}
