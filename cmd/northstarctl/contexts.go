package main

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"
)

// namedContext is how to reach one cluster. Tokens stay in files of their own.
type namedContext struct {
	Endpoints []string `toml:"endpoints" json:"endpoints"`
	TokenFile string   `toml:"token-file,omitempty" json:"token_file"`
	CA        string   `toml:"ca,omitempty" json:"ca"`
	Cert      string   `toml:"cert,omitempty" json:"cert"`
	Key       string   `toml:"key,omitempty" json:"key"`
}

// contextFile is the file of the contexts.
type contextFile struct {
	Current  string                  `toml:"current,omitempty"`
	Contexts map[string]namedContext `toml:"context"`
}

func (g *globals) contextPath() (string, error) {
	if g.ContextFile != "" {
		return g.ContextFile, nil
	}
	dir, err := os.UserConfigDir()
	if err != nil {
		return "", fmt.Errorf("find the user's configuration directory: %w", err)
	}
	return filepath.Join(dir, "northstar", "contexts.toml"), nil
}

// readContexts returns the contexts; none if the file does not exist.
func (g *globals) readContexts() (contextFile, error) {
	file := contextFile{Contexts: map[string]namedContext{}}
	path, err := g.contextPath()
	if err != nil {
		return file, err
	}
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return file, nil
	}
	if err != nil {
		return file, err
	}
	defer f.Close()
	if err := toml.NewDecoder(f).DisallowUnknownFields().Decode(&file); err != nil {
		return file, fmt.Errorf("contexts: %s: %w", path, err)
	}
	return file, nil
}

func (g *globals) writeContexts(file contextFile) error {
	path, err := g.contextPath()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	return writeFile(path, 0o600, func(f *os.File) error { return toml.NewEncoder(f).Encode(file) })
}

// applyContext fills in the connection flags from the context that is named, or from the current one. Other
// endpoints, of the command line or the environment, count instead of a context that the command line does not name:
// its credentials are not sent to another cluster. If the command line names it, only other flags there come first: the
// environment's credentials are those of another cluster, also where the context has none.
func (a *app) applyContext() error {
	named := a.onLine["context"]
	if a.given["endpoints"] && !named {
		return nil
	}
	if _, err := os.Stat(a.ContextFile); a.ContextFile != "" && errors.Is(err, fs.ErrNotExist) {
		return usagef("--context-file: %v", err)
	}
	name := a.UseContext
	file, err := a.readContexts()
	if name == "" && err == nil {
		name = file.Current
	}
	if err != nil {
		return &usageError{err}
	}
	if name == "" {
		return nil
	}
	c, ok := file.Contexts[name]
	if !ok {
		return usagef("--context: there is no context %q; northstarctl context ls lists them", name)
	}
	first := a.given
	if named {
		first = a.onLine
	}
	if !first["endpoints"] {
		if len(c.Endpoints) == 0 {
			return usagef("context %s has no endpoints: northstarctl context set gives it some", name)
		}
		a.Endpoints = c.Endpoints
	}
	if !first["token"] {
		a.Token = ""
		if !first["token-file"] {
			a.TokenFile = c.TokenFile
		}
	}
	for flag, value := range map[string]struct {
		flag *string
		file string
	}{"ca": {&a.CA, c.CA}, "cert": {&a.Cert, c.Cert}, "key": {&a.Key, c.Key}} {
		if !first[flag] {
			*value.flag = value.file
		}
	}
	return nil
}

type contextCmd struct {
	Ls  contextLsCmd  `cmd:"" default:"1" aliases:"list" help:"List the contexts."`
	Use contextUseCmd `cmd:"" help:"Make a context the current one: commands without --endpoints use it."`
	Set contextSetCmd `cmd:"" help:"Add a context, or change one, with the flags --endpoints, --token-file, --ca, --cert and --key."`
	Rm  contextRmCmd  `cmd:"" help:"Remove a context."`
}

type contextLsCmd struct{}

