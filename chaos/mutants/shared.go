package mutants

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"northstar/chaos/overlay"
)

// Shared returns the sources of one program that has all these mutants. Package planted selects the one that has an
// effect. Each function that a mutant changes gets a changed copy beside it, and calls the copy when that mutant is
// selected. So a mutant may change imports and bodies of functions, and the names of their parameters.
func Shared(root string, all []Mutant) (overlay.Set, error) {
	set := overlay.Set{Root: root}
	files := map[string]*sharedFile{}
	for _, m := range all {
		changed := map[string]string{}
		for _, e := range m.Edits(root).Edits {
			f := files[e.File]
			if f == nil {
				text, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(e.File)))
				if err != nil {
					return set, err
				}
				f = &sharedFile{original: string(text), heads: map[string]string{}, calls: map[string]string{}}
				files[e.File] = f
			}
			text, ok := changed[e.File]
			if !ok {
				text = f.original
			}
			if strings.Count(text, e.Old) != 1 {
				return set, fmt.Errorf("%s does not apply to %s", m.Name, e.File)
			}
			changed[e.File] = strings.Replace(text, e.Old, e.New, 1)
		}
		for file, text := range changed {
			if err := files[file].add(m.Name, text); err != nil {
				return set, fmt.Errorf("%s: %s: %w", m.Name, file, err)
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		text, err := files[name].text()
		if err != nil {
			return set, fmt.Errorf("%s: %w", name, err)
		}
		set.Edits = append(set.Edits, overlay.Edit{File: name, Old: files[name].original, New: text})
	}
	return set, nil
}

// sharedFile is a source file with the changes of several mutants.
type sharedFile struct {
	original string
	imports  []string          // that it lacks
	heads    map[string]string // of changed functions, from func to the brace, by key
	calls    map[string]string // of their copies
	copies   strings.Builder
}

// parsed is a source file in parts.
type parsed struct {
	imports   []string
	functions map[string]function
	rest      string // the file without both, with single blanks
}

// function is a declaration and its text.
type function struct {
	*ast.FuncDecl
	head, body string
	name       int // where its name is in the head
}

func parseFile(text string) (p parsed, err error) {
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, "", text, 0)
	if err != nil {
		return p, err
	}
	p.functions = map[string]function{}
	at := func(pos token.Pos) int { return set.Position(pos).Offset }
	done := 0
	for _, d := range file.Decls {
		begin, end := at(d.Pos()), at(d.End())
		if g, ok := d.(*ast.GenDecl); ok && g.Tok == token.IMPORT {
			for _, s := range g.Specs {
				p.imports = append(p.imports, text[at(s.Pos()):at(s.End())])
			}
		} else if f, ok := d.(*ast.FuncDecl); ok && f.Body != nil {
			key, brace := f.Name.Name, at(f.Body.Lbrace)+1
			if f.Recv != nil {
				key = text[at(f.Recv.List[0].Type.Pos()):at(f.Recv.List[0].Type.End())] + "." + key
			}
			p.functions[key] = function{f, text[begin:brace], text[brace:end], at(f.Name.Pos()) - begin}
		} else {
			continue
		}
		p.rest += text[done:begin]
		done = end
	}
	p.rest = strings.Join(strings.Fields(p.rest+text[done:]), " ")
	return p, nil
}

// add adds the functions that differ in a mutant's version of the file.
func (s *sharedFile) add(mutant, text string) error {
	before, err := parseFile(s.original)
	if err != nil {
		return err
	}
	after, err := parseFile(text)
	if err != nil {
		return err
	}
	if before.rest != after.rest || len(before.functions) != len(after.functions) {
		return fmt.Errorf("it changes more than functions and imports")
	}
	for _, i := range after.imports {
		if !slices.Contains(before.imports, i) && !slices.Contains(s.imports, i) {
			s.imports = append(s.imports, i)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(after.functions)) {
		f := after.functions[key]
		if old := before.functions[key]; old.head == f.head && old.body == f.body {
			continue
		}
		copied := f.Name.Name + "_" + strings.ReplaceAll(mutant, "-", "_")
		call, err := f.call(copied)
		if err != nil {
			return err
		}
		s.heads[key] = f.head
		s.calls[key] += fmt.Sprintf(" if planted.Name == %q { %s };", mutant, call)
		s.copies.WriteString("\n" + f.head[:f.name] + copied + f.head[f.name+len(f.Name.Name):] + f.body + "\n")
	}
	return nil
}

// call returns the statements that call a copy of the function, with its own parameters, and return.
func (f function) call(copied string) (string, error) {
	var args []string
	for _, field := range f.Type.Params.List {
		if len(field.Names) == 0 {
			return "", fmt.Errorf("%s has parameters without names", f.Name.Name)
		}
		for _, n := range field.Names {
			arg := n.Name
			if _, variadic := field.Type.(*ast.Ellipsis); variadic {
				arg += "..."
			}
			args = append(args, arg)
		}
	}
	if slices.Contains(args, "_") || f.Type.TypeParams != nil || f.Recv != nil && len(f.Recv.List[0].Names) == 0 {
		return "", fmt.Errorf("%s has a receiver or parameter without a name, or is generic", f.Name.Name)
	}
	call := fmt.Sprintf("%s(%s)", copied, strings.Join(args, ", "))
	if f.Recv != nil {
		call = f.Recv.List[0].Names[0].Name + "." + call
	}
	if f.Type.Results == nil {
		return call + "; return", nil
	}
	return "return " + call, nil
}

// text returns the file with all changes.
func (s *sharedFile) text() (string, error) {
	p, err := parseFile(s.original)
	if err != nil {
		return "", err
	}
	text := s.original
	for key, call := range s.calls {
		f := p.functions[key]
		text = strings.Replace(text, f.head+f.body, s.heads[key]+call+f.body, 1)
	}
	imports := "; import \"northstar/chaos/mutants/planted\""
	for _, i := range s.imports {
		imports += "; import " + i
	}
	at := strings.Index(text, "\npackage ") + 1
	line := at + strings.Index(text[at:], "\n")
	return text[:line] + imports + text[line:] + s.copies.String(), nil
}
