package docs_test

import (
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	testName   = regexp.MustCompile(`^(?:Test|Fuzz|Benchmark)[A-Z]\w*$`)
	testFunc   = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Benchmark)[A-Z]\w*)\(`)
	sourcePath = regexp.MustCompile(`^[a-z0-9_-]+(?:/[a-z0-9_-]+)+\.go$`)
)

// TestReferencesExist: tests and source files that a document names.
func TestReferencesExist(t *testing.T) {
	tests := testNames(t)
	if len(tests) < 100 {
		t.Fatalf("found only %d tests", len(tests))
	}
	for _, d := range documents(t) {
		report(t, d.path, checkReferences(d, tests))
	}
}

// checkReferences finds tests and paths of source files, in inline code, that do
// not exist.
func checkReferences(d document, tests map[string]bool) (problems []string) {
	_, inline := d.code()
	for _, code := range inline {
		if testName.MatchString(code) && !tests[code] {
			problems = append(problems, "there is no test "+code)
		}
		if sourcePath.MatchString(code) {
			if _, err := os.Stat(filepath.Join(root, filepath.FromSlash(code))); err != nil {
				problems = append(problems, "there is no file "+code)
			}
		}
	}
	return problems
}

func testNames(t *testing.T) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	err := filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(file, "_test.go") {
			return err
		}
		text, err := os.ReadFile(file)
		for _, m := range testFunc.FindAllStringSubmatch(string(text), -1) {
			names[m[1]] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

const architecture = "docs/ARCHITECTURE.md"

func TestPackagesAreInTheArchitecture(t *testing.T) {
	packages := strings.Fields(goCommand(t, "list", "-e", "./..."))
	if len(packages) < 15 {
		t.Fatalf("found only the packages %v", packages)
	}
	report(t, architecture, checkPackages(read(t, architecture), packages))
}

// checkPackages finds packages of which neither they nor one above them is in
// the table. The first one is the module's root.
func checkPackages(text string, packages []string) (problems []string) {
	table := ""
	for line := range strings.Lines(text) {
		if cells := strings.Split(line, "|"); len(cells) > 3 {
			table += cells[2]
		}
	}
	for _, p := range packages[1:] {
		known := false
		for dir := strings.TrimPrefix(p, packages[0]+"/"); dir != "." && !known; dir = path.Dir(dir) {
			known = strings.Contains(table, "`"+dir+"`")
		}
		if !known {
			problems = append(problems, "says nothing of the package "+p)
		}
	}
	return problems
}
