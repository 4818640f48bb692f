package main

import (
	"errors"
	"os"
	"os/exec"
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

// Runs of a run log count, so that the next command makes those that are missing. A commit takes away the runs of the
// packages whose runs depend on what it changed, and a change without a commit all of them.
func TestFlaky_Continued(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name, text string) {
		path := filepath.Join(dir, name)
		err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o600))
		if err != nil {
			t.Fatal(err)
		}
	}
	commit := func() {
		for _, args := range [][]string{{"init", "-q"}, {"add", "."}, {"commit", "-q", "-m", "x"}} {
			user := []string{"-C", dir, "-c", "user.name=x", "-c", "user.email=x", "-c", "commit.gpgsign=false"}
			if text, err := exec.CommandContext(t.Context(), "git", append(user, args...)...).CombinedOutput(); err != nil {
				t.Fatalf("git %q: %v\n%s", args, err, text)
			}
		}
	}
	run := func(within time.Duration, tests, skip string) string {
		var out strings.Builder
		f := flaky{dir: dir, runs: 3, parallel: 1, tests: tests, timeout: time.Minute, within: within, out: &out}
		f.runLog = runLog{path: filepath.Join(dir, "out", "runs.tsv")}
		f.skip = regexp.MustCompile(skip)
		if err := f.run(t.Context(), []string{"./..."}); err != nil {
			t.Error(err)
		}
		return out.String()
	}
	write("go.mod", "module m\n")
	write("README.md", "x")
	write(".gitignore", "out\n")
	write("a/x_test.go", "package a\nimport \"testing\"\nfunc TestA(t *testing.T) {}\n")
	write("b/x_test.go", "package b\nimport \"testing\"\nfunc TestB(t *testing.T) {}\n")
	commit()
	got := run(time.Nanosecond, "", "^$")
	if strings.Contains(got, "ok ") || !strings.Contains(got, "6 runs are missing") {
		t.Errorf("no time for a run: %s", got)
	}
	if got := run(0, "", "/b$"); strings.Count(got, "ok ") != 3 || strings.Contains(got, "m/b") {
		t.Errorf("one package: %s", got)
	}
	left := func(what, tests string, wantA, wantB int) {
		t.Helper()
		got := run(0, tests, "^$")
		a, b := strings.Count(got, "ok    m/a"), strings.Count(got, "ok    m/b")
		if a != wantA || b != wantB || !strings.Contains(got, "| `m/a` | 3 | 0 |") {
			t.Errorf("%s: %d and %d runs, want %d and %d: %s", what, a, b, wantA, wantB, got)
		}
	}
	left("what one package left", "", 0, 3)
	left("nothing is missing", "", 0, 0)
	left("other flags", "Test", 3, 3)
	write("b/x_test.go", "package b\nimport \"testing\"\nfunc TestOther(t *testing.T) {}\n")
	left("changed, without a commit", "", 3, 3)
	commit()
	left("another package's tests", "", 0, 3)
	write("README.md", "y")
	commit()
	left("a paper", "", 0, 0)
	write("a/a.go", "package a\n")
	commit()
	left("sources", "", 3, 3)

	f := flaky{dir: dir, race: true, plain: regexp.MustCompile("/b$")}
	all, err := f.list(t.Context(), t.TempDir(), []string{"./..."})
	if err != nil || len(all) != 2 {
		t.Fatalf("%v, %v", all, err)
	}
	for i, want := range []string{"race=true", "race=false"} {
		if !strings.Contains(all[i].key, want) {
			t.Errorf("%s: %q, want %s", all[i].path, all[i].key, want)
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
