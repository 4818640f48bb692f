package client_test

import (
	"bytes"
	"go/importer"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// load returns a package of this module from the compiler's export data.
func load(t *testing.T, name string) *types.Package {
	t.Helper()
	out, err := exec.Command("go", "list", "-export", "-deps", "-f", "{{.ImportPath}} {{.Export}}", name).Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	files, path := map[string]string{}, ""
	for line := range bytes.Lines(out) {
		var file string
		path, file, _ = strings.Cut(strings.TrimSpace(string(line)), " ")
		files[path] = file
	}
	open := func(path string) (io.ReadCloser, error) { return os.Open(files[path]) }
	pkg, err := importer.ForCompiler(token.NewFileSet(), "gc", open).Import(path) // the last one is the package itself
	if err != nil {
		t.Fatal(err)
	}
	return pkg
}

// exported finds the types of this module that a program needs and cannot name by the package.
type exported struct {
	pkg    *types.Package
	module string
	named  map[types.Object]bool // types of other packages that have an alias in pkg
	seen   map[types.Type]bool
	report func(where string, t types.Type)
}

func newExported(pkg *types.Package, report func(string, types.Type)) *exported {
	module, _, _ := strings.Cut(pkg.Path(), "/client")
	e := &exported{
		pkg: pkg, module: module, named: map[types.Object]bool{}, seen: map[types.Type]bool{}, report: report,
	}
	for _, name := range pkg.Scope().Names() {
		if o, ok := pkg.Scope().Lookup(name).(*types.TypeName); ok && o.Exported() && o.IsAlias() {
			if n, ok := types.Unalias(o.Type()).(*types.Named); ok {
				e.named[n.Obj()] = true
			}
		}
	}
	return e
}

func (e *exported) all() {
	for _, name := range e.pkg.Scope().Names() {
		if o := e.pkg.Scope().Lookup(name); o.Exported() {
			e.visit(name, o.Type(), true)
		}
	}
}

// visit reports foreign types in what t shows. Of the package's own declarations, a foreign type must be written by its
// alias; within the fields of an alias it is enough that there is one.
func (e *exported) visit(where string, t types.Type, own bool) {
	switch t := t.(type) {
	case *types.Alias:
		if t.Obj().Pkg() == e.pkg {
			own = false
		}
		e.visit(where, types.Unalias(t), own)
	case *types.Named:
		e.visitNamed(where, t, own)
	case *types.Struct:
		for f := range t.Fields() {
			if f.Exported() {
				e.visit(where+"."+f.Name(), f.Type(), own)
			}
		}
	case *types.Signature:
		for _, list := range []*types.Tuple{t.Params(), t.Results()} {
			for v := range list.Variables() {
				e.visit(where, v.Type(), own)
			}
		}
	case *types.Interface:
		for m := range t.ExplicitMethods() {
			e.visit(where+"."+m.Name(), m.Type(), own)
		}
	case *types.Map:
		e.visit(where, t.Key(), own)
		e.visit(where, t.Elem(), own)
	case interface{ Elem() types.Type }: // pointer, slice, array, channel
		e.visit(where, t.Elem(), own)
	}
}

func (e *exported) visitNamed(where string, t *types.Named, own bool) {
	for arg := range t.TypeArgs().Types() {
		e.visit(where, arg, own)
	}
	pkg := t.Obj().Pkg()
	if pkg == nil || pkg.Path() != e.module && !strings.HasPrefix(pkg.Path(), e.module+"/") {
		return
	}
	if foreign := pkg != e.pkg; foreign && (own || !e.named[t.Obj()]) {
		e.report(where, t)
		return
	}
	if e.seen[t] {
		return
	}
	e.seen[t] = true
	own = pkg == e.pkg
	e.visit(where, t.Underlying(), own)
	for m := range t.Methods() {
		if m.Exported() {
			e.visit(where+"."+m.Name(), m.Type(), own)
		}
	}
}

// A program that uses the client needs no other package of NorthStar: every type in an exported signature has a name
// in package client.
func TestExportedTypes(t *testing.T) {
	t.Parallel()
	e := newExported(load(t, "."), func(where string, typ types.Type) {
		t.Errorf("%s: %s has no name in package client, or is written by the one of its own package", where, typ)
	})
	e.all()
	if len(e.seen) < 80 {
		t.Errorf("only %d types were visited", len(e.seen))
	}
}

// TestExportedTypesCanFail hides one alias from the check.
func TestExportedTypesCanFail(t *testing.T) {
	t.Parallel()
	found := map[string]bool{}
	e := newExported(load(t, "."), func(where string, _ types.Type) { found[where] = true })
	for o := range e.named {
		if o.Name() == "Quorum" {
			delete(e.named, o)
		}
	}
	e.all()
	e.visit("a foreign type of its own", e.pkg.Scope().Lookup("NodeID").Type().(*types.Alias).Rhs(), true)
	hidden := found["Cluster.Quorum"] || found["Client.Cluster.Quorum"]
	if !hidden || !found["a foreign type of its own"] || len(found) > 4 {
		t.Errorf("found %v", found)
	}
}
