package northstar_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// source is a package as go list describes it for another system.
type source struct {
	ImportPath, Dir string
	GoFiles         []string
	ImportMap       map[string]string
	Module          *struct{ Main bool }
}

// checked holds the packages that were type-checked, and imports them.
type checked struct {
	set   *token.FileSet
	sizes types.Sizes
	done  map[string]*types.Package
}

// check type-checks a package whose imports are checked already. The bodies of functions count only in this module.
func (c *checked) check(s source) error {
	if s.ImportPath == "unsafe" {
		c.done["unsafe"] = types.Unsafe
		return nil
	}
	files := make([]*ast.File, 0, len(s.GoFiles))
	for _, name := range s.GoFiles {
		f, err := parser.ParseFile(c.set, filepath.Join(s.Dir, name), nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		files = append(files, f)
	}
	ours := s.Module != nil && s.Module.Main
	var problems []error
	cfg := types.Config{
		Sizes: c.sizes, IgnoreFuncBodies: !ours,
		Importer: importer(func(path string) (*types.Package, error) {
			if actual := s.ImportMap[path]; actual != "" {
				path = actual
			}
			if p := c.done[path]; p != nil {
				return p, nil
			}
			return nil, fmt.Errorf("package %s was not checked", path)
		}),
		Error: func(err error) {
			if ours {
				problems = append(problems, err)
			}
		},
	}
	p, _ := cfg.Check(s.ImportPath, c.set, files, nil)
	c.done[s.ImportPath] = p
	return errors.Join(problems...)
}

type importer func(path string) (*types.Package, error)

func (i importer) Import(path string) (*types.Package, error) { return i(path) }

// sources returns packages for a system, each after its imports.
func sources(t *testing.T, goos, arch string, patterns ...string) (all []source) {
	t.Helper()
	cmd := exec.Command("go", append([]string{
		"list", "-deps", "-json=ImportPath,Dir,GoFiles,ImportMap,Module",
	}, patterns...)...)
	cmd.Env = append(os.Environ(), "GOOS="+goos, "GOARCH="+arch, "CGO_ENABLED=0")
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var s source
		if err := d.Decode(&s); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, s)
	}
}

// TestOtherSystems type-checks for macOS what is released for it, and what its users' tests import. That takes a
// twentieth of the time of a build; make portable FULL=1 builds.
func TestOtherSystems(t *testing.T) {
	t.Parallel()
	c := checked{set: token.NewFileSet(), sizes: types.SizesFor("gc", "arm64"), done: map[string]*types.Package{}}
	ours := 0
	for _, s := range sources(t, "darwin", "arm64", "./client/...", "./cmd/northstarctl", "./chaos/pg") {
		if err := c.check(s); err != nil {
			t.Errorf("%s for macOS: %v", s.ImportPath, err)
		}
		if s.Module != nil && s.Module.Main {
			ours++
		}
	}
	if ours < 10 {
		t.Errorf("only %d packages of this module", ours)
	}
	// It must be able to fail.
	dir := t.TempDir()
	text := "package p\n\nimport \"syscall\"\n\nfunc f() int { return syscall.PR_SET_PDEATHSIG }\n"
	if err := os.WriteFile(filepath.Join(dir, "p.go"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	p := source{ImportPath: "p", Dir: dir, GoFiles: []string{"p.go"}, Module: &struct{ Main bool }{true}}
	if err := c.check(p); err == nil || !strings.Contains(err.Error(), "PR_SET_PDEATHSIG") {
		t.Errorf("what macOS lacks: %v", err)
	}
}
