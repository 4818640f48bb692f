package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// A test that fails in every other run is found, and what it printed is shown and kept. One that always passes is not.
func TestFlaky(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.mod":           "module m\n",
		"good/x_test.go":   "package good\nimport \"testing\"\nfunc TestGood(t *testing.T) {}\n",
		"none/x.go":        "package none\n",
		"broken/x_test.go": "package broken\nvar x int = nothing\n",
		"seldom/x_test.go": `package seldom
			import ("os"; "strconv"; "testing")
			func TestSeldom(t *testing.T) {
				run := 1
				for os.Mkdir(strconv.Itoa(run), 0o700) != nil { run++ }
				if run%2 == 0 { t.Error("an even run") }
			}`,
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var out strings.Builder
	f := flaky{dir: dir, runs: 4, parallel: 2, timeout: time.Minute, output: filepath.Join(dir, "kept"), out: &out}
	if err := f.run(t.Context(), []string{"./..."}); err == nil || err.Error() != "2 of 3 packages failed" {
		t.Errorf("it ended with %v", err)
	}
	for _, want := range []string{
		"| `m/good` | 4 | 0 |", "| `m/seldom` | 4 | 2 |", "an even run", "| TestSeldom 2 |", "undefined: nothing",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing in:\n%s", want, out.String())
		}
	}
	if strings.Contains(out.String(), "m/none") {
		t.Error("a package without tests has a row")
	}
	kept, err := filepath.Glob(filepath.Join(f.output, "m-seldom-*.txt"))
	if err != nil || len(kept) != 2 {
		t.Fatalf("kept: %v, %v", kept, err)
	}
	if text, err := os.ReadFile(kept[0]); err != nil || !strings.Contains(string(text), "an even run") {
		t.Errorf("kept: %q, %v", text, err)
	}
}

// Runs of a journal count, so that the next command makes those that are missing.
func TestFlaky_Continued(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.mod": "module m\n", "a/x_test.go": "package a\nimport \"testing\"\nfunc TestA(t *testing.T) {}\n",
		"b/x_test.go": "package b\nimport \"testing\"\nfunc TestB(t *testing.T) {}\n",
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	run := func(key string, within time.Duration, pattern string) string {
		var out strings.Builder
		f := flaky{dir: dir, runs: 3, parallel: 1, timeout: time.Minute, within: within, out: &out}
		f.journal = journal{path: filepath.Join(dir, "out", "runs.tsv"), key: key}
		f.skip = regexp.MustCompile(pattern)
		if err := f.run(t.Context(), []string{"./..."}); err != nil {
			t.Error(err)
		}
		return out.String()
	}
	got := run("c1", time.Nanosecond, "^$")
	if strings.Contains(got, "ok ") || !strings.Contains(got, "6 runs are missing") {
		t.Errorf("no time for a run: %s", got)
	}
	if got := run("c1", 0, "/b$"); strings.Count(got, "ok ") != 3 || strings.Contains(got, "m/b") {
		t.Errorf("one package: %s", got)
	}
	for key, want := range map[string]int{"c1": 3, "c2": 6} { // runs of another commit do not count
		got := run(key, 0, "^$")
		if strings.Count(got, "ok ") != want || !strings.Contains(got, "| `m/a` | 3 | 0 |") {
			t.Errorf("%s, %d runs are left: %s", key, want, got)
		}
	}
}

func TestFailedNames(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][]string{
		"--- FAIL: TestA (0.1s)\n    --- FAIL: TestA/sub (0s)\n--- FAIL: TestB (0s)\nFAIL": {"TestA", "TestB"},
		"x\npanic: test timed out after 1s\n\trunning tests:\n":                            {"panic: test timed out after 1s"},
		"goleak: Errors on successful test run: found":                                     {"goleak: Errors on successful test run: found"},
	} {
		if got := failedNames([]byte(text)); !slices.Equal(got, want) {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}
