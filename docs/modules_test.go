package docs_test

import (
	"fmt"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const dependencies = "docs/decisions/003-dependencies.md"

// TestDependenciesAreTheDecision: what the module uses by itself, in code, tests
// and tools, is what the table of decision 003 gives reasons for.
func TestDependenciesAreTheDecision(t *testing.T) {
	used := directModules(t)
	if len(used) < 15 {
		t.Fatalf("found only the modules %v", used)
	}
	report(t, dependencies, checkDependencies(read(t, dependencies), used))
}

var tableModule = regexp.MustCompile("`([a-z0-9.]+/[^`\\s]+)( v[^`]+)?`")

// checkDependencies compares the modules in the table's first column with those
// in use, given with their versions.
func checkDependencies(text string, used map[string]string) (problems []string) {
	listed := map[string]bool{}
	for line := range strings.Lines(text) {
		cells := strings.Split(line, "|")
		if len(cells) < 4 {
			continue
		}
		for _, m := range tableModule.FindAllStringSubmatch(cells[1], -1) {
			path, version := m[1], strings.TrimSpace(m[2])
			have, inUse := used[path]
			switch {
			case !inUse:
				problems = append(problems, path+" is in the table, and nothing uses it")
			case version != "" && version != have:
				problems = append(problems, fmt.Sprintf("%s is %s in the table and %s in go.mod", path, version, have))
			}
			listed[path] = true
		}
	}
	for path := range used {
		if !listed[path] {
			problems = append(problems, path+" is used, and not in the table")
		}
	}
	return problems
}

// directModules are what go.mod requires directly, and its tools, with their
// versions.
func directModules(t *testing.T) map[string]string {
	t.Helper()
	lists := goCommand(t, "list", "-m", "-f", "{{if not (or .Indirect .Main)}}{{.Path}} {{.Version}}{{end}}", "all") +
		goCommand(t, "list", "-f", "{{.Module.Path}} {{.Module.Version}}", "tool")
	used := map[string]string{}
	for line := range strings.Lines(lists) {
		if path, version, ok := strings.Cut(strings.TrimSpace(line), " "); ok {
			used[path] = version
		}
	}
	return used
}

func goCommand(t *testing.T, args ...string) string {
	t.Helper()
	cmd := exec.Command("go", args...)
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go %s: %v", strings.Join(args, " "), err)
	}
	return string(out)
}

// TestDecisionsAreShortAndNumbered checks the name, the title and the length of every
// decision, and that no number is used twice.
func TestDecisionsAreShortAndNumbered(t *testing.T) {
	var numbers []string
	for _, d := range documents(t) {
		name, ok := strings.CutPrefix(d.path, "docs/decisions/")
		if !ok || name == "README.md" {
			continue
		}
		report(t, d.path, checkDecision(document{name, d.text}))
		if slices.Contains(numbers, name[:3]) {
			t.Errorf("%s: the number %s is used twice", d.path, name[:3])
		}
		numbers = append(numbers, name[:3])
	}
	if len(numbers) < 10 {
		t.Errorf("found only the decisions %v", numbers)
	}
}

// maxDecisionLines bounds a decision: a page that is read as a whole.
const maxDecisionLines = 100

func checkDecision(d document) (problems []string) {
	if !regexp.MustCompile(`^\d{3}-[a-z-]+\.md$`).MatchString(d.path) || !strings.HasPrefix(d.text, "# "+d.path[:3]+": ") {
		problems = append(problems, "wants a name NNN-words.md and the title # NNN: …")
	}
	if n := strings.Count(d.text, "\n"); n > maxDecisionLines {
		problems = append(problems, fmt.Sprintf("has %d lines, at most %d", n, maxDecisionLines))
	}
	return problems
}
