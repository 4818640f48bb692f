package main

import (
	"os"
	"path/filepath"
	"testing"

	"northstar/chaos/mutants"
)

// The seed that found a mutant becomes the first of its patch and of its row. Other rows stay as they are.
func TestRecord(t *testing.T) {
	root := t.TempDir()
	patch, page := filepath.Join(root, "chaos/mutants/patches/m.patch"), filepath.Join(root, "docs/planted-bugs.md")
	const other = "| `n` | g | `calm`, 3 nodes, seed 4 (the first of 9) | b | 1 s |\n"
	write := func(file, text string) {
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(patch, "MaxSeeds: 9\nSeed: 4\n\n--- a/x.go\n")
	write(page, other+"| `m` | g | `calm`, 3 nodes, seed 4 (the first of 9) | old | 2 s |\n"+other)
	m := mutants.Mutant{Name: "m", Scenario: "calm", Nodes: 5, MaxSeeds: 9, Seed: 4}
	if err := record(root, m, detection{seed: 7, runs: 4, violated: "new"}); err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]string{
		patch: "MaxSeeds: 9\nSeed: 7\n\n--- a/x.go\n",
		page:  other + "| `m` | g | `calm`, 5 nodes, seed 7 (the first of 9) | new | 2 s |\n" + other,
	} {
		if got, err := os.ReadFile(file); err != nil || string(got) != want {
			t.Errorf("%v\n%s\nwant\n%s", err, got, want)
		}
	}
	if err := record(root, mutants.Mutant{Name: "unknown"}, detection{}); err == nil {
		t.Error("a mutant without a patch was recorded")
	}
}
