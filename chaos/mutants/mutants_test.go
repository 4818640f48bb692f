package mutants

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"northstar/chaos/check"
	"northstar/chaos/overlay"
	"northstar/chaos/sim"
)

// Every patch applies to the sources as they are, and names a kind of world and
// invariants that there are.
func TestPatchesApply(t *testing.T) {
	all, err := All()
	if err != nil {
		t.Fatal(err)
	}
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 15 {
		t.Errorf("only %d mutants", len(all))
	}
	page, err := os.ReadFile(filepath.Join(root, "docs", "testing.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range all {
		set, err := m.Edits(root)
		if err == nil {
			_, err = overlay.Write(t.TempDir(), set)
		}
		if err != nil {
			t.Errorf("%s: %v", m.Name, err)
		}
		if _, err := sim.NewConfig(m.Kind, 1, m.Nodes); m.Test == "" && (err != nil || m.Nodes < 3) {
			t.Errorf("%s: %d nodes, %v", m.Name, m.Nodes, err)
		}
		if !strings.Contains(string(page), "| `"+m.Name+"` |") {
			t.Errorf("%s is not in the table of docs/testing.md", m.Name)
		}
		for _, b := range m.Breaks {
			if m.Test == "" && !slices.Contains(check.Invariants, b) {
				t.Errorf("%s breaks %q, which is no invariant", m.Name, b)
			}
		}
	}
}

func TestParse(t *testing.T) {
	const head = "Guard: g\nWorld: faults 3\nBreaks: a; b\nBudget: 7\nSeed: 9\n\n"
	m, err := parse("m", head+"--- a/x.go\n+++ b/x.go\n@@ -1,3 +1,3 @@\n one\n-two\n+2\n three\n@@ -9,1 +9,2 @@\n nine\n+ten\n")
	if err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	if err := os.WriteFile(filepath.Join(root, "x.go"), []byte("uno\ntwo\nthree\nnine\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	set, err := m.Edits(root) // the line before two has changed
	want := []overlay.Edit{{File: "x.go", Old: "two\n", New: "2\n"}, {File: "x.go", Old: "nine\n", New: "nine\nten\n"}}
	if err != nil || !slices.Equal(set.Edits, want) {
		t.Errorf("%+v, %v", set, err)
	}
	if m.Kind != "faults" || m.Nodes != 3 || m.Budget != 7 || m.Seed != 9 || !slices.Equal(m.Breaks, []string{"a", "b"}) {
		t.Errorf("%+v", m)
	}
	for _, bad := range []string{"Guard: g\n", head, strings.Replace(head, "Seed", "Seat", 1), strings.Replace(head, "7", "x", 1), "Test: ./p T\n" + head} {
		if _, err := parse("m", bad); err == nil {
			t.Errorf("taken: %q", bad)
		}
	}
}
