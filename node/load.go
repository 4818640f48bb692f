package node

import (
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/alecthomas/kong"
)

// Flags is the part of a command line that configures a node. It is parsed with the options of a Loader.
type Flags struct {
	File   string `name:"config" placeholder:"FILE" help:"TOML file with any of the keys below, such as priority or [election] timeout-min."`
	Config `embed:""`
}

// Problem is one error of a configuration.
type Problem struct {
	Key     string // "" for the file as a whole
	Value   string // as given; "" if absent
	Source  string // where it was set; "" for a default
	Message string // the error, or the allowed values
	line    int    // in the file
	cause   error  // nil: the value itself
}

// Unwrap returns the error of a file that the value names, if any.
func (p *Problem) Unwrap() error { return p.cause }

// MayPass reports whether all problems of a configuration may pass without a change of it: files that another program
// may still write, and certificates outside of their dates, since a clock may be wrong at boot. err is from Check, New
// or Validate.
func MayPass(err error) bool {
	if all, ok := err.(interface{ Unwrap() []error }); ok {
		return !slices.ContainsFunc(all.Unwrap(), func(e error) bool { return !MayPass(e) })
	}
	var problem *Problem
	if !errors.As(err, &problem) {
		return false
	}
	var invalid x509.CertificateInvalidError
	return errors.As(problem.cause, new(*fs.PathError)) ||
		errors.As(problem.cause, &invalid) && invalid.Reason == x509.Expired
}

// Error returns one line: key, value, allowed values, source.
func (p *Problem) Error() string {
	var b strings.Builder
	b.WriteString(p.Key)
	if p.Value != "" {
		fmt.Fprintf(&b, " = %s", p.Value)
	}
	if b.Len() > 0 {
		b.WriteString(": ")
	}
	b.WriteString(strings.ReplaceAll(p.Message, "\n", "; "))
	if p.Source != "" {
		fmt.Fprintf(&b, " (%s)", p.Source)
	}
	return b.String()
}

// Loader resolves values that have no flag, for one parse: environment, then file, then default. It collects the values
// that cannot be read, those of flags too.
type Loader struct {
	lookupEnv   func(string) (string, bool)
	file        *file
	sources     map[string]string
	invalidKeys map[string]bool
	problems    []error
}

// NewLoader makes a Loader; lookupEnv is os.LookupEnv outside of tests.
func NewLoader(lookupEnv func(string) (string, bool)) *Loader {
	return &Loader{lookupEnv: lookupEnv, sources: map[string]string{}, invalidKeys: map[string]bool{}}
}

// Options returns what the parser needs for the flags of Config.
func (l *Loader) Options() []kong.Option {
	host, err := os.Hostname()
	if err != nil {
		host = "" // Validate then requires an ID
	}
	return []kong.Option{
		kong.PostBuild(l.collectFromFlags),
		kong.Resolvers(kong.ResolverFunc(l.resolve)),
		kong.Vars{"hostname": strings.ToLower(host)},
	}
}

// Check is called after the parse. It returns every value that cannot be read, and what Validate finds.
func (l *Loader) Check(ctx *kong.Context, flags *Flags, now time.Time) error {
	errs := l.finish(ctx, flags)
	if l.file != nil && l.file.broken {
		return errs // the file's values are unknown, so Validate would check defaults
	}
	return errors.Join(errs, flags.Validate(now))
}

// finish sets the sources of the Config's values. It returns a *Problem for each that could not be read.
func (l *Loader) finish(ctx *kong.Context, flags *Flags) error {
	for _, p := range ctx.Path {
		if p.Flag == nil || p.Resolved {
			continue
		}
		if key, ok := keyOfFlag(p.Flag.Name); ok {
			l.sources[key.Name] = "--" + p.Flag.Name
		}
	}
	for i, addr := range flags.Join {
		flags.Join[i] = strings.TrimSpace(addr) // as in initial-cluster
	}
	flags.sources, flags.invalidKeys = l.sources, l.invalidKeys
	return errors.Join(l.problems...)
}

