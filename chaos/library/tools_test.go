package library

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

const inChild = "NORTHSTAR_LIBRARY_PANICS"

// panics runs f in a process of its own, which must die of a panic with such
// words.
func panics(t *testing.T, words string, f func(t *testing.T)) {
	t.Helper()
	if os.Getenv(inChild) == t.Name() {
		f(t)
		await(t, "a panic", func() bool { return false })
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.count=1")
	cmd.Env = append(os.Environ(), inChild+"="+t.Name(), "TMPDIR="+t.TempDir())
	out, err := cmd.CombinedOutput()
	for line := range strings.Lines(string(out)) {
		if err != nil && strings.HasPrefix(line, "panic: ") && strings.Contains(line, words) {
			t.Log(strings.TrimSpace(line))
			return
		}
	}
	t.Fatalf("no panic of %q: %v\n%s", words, err, out)
}

func glob(t *testing.T, pattern string) []string {
	t.Helper()
	found, err := filepath.Glob(pattern)
	if err != nil {
		t.Fatal(err)
	}
	for i, path := range found {
		found[i] = filepath.Base(path)
	}
	return found
}

func bytesOf(s shot) *bytes.Reader { return bytes.NewReader(s.bytes()) }
