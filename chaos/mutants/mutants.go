// Package mutants holds bugs: for each guard that matters a patch that takes it away, and the scenario that has to
// show it. No program is built with them but those that prove that the suite finds them.
package mutants

import (
	"embed"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"northstar/chaos/overlay"
)

//go:embed patches/*.patch
var patches embed.FS

// Mutant is one bug. Its patch applies to the tree as it is.
type Mutant struct {
	Name       string
	Mitigation string   // what is taken away
	Scenario   string   // of the runs that show it; "": none do
	Nodes      int      // in them
	Test       string   // package and name of a test of processes that shows it; "": none does
	Explorer   string   // the model of chaos/explore that shows it; "": none does
	Depth      int      // the steps within which it must
	Invariants []string // the invariants of which one must break
	MaxSeeds   int      // seeds within which it must
	Nightly    bool     // it takes too long for every change
	Seed       uint64   // the first of these; with the sources of that day it was enough
	diff       string
}

// Edits returns the patch as edits of the sources below root.
func (m Mutant) Edits(root string) overlay.Set { return overlay.Patch(root, m.diff) }

// Find reads one.
func Find(name string) (Mutant, error) {
	all, err := All()
	if err != nil {
		return Mutant{}, err
	}
	i := slices.IndexFunc(all, func(m Mutant) bool { return m.Name == name })
	if i < 0 {
		return Mutant{}, fmt.Errorf("there is no mutant %q", name)
	}
	return all[i], nil
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

// parse reads a unified diff with a head of its own: lines "Name: value", then an empty one.
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
	m.diff = diff
	places := 0
	for _, place := range []string{m.Scenario, m.Test, m.Explorer} {
		if place != "" {
			places++
		}
	}
	if m.Mitigation == "" || places != 1 || len(m.Invariants) == 0 || m.MaxSeeds == 0 && m.Depth == 0 ||
		!strings.Contains(diff, "\n@@") {
		return m, fmt.Errorf("a part of the head is missing, or there is no change: %+v", m)
	}
	return m, nil
}

func (m *Mutant) set(key, value string) (err error) {
	switch key {
	case "Mitigation":
		m.Mitigation = value
	case "Scenario":
		_, err = fmt.Sscanf(value, "%s %d", &m.Scenario, &m.Nodes)
	case "Test":
		m.Test = value
	case "Explorer":
		_, err = fmt.Sscanf(value, "%s %d", &m.Explorer, &m.Depth)
	case "Invariants":
		m.Invariants = strings.Split(value, "; ")
	case "Nightly":
		m.Nightly, err = strconv.ParseBool(value)
	case "MaxSeeds":
		m.MaxSeeds, err = strconv.Atoi(value)
	case "Seed":
		m.Seed, err = strconv.ParseUint(value, 10, 64)
	default:
		err = fmt.Errorf("there is no such key")
	}
	return err
}
