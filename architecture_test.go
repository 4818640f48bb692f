package northstar_test

import (
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const raft = "github.com/hashicorp/raft"

// module is the path of this module; make module-path changes it.
var module = func() string {
	text, err := os.ReadFile("go.mod")
	if err != nil {
		panic(err)
	}
	line, _, _ := strings.Cut(string(text), "\n")
	return strings.TrimPrefix(line, "module ")
}()

// layers is the table of docs/ARCHITECTURE.md. A package has the layer of the
// longest entry that is its path or the beginning of it.
var layers = map[string]int{
	"cluster": 0, "api/apiv1": 0, "api/token": 0, "tracing": 0,
	"state": 1, "election": 1, "health": 1, "splitbrain": 1, "telemetry": 1,
	"api/problem": 1, "api/openapi": 1, "api/stream": 1, "api/forward": 1,
	"transport": 2, "transport/crashdetect": 2, "transport/monitor": 2,
	"consensus": 2, "transfer": 2, "failover": 2, "roles": 2, "audit": 2, "api": 2, "etcd": 2, "client": 2,
	"node": 3,
	"cmd":  4, "chaos": 4, "benchmarks": 4, "docs": 4, // docs: the tests of the documents
}

// sideways lists the imports within a layer that the table allows: chaos/proc
// starts real processes for tests and measurements alike.
var sideways = map[string][]string{
	"election":          {"health"},
	"api/forward":       {"api/problem", "api/stream"},
	"transport/monitor": {"transport/crashdetect"},
	"benchmarks":        {"chaos/proc"},
}

var (
	raftUsers = []string{"consensus", "transport", "node", "chaos", "benchmarks"}
	badNames  = []string{"util", "utils", "common", "types", "misc", "helpers", "internal"}
)

type listed struct {
	ImportPath, Dir  string
	Imports, GoFiles []string
}

func packages(t *testing.T) []listed {
	t.Helper()
	out, err := exec.Command("go", "list", "-e", "-json=ImportPath,Dir,Imports,GoFiles", "./...").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var all []listed
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p listed
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		if p.ImportPath != module {
			all = append(all, p)
		}
	}
}

// within reports whether path is dir or below it.
func within(path, dir string) bool { return path == dir || strings.HasPrefix(path, dir+"/") }

// entry is the line of the table that a package falls under.
func entry(path string) (string, bool) {
	best := ""
	for e := range layers {
		if within(path, e) && len(e) > len(best) {
			best = e
		}
	}
	return best, best != ""
}

// mayImport is the rule: lower layers, the parent, subpackages, and siblings
// under one entry of the table only where the entry is a family of programs.
func mayImport(from, to string) bool {
	fromEntry, _ := entry(from)
	toEntry, _ := entry(to)
	if layers[toEntry] < layers[fromEntry] || within(from, to) || within(to, from) {
		return true
	}
	if fromEntry == toEntry && (fromEntry == "chaos" || fromEntry == "benchmarks") {
		return true
	}
	return slices.ContainsFunc(sideways[fromEntry], func(e string) bool { return within(to, e) })
}

func TestImportsPointDown(t *testing.T) {
	for _, p := range packages(t) {
		from := strings.TrimPrefix(p.ImportPath, module+"/")
		fromEntry, ok := entry(from)
		if !ok {
			t.Errorf("%s is not in the table of packages: give it a layer, here and in docs/ARCHITECTURE.md", from)
			continue
		}
		for _, part := range strings.Split(from, "/") {
			if slices.Contains(badNames, part) {
				t.Errorf("%s: %q says nothing of what the package owns", from, part)
			}
		}
		for _, imported := range p.Imports {
			if within(imported, raft) && !slices.Contains(raftUsers, fromEntry) {
				t.Errorf("%s imports %s: only %v may", from, imported, raftUsers)
			}
			to, ours := strings.CutPrefix(imported, module+"/")
			if ours && !mayImport(from, to) {
				t.Errorf("%s (layer %d) imports %s: it may import lower layers, its parent and its own subpackages",
					from, layers[fromEntry], to)
			}
			if from == "cluster" && strings.Contains(imported, ".") {
				t.Errorf("cluster imports %s: it is to use the standard library only", imported)
			}
		}
	}
}

func TestTheRuleItself(t *testing.T) {
	for _, c := range []struct {
		from, to string
		want     bool
	}{
		{"api", "state", true},
		{"api", "consensus", false},
		{"api", "api/apiv1", true},
		{"api/attach", "api/forward", true},
		{"api/forward", "api/problem", true},
		{"api/forward", "state", false},
		{"api/openapi", "api/forward", false},
		{"api/attach", "roles", false},
		{"client", "api/apiv1", true},
		{"client", "api", false},
		{"consensus", "consensus/storage", true},
		{"consensus/raftnode", "consensus/storage", false},
		{"consensus/storage", "consensus", true},
		{"consensus/storage", "transport", false},
		{"state", "node", false},
		{"election", "health", true},
		{"health", "election", false},
		{"node", "api", true},
		{"chaos/sim", "chaos/check", true},
		{"cmd/northstarctl", "cmd/northstar-node", false},
	} {
		if got := mayImport(c.from, c.to); got != c.want {
			t.Errorf("mayImport(%s, %s) = %v", c.from, c.to, got)
		}
	}
}

// TestOnlyMainExits: os.Exit skips every deferred clean-up, so only a main
// function may call it.
func TestOnlyMainExits(t *testing.T) {
	for _, p := range packages(t) {
		for _, name := range p.GoFiles {
			set := token.NewFileSet()
			file, err := parser.ParseFile(set, filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
			if err != nil {
				continue // the compiler says it better
			}
			for _, decl := range file.Decls {
				f, ok := decl.(*ast.FuncDecl)
				if ok && f.Name.Name == "main" && file.Name.Name == "main" {
					continue
				}
				ast.Inspect(decl, func(n ast.Node) bool {
					if s, ok := n.(*ast.SelectorExpr); ok && s.Sel.Name == "Exit" {
						if x, ok := s.X.(*ast.Ident); ok && x.Name == "os" {
							t.Errorf("%s: os.Exit outside of main", set.Position(s.Pos()))
						}
					}
					return true
				})
			}
		}
	}
}