// contextLine is the JSON form of a context.
type contextLine struct {
	Name    string `json:"name"`
	Current bool   `json:"current"`
	namedContext
}

func (*contextLsCmd) Run(a *app) error {
	file, err := a.readContexts()
	if err != nil {
		return err
	}
	lines := []contextLine{}
	for _, name := range slices.Sorted(maps.Keys(file.Contexts)) {
		lines = append(lines, contextLine{name, name == file.Current, file.Contexts[name]})
	}
	return a.printResult(lines, func() error {
		header := []string{"current", "name", "endpoints", "token file", "ca", "certificate"}
		return tableOf(a, header, lines, func(l contextLine) []any {
			mark := ""
			if l.Current {
				mark = "*"
			}
			return []any{
				mark, l.Name, strings.Join(l.Endpoints, ","), orDash(l.TokenFile), orDash(l.CA), orDash(l.Cert),
			}
		})
	})
}

type contextUseCmd struct {
	Name string `arg:"" help:"The context; - for none."`
}

func (c *contextUseCmd) Run(a *app) error {
	file, err := a.readContexts()
	if err != nil {
		return err
	}
	if c.Name == "-" {
		file.Current = ""
		return a.saveContexts(file, "no context is current")
	}
	if _, ok := file.Contexts[c.Name]; !ok {
		return &notFoundError{fmt.Errorf("there is no context %q", c.Name)}
	}
	file.Current = c.Name
	return a.saveContexts(file, "context "+c.Name+" is current")
}

type contextSetCmd struct {
	Name string `arg:"" help:"The context."`
}

func (c *contextSetCmd) Run(a *app) error {
	file, err := a.readContexts()
	if err != nil {
		return err
	}
	entry, exists := file.Contexts[c.Name]
	switch {
	case c.Name == "" || c.Name == "-":
		return usagef("<name>: must not be empty or -")
	case a.onLine["token"]:
		return usagef("--token: contexts hold no tokens; put it into a file and give --token-file")
	case !exists && !a.onLine["endpoints"]:
		return usagef("--endpoints: a new context needs it")
	}
	if a.onLine["endpoints"] {
		entry.Endpoints = a.Endpoints
	}
	for flag, field := range map[string]struct{ to, from *string }{
		"token-file": {&entry.TokenFile, &a.TokenFile}, "ca": {&entry.CA, &a.CA},
		"cert": {&entry.Cert, &a.Cert}, "key": {&entry.Key, &a.Key},
	} {
		if a.onLine[flag] {
			*field.to = *field.from
		}
	}
	if err := (&globals{
		Endpoints: entry.Endpoints, TokenFile: entry.TokenFile, CA: entry.CA, Cert: entry.Cert, Key: entry.Key,
		Timeout: a.Timeout,
	}).check(); err != nil {
		return err
	}
	file.Contexts[c.Name] = entry
	return a.saveContexts(file, "context "+c.Name+" is set")
}

// check reports what is wrong with endpoints, token file or certificates. It sends nothing.
func (g *globals) check() error {
	c, err := g.connect(nil)
	if err == nil {
		c.Close()
	}
	return err
}

type contextRmCmd struct {
	Name string `arg:"" help:"The context."`
}

func (c *contextRmCmd) Run(a *app) error {
	file, err := a.readContexts()
	if err != nil {
		return err
	}
	if _, ok := file.Contexts[c.Name]; !ok {
		return &notFoundError{fmt.Errorf("there is no context %q", c.Name)}
	}
	delete(file.Contexts, c.Name)
	if file.Current == c.Name {
		file.Current = ""
	}
	return a.saveContexts(file, "context "+c.Name+" is removed")
}

// saveContexts writes the contexts and says what has changed.
func (a *app) saveContexts(file contextFile, done string) error {
	if err := a.writeContexts(file); err != nil {
		return err
	}
	return a.printResult(map[string]string{"message": done}, func() error { return a.printf("%s\n", done) })
}
