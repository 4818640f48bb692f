package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A test that fails in every other run is found, and what it printed is shown. One
// that always passes is not.
func TestFlaky(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.mod":           "module m\n",
		"good/x_test.go":   "package good\nimport \"testing\"\nfunc TestGood(t *testing.T) {}\n",
		"none/x.go":        "package none\n",
		"seldom/x_test.go": "package seldom\nimport (\n\"os\"\n\"testing\"\n)\nfunc TestSeldom(t *testing.T) {\nif os.Remove(\"ran\") == nil { t.Error(\"the second run\") } else { os.WriteFile(\"ran\", nil, 0o600) }\n}\n",
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
	err := flaky{dir: dir, runs: 4, parallel: 2, timeout: time.Minute}.run(t.Context(), []string{"./..."}, &out)
	if err == nil || !strings.Contains(err.Error(), "m/seldom failed in 2 of 4 runs") ||
		!strings.Contains(err.Error(), "the second run") {
		t.Errorf("%v", err)
	}
	for _, want := range []string{"| `m/good` | 4 | 0 |", "| `m/seldom` | 4 | 2 |"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing in:\n%s", want, out.String())
		}
	}
	if strings.Contains(out.String(), "m/none") {
		t.Error("a package without tests has a row")
	}
}
