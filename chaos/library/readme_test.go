package library

import (
	"os"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"strings"
	"testing"
)

var (
	testFunc = regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	row      = regexp.MustCompile("(?m)^\\| .* \\| [^|]* \\| `(Test\\w+)` \\| [^|]+ \\|$")
)

// TestReadme: the page lists every reproduction, of the version in use.
func TestReadme(t *testing.T) {
	page, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	listed := map[string]bool{}
	for _, m := range row.FindAllStringSubmatch(string(page), -1) {
		listed[m[1]] = true
	}
	files, err := filepath.Glob("*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range testFunc.FindAllStringSubmatch(string(text), -1) {
			if !listed[m[1]] && m[1] != t.Name() {
				t.Errorf("%s has no row", m[1])
			}
			delete(listed, m[1])
		}
	}
	for name := range listed {
		t.Errorf("there is no %s", name)
	}
	build, ok := debug.ReadBuildInfo()
	for _, m := range build.Deps {
		if m.Path == "github.com/hashicorp/raft" && !strings.Contains(string(page), "# chaos/library: hashicorp/raft "+
			m.Version+",") {
			ok = false
		}
	}
	if !ok {
		t.Error("it speaks of another version of the library")
	}
}
