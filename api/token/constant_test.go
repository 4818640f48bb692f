package token

import (
	"go/ast"
	"go/parser"
	"go/token"
	"testing"
)

// How long it takes to look for a token says nothing about it: every entry is
// compared, whole. No clock shows that on a machine that does anything else, so it
// is read off the code: in the loop of Find nothing ends it, branches, or compares but
// in constant time.
func TestFindTakesAsLongForAnyToken(t *testing.T) {
	f, err := parser.ParseFile(token.NewFileSet(), "token.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	loops, compares := 0, 0
	for _, d := range f.Decls {
		find, ok := d.(*ast.FuncDecl)
		if !ok || find.Name.Name != "Find" {
			continue
		}
		ast.Inspect(find, func(n ast.Node) bool {
			loop, ok := n.(*ast.RangeStmt)
			if !ok {
				return true
			}
			loops++
			ast.Inspect(loop.Body, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.IfStmt, *ast.SwitchStmt, *ast.BranchStmt, *ast.ReturnStmt, *ast.BinaryExpr:
					t.Errorf("the loop has a %T", n)
				case *ast.CallExpr:
					of, ok := n.Fun.(*ast.SelectorExpr)
					if !ok {
						t.Errorf("the loop calls %v", n.Fun)
						return true
					}
					if pkg, ok := of.X.(*ast.Ident); !ok || pkg.Name != "subtle" {
						t.Errorf("the loop calls %v.%s", of.X, of.Sel.Name)
					}
					compares++
				}
				return true
			})
			return false
		})
	}
	if loops != 1 || compares == 0 {
		t.Errorf("%d loops with %d comparisons in Find", loops, compares)
	}
}
