package docs_test

import (
	"encoding/json"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestPagesAreReachable holds that a reader who starts at the README finds every
// page by links.
func TestPagesAreReachable(t *testing.T) {
	report(t, "README.md", checkReachable(documents(t)))
}

// checkReachable finds documents that no chain of links from README.md leads to.
// A link to a directory reaches all pages in it.
func checkReachable(docs []document) (problems []string) {
	reached := map[string]bool{}
	var visit func(path string)
	visit = func(path string) {
		for _, d := range docs {
			if (d.path != path && filepath.Dir(d.path) != path) || reached[d.path] {
				continue
			}
			reached[d.path] = true
			for _, m := range link.FindAllStringSubmatch(d.text, -1) {
				file, _, _ := strings.Cut(m[1], "#")
				if file != "" && !strings.Contains(file, "://") {
					visit(filepath.ToSlash(filepath.Join(filepath.Dir(d.path), file)))
				}
			}
		}
	}
	visit("README.md")
	for _, d := range docs {
		if !reached[d.path] {
			problems = append(problems, "no chain of links leads to "+d.path)
		}
	}
	return problems
}

// TestIndexListsEveryPage holds the index of docs/ against its files.
func TestIndexListsEveryPage(t *testing.T) {
	index := read(t, "docs/README.md")
	for _, d := range documents(t) {
		name, ok := strings.CutPrefix(d.path, "docs/")
		if ok && !strings.Contains(name, "/") && name != "README.md" && !strings.Contains(index, "("+name+")") {
			t.Errorf("docs/README.md does not list %s", name)
		}
	}
}

const (
	apiPage = "docs/api.md"
	cliPage = "docs/cli.md"
)

// TestAPIPageHasEveryCall holds the page of the API against the route table.
func TestAPIPageHasEveryCall(t *testing.T) {
	calls := routes(t)
	if len(calls) < 50 {
		t.Fatalf("found only the calls %q", calls)
	}
	report(t, apiPage, checkCalls(document{apiPage, read(t, apiPage)}, calls))
}

// withoutExample are calls of browsers, of other nodes, and variants of a GET.
var withoutExample = []string{
	"GET /", "GET /dashboard/{file}", "GET /dashboard/feed", "POST /v1/sessions/attached", "OPTIONS /health/leader",
	"OPTIONS /health/follower",
}

// checkCalls finds calls that a page does not have as inline code, or has no
// example with curl for.
func checkCalls(d document, calls []string) (problems []string) {
	blocks, inline := d.code()
	var examples []string
	for _, b := range blocks {
		examples = append(examples, b.commandLines()...)
	}
	for _, call := range calls {
		if !slices.Contains(inline, call) {
			problems = append(problems, "says nothing of "+call)
		}
		if !slices.Contains(withoutExample, call) && !slices.ContainsFunc(examples, exampleOf(call).MatchString) {
			problems = append(problems, "has no example with curl of "+call)
		}
	}
	return problems
}

var pathWildcard = regexp.MustCompile(`\\{\w+\\}`)

// exampleOf returns a pattern of the command lines that make a call.
func exampleOf(call string) *regexp.Regexp {
	method, path, _ := strings.Cut(call, " ")
	options := `[^$]*-X ` + method + ` .*`
	if method == "GET" {
		options = `(?:-[a-zA-Z]+ (?:'[^']*' |/dev/null |[a-z]+\.backup )?)*"?`
	}
	target := pathWildcard.ReplaceAllString(regexp.QuoteMeta(path), `[^?" ]+`)
	return regexp.MustCompile(`^curl ` + options + `(?:\$N|127\.0\.0\.1:\d+)` + target + `(?:[?" ].*)?$`)
}

// routes returns each call of the committed OpenAPI document, such as "GET /leader".
func routes(t *testing.T) (calls []string) {
	t.Helper()
	var doc struct{ Paths map[string]map[string]any }
	if err := json.Unmarshal([]byte(read(t, "api/openapi/openapi.json")), &doc); err != nil {
		t.Fatal(err)
	}
	for path, methods := range doc.Paths {
		for method := range methods {
			if method != "head" && method != "parameters" { // HEAD is a variant of GET
				calls = append(calls, strings.ToUpper(method)+" "+path)
			}
		}
	}
	slices.Sort(calls)
	return calls
}

// TestCLIPageHasEveryCommand holds the page of the command lines against the
// programs' help.
func TestCLIPageHasEveryCommand(t *testing.T) {
	for name, p := range programs(t) {
		for command := range p.commands {
			if command != "" && !p.aliases[command] && !strings.Contains(read(t, cliPage), name+" "+command) {
				t.Errorf("%s says nothing of %s %s", cliPage, name, command)
			}
		}
	}
}

// runbookParts are the parts of each section of the runbook, in order.
var runbookParts = []string{"Symptom", "Meaning", "Check", "Act", "Verify"}

// TestRunbookSectionsHaveTheSameParts holds that a reader in a hurry finds the
// same five parts in each section.
func TestRunbookSectionsHaveTheSameParts(t *testing.T) {
	report(t, runbook, checkRunbookParts(read(t, runbook)))
}

var runbookPart = regexp.MustCompile(`(?m)^- \*\*(\w+)\.\*\*`)

func checkRunbookParts(text string) (problems []string) {
	sections := strings.Split(text, "\n## ")[1:]
	if len(sections) == 0 {
		return []string{"has no sections"}
	}
	for _, s := range sections {
		var parts []string
		for _, m := range runbookPart.FindAllStringSubmatch(s, -1) {
			parts = append(parts, m[1])
		}
		if !slices.Equal(parts, runbookParts) {
			title, _, _ := strings.Cut(s, "\n")
			problems = append(problems, title+" has the parts "+strings.Join(parts, ", "))
		}
	}
	return problems
}
