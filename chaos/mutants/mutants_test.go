package mutants

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"northstar/chaos/check"
	"northstar/chaos/explore"
	"northstar/chaos/overlay"
	"northstar/chaos/sim"
)

// Every patch applies to the sources as they are, with all its context, and names a scenario and invariants that there
// are. With -update, patches whose context has changed are rewritten.
func TestPatchesApply(t *testing.T) {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		refitAll(t, root)
		return // the patches of this program are the old ones
	}
	all, err := All()
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 15 {
		t.Errorf("only %d mutants", len(all))
	}
	for _, m := range all {
		if _, err := overlay.Write(t.TempDir(), m.Edits(root)); err != nil {
			t.Errorf("go test ./chaos/mutants -update may fit it again: %s: %v", m.Name, err)
		}
		known := check.Invariants
		if m.Explorer != "" {
			known = explore.Properties()
			if _, err := explore.Find(m.Explorer); err != nil {
				t.Errorf("%s: %v", m.Name, err)
			}
		}
		if _, err := sim.NewConfig(m.Scenario, 1, m.Nodes); m.Scenario != "" && (err != nil || m.Nodes < 3) {
			t.Errorf("%s: %d nodes, %v", m.Name, m.Nodes, err)
		}
		for _, b := range m.Invariants {
			if m.Test == "" && !slices.Contains(known, b) {
				t.Errorf("%s breaks %q, which is no invariant", m.Name, b)
			}
		}
	}
}

// The table of docs/planted-bugs.md has a row for each mutant and no other, with its guard,
// where it was found, within its budget, and what was broken.
func TestTable(t *testing.T) {
	all, err := All()
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "planted-bugs.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, wrong := range wrongRows(string(page), all) {
		t.Error(wrong)
	}
	m := Mutant{Name: "m", Mitigation: "g", Scenario: "calm", Nodes: 3, Invariants: []string{"b"}, MaxSeeds: 9, Seed: 4}
	const head = "| mutant | mitigation |\n|---|---|\n"
	for row, want := range map[string]int{
		"| `m` | g | `calm`, 3 nodes, seed 4 (the first of 9) | b | 1 s |":     0,
		"| `m` | g | `calm`, 3 nodes, seed 12 (number 9 of 9) | b | 1 s |":     0,
		"| `m` | g | `calm`, 3 nodes, seed 13 (number 10 of 9) | b | 1 s |":    1,
		"| `m` | g | `calm`, 3 nodes, seed 3 (number 3 of 9) | b | 1 s |":      1,
		"| `m` | g | `calm`, 3 nodes, seed 4 (the first of 8) | b | 1 s |":     1,
		"| `m` | g | `calm`, 5 nodes, seed 4 (the first of 9) | b | 1 s |":     1,
		"| `m` | other | `hang`, 3 nodes, seed 4 (the first of 9) | c | 1 s |": 3,
		"| `n` | g | `calm`, 3 nodes, seed 4 (the first of 9) | b | 1 s |":     2,
		"": 1,
		"| `m` | g | `explore votes`, step 3 of 9 | b | 1 s |": 1,
	} {
		if got := wrongRows(head+row+"\n\n", []Mutant{m}); len(got) != want {
			t.Errorf("%s: %q", row, got)
		}
	}
}

// The row of a mutant of the explorer has the model and the step.
func TestTable_Explorer(t *testing.T) {
	m := Mutant{Name: "m", Mitigation: "g", Explorer: "votes", Depth: 9, Invariants: []string{"b"}}
	for cell, want := range map[string]int{
		"`explore votes`, step 9 of 9": 0, "`explore votes`, step 10 of 9": 1, "`explore terms`, step 3 of 9": 1,
		"`mixed`, 3 nodes, seed 4 (the first of 9)": 1,
	} {
		row := "| mutant | mitigation |\n|---|---|\n| `m` | g | " + cell + " | b | 1 s |\n\n"
		if got := wrongRows(row, []Mutant{m}); len(got) != want {
			t.Errorf("%s: %q", cell, got)
		}
	}
}

