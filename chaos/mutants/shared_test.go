package mutants

import (
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"northstar/chaos/overlay"
)

// All mutants that the simulation finds fit into one program.
func TestShared(t *testing.T) {
	all, err := All()
	if err != nil {
		t.Fatal(err)
	}
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	set, err := Shared(root, all)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := overlay.Write(t.TempDir(), set); err != nil {
		t.Error(err)
	}
	for _, e := range set.Edits {
		if _, err := parser.ParseFile(token.NewFileSet(), e.File, e.New, parser.AllErrors); err != nil {
			t.Error(err)
		}
	}
	for _, m := range all {
		if !slices.ContainsFunc(set.Edits, func(e overlay.Edit) bool {
			return strings.Contains(e.New, "if planted.Name == \""+m.Name+"\"")
		}) {
			t.Errorf("%s is not in the shared program", m.Name)
		}
	}
}

// Two mutants of one function, an import, a changed parameter name, and what cannot be shared.
func TestSharedFile(t *testing.T) {
	const original = "// Package p.\npackage p\n\nimport \"fmt\"\n\nfunc (r *R) F(int) error {\n\treturn nil\n}\n\n" +
		"func G(a, b int, more ...string) { fmt.Println(a) }\n\nvar x = 1\n"
	f := &sharedFile{original: original, heads: map[string]string{}, calls: map[string]string{}}
	swap := func(from, to string) string { return strings.Replace(original, from, to, 1) }
	for name, text := range map[string]string{
		"one":   swap("F(int) error {\n\treturn nil", "F(i int) error {\n\treturn err(i)"),
		"b-two": strings.Replace(swap("Println(a)", "Println(os.Args)"), "\"fmt\"", "\"fmt\"\nimport \"os\"", 1),
	} {
		if err := f.add(name, text); err != nil {
			t.Fatal(err)
		}
	}
	got, err := f.text()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"package p; import \"northstar/chaos/mutants/planted\"; import \"os\"\n",
		"func (r *R) F(i int) error { if planted.Name == \"one\" { return r.F_one(i) };\n\treturn nil\n}",
		"func (r *R) F_one(i int) error {\n\treturn err(i)\n}",
		"func G(a, b int, more ...string) { if planted.Name == \"b-two\" { G_b_two(a, b, more...); return }; fmt.Println(a) }",
		"func G_b_two(a, b int, more ...string) { fmt.Println(os.Args) }",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is missing in\n%s", want, got)
		}
	}
	for _, text := range []string{
		swap("x = 1", "x = 2"),
		swap("F(int) error {\n\treturn nil", "F(int) error {\n\treturn err"),
		original + "\nfunc H() {}\n",
	} {
		if err := f.add("three", text); err == nil {
			t.Errorf("shared:\n%s", text)
		}
	}
}
