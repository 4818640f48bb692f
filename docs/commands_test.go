package docs_test

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"northstar/chaos/proc"
)

// program is a command line as the built program's own help tells it.
type program struct {
	commands map[string]flags // by command, such as "kv get"; "" for the flags of all
	aliases  map[string]bool  // those of commands that are another name of one
	help     string           // all of it
}

// flags maps each flag, with its dashes, to whether it takes a value.
type flags map[string]bool

var programNames = []string{"northstar-node", "northstarctl"}

// buildDir is where TestMain lets the programs be built.
var buildDir string

func TestMain(m *testing.M) {
	var err error
	if buildDir, err = os.MkdirTemp("", "northstar-docs-test-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	os.RemoveAll(buildDir)
	os.Exit(code)
}

var (
	buildOnce = sync.OnceValues(func() (bins map[string]string, err error) {
		bins = map[string]string{}
		for _, name := range programNames {
			if bins[name], err = proc.Program(buildDir, name); err != nil {
				return nil, err
			}
		}
		return bins, nil
	})
	askOnce = sync.OnceValues(func() (built map[string]program, err error) {
		bins, err := buildOnce()
		if err != nil {
			return nil, err
		}
		built = map[string]program{}
		for name, bin := range bins {
			if built[name], err = ask(bin); err != nil {
				return nil, err
			}
		}
		return built, nil
	})
)

// programPath builds both programs, once, and returns the path of one.
func programPath(t *testing.T, name string) string {
	t.Helper()
	bins, err := buildOnce()
	if err != nil {
		t.Fatal(err)
	}
	return bins[name]
}

// programs builds both programs, and asks them for their help, once.
func programs(t *testing.T) map[string]program {
	t.Helper()
	built, err := askOnce()
	if err != nil {
		t.Fatal(err)
	}
	return built
}

var (
	helpCommand = regexp.MustCompile(`(?m)^  ([a-z][a-z-]*(?: [a-z][a-z-]*)*)(?: \(([a-z]+)\))?(?: {2,}|$)`)
	helpFlag    = regexp.MustCompile(`(?m)^ {2,6}(?:(-[a-zA-Z]), )?--(\[no-\])?([a-z][a-z0-9-]*)(=\S+)?`)
)

// ask reads the help of a program and of each of its commands.
func ask(bin string) (program, error) {
	out, err := exec.Command(bin, "--help").Output()
	if err != nil {
		return program{}, err
	}
	p := program{commands: map[string]flags{}, aliases: map[string]bool{}, help: string(out)}
	before, list, _ := strings.Cut(string(out), "Commands:\n")
	p.commands[""] = parseFlags(before)
	for _, m := range helpCommand.FindAllStringSubmatch(list, -1) {
		out, err := exec.Command(bin, append(strings.Fields(m[1]), "--help")...).Output()
		if err != nil {
			return program{}, err
		}
		p.commands[m[1]] = parseFlags(string(out))
		if m[2] != "" {
			alias := path.Join(path.Dir(strings.ReplaceAll(m[1], " ", "/")), m[2])
			alias = strings.ReplaceAll(alias, "/", " ")
			p.commands[alias], p.aliases[alias] = p.commands[m[1]], true
		}
		p.help += string(out)
	}
	return p, nil
}

func parseFlags(help string) flags {
	_, help, _ = strings.Cut(help, "Flags:\n")
	f := flags{}
	for _, m := range helpFlag.FindAllStringSubmatch(help, -1) {
		takesValue := m[4] != ""
		f["--"+m[3]] = takesValue
		if m[2] != "" {
			f["--no-"+m[3]] = false
		}
		if m[1] != "" {
			f[m[1]] = takesValue
		}
	}
	return f
}

func TestCommandsAndFlagsExist(t *testing.T) {
	progs := programs(t)
	if n := len(progs["northstarctl"].commands); n < 20 {
		t.Fatalf("the help of northstarctl lists only %d commands", n)
	}
	for _, d := range documents(t) {
		report(t, d.path, checkCommands(d, progs))
	}
	for _, d := range deployed(t) {
		report(t, d.path, checkDeployedCommands(d, progs))
	}
}

// checkCommands finds commands and flags in a document that the programs do not
// have.
func checkCommands(d document, progs map[string]program) (problems []string) {
	blocks, inline := d.code()
	for _, b := range blocks {
		for _, line := range b.commandLines() {
			problems = append(problems, checkLine(line, progs)...)
		}
	}
	for _, code := range inline {
		if strings.HasPrefix(code, "--") && !anyHasFlag(progs, flagName(code)) {
			problems = append(problems, "no program has the flag "+code)
			continue
		}
		problems = append(problems, checkLine(code, progs)...)
	}
	return problems
}

func anyHasFlag(progs map[string]program, name string) bool {
	for _, p := range progs {
		for f := range maps.Values(p.commands) {
			if _, ok := f[name]; ok {
				return true
			}
		}
	}
	return false
}

// checkDeployedCommands looks at a unit's ExecStart and a manifest's args.
func checkDeployedCommands(d document, progs map[string]program) (problems []string) {
	for line := range strings.Lines(d.text) {
		line = strings.TrimSpace(line)
		if cmd, ok := strings.CutPrefix(line, "ExecStart="); ok {
			problems = append(problems, checkLine(cmd, progs)...)
		}
		if arg, ok := strings.CutPrefix(line, "- --"); ok {
			if _, known := progs["northstar-node"].commands["run"]["--"+flagName(arg)]; !known {
				problems = append(problems, "northstar-node run has no flag --"+arg)
			}
		}
	}
	return problems
}

func flagName(word string) string {
	name, _, _ := strings.Cut(strings.Fields(word)[0], "=")
	return name
}

var (
	segments = regexp.MustCompile(`\|\||&&|[;|&]|\$\(`)
	assigns  = regexp.MustCompile(`^[A-Z_]+=`)
)

// checkLine checks every call of the programs in one line of shell.
func checkLine(line string, progs map[string]program) (problems []string) {
	for _, segment := range segments.Split(line, -1) {
		words := strings.Fields(segment)
		for len(words) > 0 && (words[0] == "sudo" || words[0] == "exec" || assigns.MatchString(words[0])) {
			words = words[1:]
		}
		if len(words) == 0 {
			continue
		}
		name := path.Base(strings.Trim(words[0], `"'`))
		if p, ok := progs[name]; ok {
			for _, problem := range p.check(words[1:]) {
				problems = append(problems, name+": "+problem+", in: "+strings.TrimSpace(segment))
			}
		}
	}
	return problems
}

// check follows the words after a program's name.
func (p program) check(words []string) (problems []string) {
	command := ""
	var given []string
	for i := 0; i < len(words); i++ {
		word := strings.Trim(words[i], `"'`)
		switch {
		case word == "--": // another program's words follow
			i = len(words)
		case word == "" || strings.ContainsAny(word[:1], "><#)") || strings.HasPrefix(word, "2>") ||
			strings.HasPrefix(word, "…"):
			i = len(words)
		case strings.HasPrefix(word, "-") && word != "-":
			name := strings.TrimSuffix(flagName(word), "…")
			given = append(given, name)
			if !strings.Contains(word, "=") && p.takesValue(name) {
				i++
			}
		case p.leadsOn(command, word):
			command = strings.TrimSpace(command + " " + word)
		case p.commands[command] == nil || command == "":
			return append(problems, "there is no command "+strings.TrimSpace(command+" "+word))
		}
	}
	for _, name := range given {
		if !p.knows(command, name) {
			problems = append(problems, "there is no flag "+name)
		}
	}
	return problems
}

// leadsOn reports whether a command begins with command and word.
func (p program) leadsOn(command, word string) bool {
	next := strings.TrimSpace(command + " " + word)
	for c := range p.commands {
		if c == next || strings.HasPrefix(c, next+" ") {
			return true
		}
	}
	return false
}

func (p program) takesValue(flag string) bool {
	return slices.ContainsFunc(slices.Collect(maps.Values(p.commands)), func(f flags) bool { return f[flag] })
}

// knows reports whether the command, or one of its subcommands, has the flag.
func (p program) knows(command, flag string) bool {
	for c, f := range p.commands {
		if _, ok := f[flag]; ok && (c == "" || c == command || strings.HasPrefix(c, command+" ")) {
			return true
		}
	}
	return false
}