// resolve is called by the parser for each flag that was not given. It collects values that cannot be read.
func (l *Loader) resolve(ctx *kong.Context, parent *kong.Path, flag *kong.Flag) (any, error) {
	key, ok := keyOfFlag(flag.Name)
	if !ok || !l.open(ctx, parent) {
		return nil, nil
	}
	value, source, found := l.lookup(key)
	if !found {
		return nil, nil
	}
	l.sources[key.Name] = source
	scratch := reflect.New(flag.Target.Type()).Elem()
	scan := &kong.DecodeContext{Value: flag.Value, Scan: kong.Scan().PushTyped(value, kong.FlagValueToken)}
	mapper := flag.Mapper
	if m, ok := mapper.(flagMapper); ok {
		mapper = m.Mapper
	}
	if err := mapper.Decode(scan, scratch); err != nil {
		l.unreadable(key, value, source, err)
		return nil, nil
	}
	return value, nil
}

func (l *Loader) unreadable(key Key, value, source string, err error) {
	l.invalidKeys[key.Name] = true
	l.problems = append(l.problems, &Problem{
		Key: key.Name, Value: key.show(value), Source: source, Message: err.Error(),
	})
}

// collectFromFlags lets the parse of a command that configures a node go on after a flag whose value cannot be read.
func (l *Loader) collectFromFlags(k *kong.Kong) error {
	return kong.Visit(k.Model, func(v kong.Visitable, next kong.Next) error {
		var flags []*kong.Flag
		switch v := v.(type) {
		case *kong.Application:
			flags = v.Flags
		case *kong.Node:
			flags = v.Flags
		}
		if slices.ContainsFunc(flags, func(f *kong.Flag) bool { return f.Name == "config" }) {
			for _, f := range flags {
				if key, ok := keyOfFlag(f.Name); ok {
					f.Mapper = flagMapper{f.Mapper, l, key}
				}
			}
		}
		return next(nil)
	})
}

// flagMapper decodes the value of a flag, and collects one that cannot be read.
type flagMapper struct {
	kong.Mapper
	loader *Loader
	key    Key
}

// Decode fails only if the value is missing.
func (m flagMapper) Decode(ctx *kong.DecodeContext, target reflect.Value) error {
	token := ctx.Scan.Peek()
	err := m.Mapper.Decode(ctx, target)
	if err == nil || !token.IsValue() {
		return err
	}
	m.loader.unreadable(m.key, token.String(), "--"+m.key.Flag, err)
	return nil
}

// lookup returns the value of a key from environment or file. An empty variable counts as unset.
func (l *Loader) lookup(key Key) (value, source string, ok bool) {
	if v, _ := l.lookupEnv(key.Env); v != "" {
		return v, key.Env, true
	}
	v, ok := l.file.values[key.Name]
	return v.text, l.file.source(v.line), ok
}

// open reads the file once. It returns false for a command without --config, which does not configure a node.
func (l *Loader) open(ctx *kong.Context, parent *kong.Path) bool {
	if l.file != nil {
		return true
	}
	for _, f := range parent.Flags {
		if f.Name != "config" {
			continue
		}
		name, _ := ctx.FlagValue(f).(string)
		if name == "" {
			name, _ = l.lookupEnv("NORTHSTAR_CONFIG")
		}
		var errs []error
		l.file, errs = readFile(name)
		l.problems = append(l.problems, errs...)
		for _, err := range errs {
			var p *Problem
			if errors.As(err, &p) {
				l.invalidKeys[p.Key] = true
			}
		}
		return true
	}
	return false
}

// Load reads a configuration from flags, environment and file. The error lists every value that could not be
// read; Validate checks the values together.
func Load(args []string, lookupEnv func(string) (string, bool)) (*Config, error) {
	var flags Flags
	loader := NewLoader(lookupEnv)
	parser, err := kong.New(&flags, append(loader.Options(), kong.Name("northstar-node"), kong.Exit(func(int) {}))...)
	if err != nil {
		return nil, fmt.Errorf("build the flag parser: %w", err)
	}
	ctx, err := parser.Parse(args)
	if err != nil {
		return nil, err
	}
	if err := loader.finish(ctx, &flags); err != nil {
		return nil, err
	}
	return &flags.Config, nil
}

// Default returns the configuration without any flag, variable or file.
func Default() Config {
	cfg, err := Load(nil, func(string) (string, bool) { return "", false })
	if err != nil {
		panic(fmt.Sprintf("the defaults of Config cannot be read: %v", err)) // a wrong struct tag in this package
	}
	cfg.sources, cfg.invalidKeys = nil, nil
	return *cfg
}

// file is a TOML file, by key.
type file struct {
	name   string
	values map[string]fileValue
	broken bool // unreadable, or not TOML
}

type fileValue struct {
	text string
	line int
}

func (f *file) source(line int) string {
	return fmt.Sprintf("%s line %d", filepath.Base(f.name), line)
}
