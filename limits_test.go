package northstar_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Limits on the size of things, so that a reader sees each of them on one screen or two.
const (
	maxFileLines  = 400
	maxFuncLines  = 60
	maxMethods    = 8
	maxParams     = 6
	maxLineLength = 120 // a tab counts as four
)

// sizeException begins the comment of a declaration, or of a file's package clause, that may be larger, before the
// reason.
const sizeException = "Large because "

// longLiteral is a string that is not worth breaking.
var longLiteral = regexp.MustCompile(`"([^"\\]|\\.){40,}`)

func TestSizes(t *testing.T) {
	for _, path := range goFiles(t) {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, problem := range longLines(t, path, text) {
			t.Error(problem)
		}
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		for _, problem := range oversized(t, path, text) {
			t.Error(problem)
		}
	}
}

// longLines returns the lines of a file that are too long. Lines with a literal between backquotes may be.
func longLines(t *testing.T, path string, text []byte) (problems []string) {
	t.Helper()
	raw := map[int]bool{} // by line
	for _, c := range texts(t, path, text) {
		if c.kind == token.STRING {
			raw[c.line] = raw[c.line] || c.raw
		}
	}
	for i, line := range strings.Split(string(text), "\n") {
		n := len([]rune(strings.ReplaceAll(line, "\t", "    ")))
		if n > maxLineLength && !raw[i+1] && !longLiteral.MatchString(line) {
			problems = append(problems, fmt.Sprintf("%s:%d: %d columns, at most %d", path, i+1, n, maxLineLength))
		}
	}
	return problems
}

// goFiles returns the paths of all Go files of the module, those of nested modules excepted.
func goFiles(t *testing.T) (paths []string) {
	t.Helper()
	err := filepath.WalkDir(".", func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && path != "." {
			if _, err := os.Stat(filepath.Join(path, "go.mod")); err == nil || strings.HasPrefix(d.Name(), ".") {
				return filepath.SkipDir
			}
		}
		if filepath.Ext(path) == ".go" {
			paths = append(paths, path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return paths
}

// oversized returns what in a file exceeds the limits, without the declarations that say why.
func oversized(t *testing.T, path string, text []byte) (problems []string) {
	t.Helper()
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, path, text, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	exceeds := func(n ast.Node, doc *ast.CommentGroup, kind, name string, size, limit int) {
		if size > limit && !strings.Contains(strings.ReplaceAll(doc.Text(), "\n", " "), sizeException) {
			problems = append(problems, fmt.Sprintf("%s: %s %s: %d, at most %d", set.Position(n.Pos()), name, kind, size, limit))
		}
	}
	exceeds(file, file.Doc, "lines", path, strings.Count(string(text), "\n"), maxFileLines)
	for _, decl := range file.Decls {
		switch d := decl.(type) {
		case *ast.FuncDecl:
			exceeds(d, d.Doc, "lines", d.Name.Name, set.Position(d.End()).Line-set.Position(d.Pos()).Line+1, maxFuncLines)
			exceeds(d, d.Doc, "parameters", d.Name.Name, d.Type.Params.NumFields(), maxParams)
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				ts, ok := spec.(*ast.TypeSpec)
				if !ok {
					continue
				}
				doc := ts.Doc
				if doc == nil {
					doc = d.Doc
				}
				if it, ok := ts.Type.(*ast.InterfaceType); ok {
					exceeds(ts, doc, "methods", ts.Name.Name, methods(it), maxMethods)
				}
			}
		}
	}
	return problems
}

// methods counts an interface's methods, with those of the interfaces of the same file that it embeds.
func methods(it *ast.InterfaceType) (n int) {
	for _, field := range it.Methods.List {
		name, ok := field.Type.(*ast.Ident)
		if !ok || name.Obj == nil {
			n += max(1, len(field.Names))
			continue
		}
		if spec, ok := name.Obj.Decl.(*ast.TypeSpec); ok {
			if embedded, ok := spec.Type.(*ast.InterfaceType); ok {
				n += methods(embedded)
			}
		}
	}
	return n
}

func TestLongLines(t *testing.T) {
	t.Parallel()
	const odd = "// a comment with a ` alone\n"
	long := strings.Repeat("x", maxLineLength)
	for name, c := range map[string]struct {
		text string
		want int
	}{
		"none":                        {"var x = 1\n", 0},
		"comment":                     {"// " + long + "\n", 1},
		"literal":                     {"var x = \"" + long + "\"\n", 0},
		"raw literal":                 {"var x = `" + long + "`\n", 0},
		"raw literal of lines":        {"var x = `\n" + long + "\n`\n", 0},
		"after a raw literal":         {"var x = `\n` // " + long + "\n// " + long + "\n", 1},
		"after a backquote":           {odd + "// " + long + "\n", 1},
		"comment with backquotes":     {"// `" + long + "`\n", 1},
		"after a backquote in a rune": {"var x = '`'\n// " + long + "\n", 1},
	} {
		if got := longLines(t, "x.go", []byte("package x\n"+c.text)); len(got) != c.want {
			t.Errorf("%s: %q, want %d", name, got, c.want)
		}
	}
}

// TestSizesCanFail checks each limit with something that exceeds it.
func TestSizesCanFail(t *testing.T) {
	long := "func f() {\n" + strings.Repeat("\t_ = 0\n", maxFuncLines) + "}\n"
	for name, c := range map[string]struct {
		text string
		want int
	}{
		"function":   {long, 1},
		"exception":  {"// f is a table.\n// " + sizeException + "it is a table.\n" + long, 0},
		"file":       {strings.Repeat("\n", maxFileLines+1), 1},
		"parameters": {"func f(a, b, c, d, e, f, g int) {}\n", 1},
		"interface":  {"type i interface{ A(); B(); C(); D(); E(); F(); G(); H(); I() }\n", 1},
		"embedded":   {"type i interface{ A(); B(); C(); j }\ntype j interface { D(); E(); F(); G(); H(); I() }\n", 1},
		"none":       {"func f() {}\n", 0},
	} {
		if got := oversized(t, "x.go", []byte("package x\n"+c.text)); len(got) != c.want {
			t.Errorf("%s: %q, want %d", name, got, c.want)
		}
	}
}
