package main

import (
	"embed"
	"slices"
	"strings"
	"text/template"

	"github.com/alecthomas/kong"

	"northstar/cluster"
)

//go:embed completion/*.tmpl
var completionTemplates embed.FS

type completionCmd struct {
	Shell string `arg:"" enum:"bash,zsh,fish" help:"One of ${enum}."`
}

// Run prints a script with every command, flag and fixed value, so that completion does not start this program.
func (c *completionCmd) Run(a *app) error {
	quote := strings.NewReplacer(`'`, `'\''`)
	t, err := template.New("").Funcs(template.FuncMap{
		"quote":  func(s string) string { return "'" + quote.Replace(s) + "'" },
		"fish":   func(s string) string { return "'" + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(s) + "'" },
		"colons": func(s string) string { return strings.ReplaceAll(s, ":", `\:`) },
		"join":   func(s []string) string { return strings.Join(s, " ") },
		"bar":    func(s []string) string { return strings.Join(s, "|") },
	}).ParseFS(completionTemplates, "completion/*.tmpl")
	if err != nil {
		return err
	}
	return t.ExecuteTemplate(a.stdout, c.Shell+".tmpl", describe(a.model))
}

// completionSpec is the command line as the completion scripts need it.
type completionSpec struct {
	Places []completionNode
	Flags  []flagSpec // every flag with a value, once for each name
}

// completionNode is a point in the command line: the words that may follow these commands.
type completionNode struct {
	Path  string           // "", " kv", " kv get"
	Words []completionWord // commands and fixed arguments
	Flags []completionFlag
}

type completionWord struct{ Text, Help string }

// completionFlag is a flag at one point of the command line.
type completionFlag struct {
	completionWord
	Long, Short string   // without dashes; Short may be ""
	HasValue    bool     // and if so, which ones are allowed
	Values      []string // none: any
}

// flagSpec is a flag with a value.
type flagSpec struct {
	Names  []string // with their dashes
	Values []string // allowed values; none: any
}

func describe(app *kong.Application) completionSpec {
	g := completionSpec{}
	var walk func(n *kong.Node, path string, inherited []completionFlag)
	walk = func(n *kong.Node, path string, inherited []completionFlag) {
		inherited = slices.Concat(inherited, g.flags(n))
		p := completionNode{Path: path, Flags: inherited}
		if n.DefaultCmd != nil {
			p.Flags = slices.Concat(inherited, g.flags(n.DefaultCmd))
		}
		for _, arg := range n.Positional {
			for _, v := range arg.EnumSlice() {
				p.Words = append(p.Words, completionWord{Text: v})
			}
		}
		visible := slices.DeleteFunc(slices.Clone(n.Children), func(n *kong.Node) bool { return n.Hidden })
		for _, child := range visible {
			p.Words = append(p.Words, completionWord{child.Name, summary(child.Help)})
		}
		g.Places = append(g.Places, p)
		for _, child := range visible {
			walk(child, path+" "+child.Name, inherited)
		}
	}
	walk(app.Node, "", nil)
	return g
}

// fixedValues are the values of flags that the program checks itself.
var fixedValues = map[string][]string{"type": cluster.EventTypes}

// flags returns the flags of a command, and records those with a value.
func (g *completionSpec) flags(n *kong.Node) (flags []completionFlag) {
	word := func(name, help string) completionFlag {
		return completionFlag{completionWord: completionWord{"--" + name, summary(help)}, Long: name}
	}
	for _, f := range n.Flags {
		one := word(f.Name, f.Help)
		names := []string{one.Text}
		if f.Short != 0 {
			one.Short = string(f.Short)
			names = append(names, "-"+one.Short)
		}
		if one.HasValue = !f.IsBool(); one.HasValue {
			one.Values = slices.DeleteFunc(slices.Concat(f.EnumSlice(), fixedValues[f.Name]),
				func(v string) bool { return v == "" })
			g.add(names, one.Values)
		}
		flags = append(flags, one)
		if f.Tag.Negatable != "" {
			flags = append(flags, word("no-"+f.Name, f.Help))
		}
	}
	return flags
}

// add records a flag with a value, once even if several commands have it.
func (g *completionSpec) add(names, values []string) {
	if !slices.ContainsFunc(g.Flags, func(f flagSpec) bool { return f.Names[0] == names[0] }) {
		g.Flags = append(g.Flags, flagSpec{names, values})
	}
}

// summary returns the first sentence of a help text, without its full stop.
func summary(help string) string {
	s, _, _ := strings.Cut(help, " (")
	s, _, _ = strings.Cut(s, ";")
	return strings.TrimSuffix(s, ".")
}