// wrongRows reports what is wrong with the page's table of these mutants.
func wrongRows(page string, all []Mutant) (wrong []string) {
	_, table, _ := strings.Cut(page, "| mutant | mitigation")
	table, _, _ = strings.Cut(table, "\n\n")
	seen := map[string]bool{}
	for line := range strings.Lines(table) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), " | ")
		name := strings.Trim(cells[0], " `")
		if len(cells) != 5 || !strings.HasPrefix(line, "| `") {
			continue
		}
		seen[name] = true
		i := slices.IndexFunc(all, func(m Mutant) bool { return m.Name == name })
		if i < 0 {
			wrong = append(wrong, name+": there is no such mutant")
			continue
		}
		m := all[i]
		if cells[1] != m.Mitigation {
			wrong = append(wrong, fmt.Sprintf("%s: the guard is %q", name, m.Mitigation))
		}
		if !m.within(cells[2]) {
			wrong = append(wrong, fmt.Sprintf("%s: %s is not where its patch has it looked for", name, cells[2]))
		}
		if !slices.ContainsFunc(m.Invariants, func(b string) bool {
			return strings.HasPrefix(b, cells[3]) ||
				strings.HasPrefix(cells[3], b)
		}) {
			wrong = append(wrong, fmt.Sprintf("%s: %q is none of what it has to break, %q", name, cells[3],
				m.Invariants))
		}
	}
	for _, m := range all {
		if !seen[m.Name] {
			wrong = append(wrong, m.Name+" has no row")
		}
	}
	return wrong
}

// within reports whether a cell names a place where this mutant is looked for.
func (m Mutant) within(cell string) bool {
	if m.Test != "" {
		return strings.HasPrefix(cell, "`"+m.Test+"`")
	}
	if m.Explorer != "" {
		var depth int
		_, err := fmt.Sscanf(strings.TrimPrefix(cell, fmt.Sprintf("`explore %s`, step ", m.Explorer)), "%d", &depth)
		return err == nil && depth <= m.Depth
	}
	place, of, _ := strings.Cut(cell, " (")
	var seed uint64
	_, err := fmt.Sscanf(strings.TrimPrefix(place, fmt.Sprintf("`%s`, %d nodes, ", m.Scenario, m.Nodes)), "seed %d",
		&seed)
	return err == nil && seed >= m.Seed && seed < m.Seed+uint64(m.MaxSeeds) &&
		strings.Contains(of, fmt.Sprintf(" of %d", m.MaxSeeds))
}

func TestParse(t *testing.T) {
	const head = "Mitigation: g\nScenario: faults 3\nInvariants: a; b\nMaxSeeds: 7\nSeed: 9\n\n"
	m, err := parse("m", head+
		"--- a/x.go\n+++ b/x.go\n@@ -1,3 +1,3 @@\n one\n-two\n+2\n three\n@@ -9,1 +9,2 @@\n nine\n+ten\n")
	if err != nil {
		t.Fatal(err)
	}
	set := m.Edits("root")
	want := []overlay.Edit{
		{File: "x.go", Old: "one\ntwo\nthree\n", New: "one\n2\nthree\n"},
		{File: "x.go", Old: "nine\n", New: "nine\nten\n"},
	}
	if set.Root != "root" || !slices.Equal(set.Edits, want) {
		t.Errorf("%+v", set)
	}
	if m.Scenario != "faults" || m.Nodes != 3 || m.MaxSeeds != 7 || m.Seed != 9 ||
		!slices.Equal(m.Invariants, []string{"a", "b"}) {
		t.Errorf("%+v", m)
	}
	for _, bad := range []string{
		"Mitigation: g\n", head, strings.Replace(head, "Seed", "Seat", 1),
		strings.Replace(head, "7", "x", 1), "Test: ./p T\n" + head, "Explorer: votes 9\n" + head,
		"Explorer: votes\n" + head,
	} {
		if _, err := parse("m", bad); err == nil {
			t.Errorf("taken: %q", bad)
		}
	}
}
