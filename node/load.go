package node

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"time"

	"github.com/alecthomas/kong"
)

// Flags is the part of a command line that configures a node. A command embeds
// it, and is parsed with the options of a Loader.
type Flags struct {
	File   string `name:"config" placeholder:"FILE" help:"TOML file with any of the keys below, such as priority or [election] timeout-min."`
	Config `embed:""`
}

// Problem is one thing that is wrong with a configuration.
type Problem struct {
	Key     string // "" when the file as a whole is meant
	Value   string // as it was given; "" when absent
	Source  string // where it was set; "" for a default
	Message string // what is wrong, or what is allowed
}

// Error is one line: key, value, what is allowed, where it was set.
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

// Loader puts the environment and the file under the flags of one command
// line: a flag counts before the environment, that before the file, that before
// the default. It serves one parse.
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

// Options are what the parser needs for the flags of Config.
func (l *Loader) Options() []kong.Option {
	host, err := os.Hostname()
	if err != nil {
		host = "" // Validate then asks for an id
	}
	return []kong.Option{
		kong.Resolvers(kong.ResolverFunc(l.resolve)),
		kong.Vars{"hostname": strings.ToLower(host)},
	}
}

// Check is to be called after the parse with what it filled. It lists every
// problem: what could not be read, and what Validate finds in the rest.
func (l *Loader) Check(ctx *kong.Context, flags *Flags, now time.Time) error {
	errs := l.finish(ctx, flags)
	if l.file != nil && l.file.broken {
		return errs // the defaults in the place of the file's values say nothing
	}
	return errors.Join(errs, flags.Validate(now))
}

// finish tells the Config where its values come from, and returns every value
// of the environment and of the file that could not be read, joined; each is a
// *Problem.
func (l *Loader) finish(ctx *kong.Context, flags *Flags) error {
	for _, p := range ctx.Path {
		if p.Flag == nil || p.Resolved {
			continue
		}
		if key, ok := keyOfFlag(p.Flag.Name); ok {
			l.sources[key.Name] = "--" + p.Flag.Name
		}
	}
	flags.sources, flags.invalidKeys = l.sources, l.invalidKeys
	return errors.Join(l.problems...)
}

// resolve is asked by the parser for each flag that was not given. Values that
// cannot be read are collected, so that the user sees all of them at once.
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
	if err := flag.Mapper.Decode(&kong.DecodeContext{Value: flag.Value, Scan: scan(value)}, scratch); err != nil {
		l.invalidKeys[key.Name] = true
		l.problems = append(l.problems, &Problem{Key: key.Name, Value: key.show(value), Source: source, Message: err.Error()})
		return nil, nil
	}
	return value, nil
}

func scan(value string) *kong.Scanner {
	return kong.Scan().PushTyped(value, kong.FlagValueToken)
}

// lookup finds the value of a key below the flags.
func (l *Loader) lookup(key Key) (value, source string, ok bool) {
	if v, ok := l.lookupEnv(key.Env); ok {
		return v, key.Env, true
	}
	v, ok := l.file.values[key.Name]
	return v.text, l.file.source(v.line), ok
}

// open reads the file, once. It is false on a command that does not configure
// a node: one without --config.
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

// Load reads a configuration from flags, environment and file. The error lists
// every value that could not be read; what the values mean together is checked
// by Validate.
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

// Default is the configuration of a node about which nothing was said.
func Default() Config {
	cfg, err := Load(nil, func(string) (string, bool) { return "", false })
	if err != nil {
		panic(fmt.Sprintf("the defaults of Config cannot be read: %v", err)) // a wrong tag in this package
	}
	cfg.sources, cfg.invalidKeys = nil, nil
	return *cfg
}

// file is what a TOML file says, by key.
type file struct {
	name   string
	values map[string]fileValue
	broken bool // it could not be read, or is not TOML
}

type fileValue struct {
	text string
	line int
}

func (f *file) source(line int) string {
	return fmt.Sprintf("%s line %d", filepath.Base(f.name), line)
}
