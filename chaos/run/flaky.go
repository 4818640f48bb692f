package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

// flaky runs test packages again and again on a machine that is busy.
type flaky struct {
	dir      string // of the module
	runs     int    // of each package
	parallel int    // runs at a time
	busy     int    // loops that do nothing but use a processor
	race     bool
	plain    *regexp.Regexp // packages that run without the race detector
	tests    string         // a pattern of their names; empty: all
	timeout  time.Duration  // of one run
	within   time.Duration  // no run begins later; 0: all begin
	skip     *regexp.Regexp
	output   string // directory for what failed runs printed; empty: it is not kept
	runLog   runLog

	mu  sync.Mutex // guards out, and the results in each testPackage
	out io.Writer
}

// runFlaky runs every test package many times, several concurrently, next to busy loops. It prints each run as it
// ends, with the tests that failed, and a table of all packages at the end. The runs that a run log has for the same
// sources and flags count: an interrupted command, or one with -for, is continued by the next one. A commit that only
// changes tests of one package takes away the runs of that package only.
func runFlaky(ctx context.Context, args []string, out io.Writer) error {
	fs := flag.NewFlagSet("flaky", flag.ContinueOnError)
	f := flaky{dir: ".", out: out}
	fs.IntVar(&f.runs, "n", 20, "runs of each package")
	fs.IntVar(&f.parallel, "parallel", 8, "runs at a time")
	fs.IntVar(&f.busy, "busy", 2, "busy loops next to them")
	fs.BoolVar(&f.race, "race", true, "with the race detector")
	fs.StringVar(&f.tests, "run", "", "only the tests whose names match")
	fs.DurationVar(&f.timeout, "timeout", 2*time.Hour, "of one run of a package")
	fs.StringVar(&f.output, "output", "out/flaky", "directory for the output of failed runs; empty: it is not kept")
	fs.DurationVar(&f.within, "for", 0, "time after which no run begins; the next command continues; 0: all begin")
	fs.StringVar(&f.runLog.path, "runlog", "out/flaky/runs.tsv", "file with a line for each run; empty: none")
	skip := fs.String("skip", "^$", "no packages whose paths match")
	plain := fs.String("plain", "^$", "packages that run without the race detector")
	pkgs := fs.String("pkgs", "./...", "packages, separated by blanks")
	if err := fs.Parse(args); err != nil {
		return err
	}
	var err error
	if f.skip, err = regexp.Compile(*skip); err != nil {
		return fmt.Errorf("-skip: %w", err)
	}
	if f.plain, err = regexp.Compile(*plain); err != nil {
		return fmt.Errorf("-plain: %w", err)
	}
	return f.run(ctx, strings.Fields(*pkgs))
}

// testPackage is a package with tests, and what its runs gave.
type testPackage struct {
	path, dir string
	key       string // of the sources and flags, in the run log; empty: none
	bin       string
	build     func() error // builds bin, once
	begun     int          // runs, with those of the run log
	runs      int          // that ended
	failures  int
	broken    bool           // the tests cannot be built
	tests     map[string]int // failures by test
	wall, cpu time.Duration  // of all runs
}

func (f *flaky) run(ctx context.Context, patterns []string) error {
	if f.output != "" {
		if err := os.MkdirAll(f.output, 0o755); err != nil {
			return err
		}
	}
	return inTemp(func(tmp string) error {
		all, err := f.list(ctx, tmp, patterns)
		if err != nil {
			return err
		}
		before, err := f.runLog.read()
		if err != nil {
			return err
		}
		for _, p := range all {
			p.count(before)
			p.begun = p.runs
		}
		began := time.Now()
		loops, endLoops := context.WithCancel(ctx)
		defer endLoops()
		for range f.busy {
			go func() {
				for loops.Err() == nil {
				}
			}()
		}
		// Round by round: each package has run before one runs again, and an interrupted command has seen them all.
		var running errgroup.Group
		running.SetLimit(f.parallel)
		for round := range f.runs {
			for _, p := range all {
				if p.begun > round {
					continue
				}
				p.begun++
				running.Go(func() error {
					if f.within == 0 || time.Since(began) < f.within {
						f.runOnce(ctx, p)
					}
					return nil
				})
			}
		}
		_ = running.Wait()
		return errors.Join(f.summarize(all), ctx.Err())
	})
}

// list returns each package that has tests. They are not built yet.
func (f *flaky) list(ctx context.Context, tmp string, patterns []string) (all []*testPackage, err error) {
	const testsOnly = "{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}} {{.Dir}}{{end}}"
	list := exec.CommandContext(ctx, "go", append([]string{"list", "-C", f.dir, "-f", testsOnly}, patterns...)...)
	list.Stderr = os.Stderr
	text, err := list.Output()
	if err != nil {
		return nil, fmt.Errorf("list the packages: %w", err)
	}
	module, err := filepath.Abs(f.dir)
	if err != nil {
		return nil, err
	}
	files := committedFiles(ctx, f.dir)
	for line := range strings.Lines(string(text)) {
		p := &testPackage{bin: filepath.Join(tmp, fmt.Sprintf("%d.test", len(all))), tests: map[string]int{}}
		p.path, p.dir, _ = strings.Cut(strings.TrimSpace(line), " ")
		if f.skip != nil && f.skip.MatchString(p.path) {
			continue
		}
		dir, err := filepath.Rel(module, p.dir)
		if err != nil {
			return nil, err
		}
		race := f.race && (f.plain == nil || !f.plain.MatchString(p.path))
		if key := sourcesKey(files, filepath.ToSlash(dir)); key != "" {
			p.key = fmt.Sprintf("%s race=%v run=%q", key, race, f.tests)
		}
		p.build = sync.OnceValue(func() error {
			args := []string{"test", "-C", f.dir, "-c", fmt.Sprintf("-race=%v", race), "-o", p.bin, p.path}
			if text, err := exec.CommandContext(ctx, "go", args...).CombinedOutput(); err != nil {
				return fmt.Errorf("build the tests of %s: %w\n%s", p.path, err, text)
			}
			return nil
		})
		all = append(all, p)
	}
	return all, nil
}

// runOnce runs one package's tests once. It builds them before the first run, while other packages already run.
func (f *flaky) runOnce(ctx context.Context, p *testPackage) {
	if ctx.Err() != nil {
		return
	}
	if err := p.build(); err != nil {
		f.mu.Lock()
		defer f.mu.Unlock()
		if ctx.Err() == nil && !p.broken {
			p.broken = true
			_, _ = fmt.Fprintln(f.out, err)
		}
		return
	}
	cmd := exec.CommandContext(ctx, p.bin, "-test.timeout", f.timeout.String(), "-test.run", f.tests)
	cmd.Dir = p.dir
	began := time.Now()
	text, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		return
	}
	wall := time.Since(began)
	f.mu.Lock()
	defer f.mu.Unlock()
	e := ended{
		pkg: p.path, key: p.key, result: "ok", wall: wall, cpu: cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime(),
	}
	var names []string
	if err != nil {
		names = failedNames(text)
		e.result, e.failed = "FAIL", strings.ReplaceAll(strings.Join(names, ","), "\t", " ")
	}
	p.count([]ended{e})
	if err := f.runLog.write(e, time.Now()); err != nil {
		_, _ = fmt.Fprintf(f.out, "the run log lacks this run: %v\n", err)
	}
	if err == nil {
		_, _ = fmt.Fprintf(f.out, "ok    %s, run %d, %.0f s\n", p.path, p.runs, wall.Seconds())
		return
	}
	_, _ = fmt.Fprintf(
		f.out, "FAIL  %s, run %d, %.0f s: %v: %s\n%s\n", p.path, p.runs, wall.Seconds(), err,
		strings.Join(names, ", "), failedTests(text),
	)
	if err := f.keep(p, text); err != nil {
		_, _ = fmt.Fprintf(f.out, "the output of this run is lost: %v\n", err)
	}
}

// count adds the package's runs among those that ended. Called with the lock held, or before the first run.
func (p *testPackage) count(all []ended) {
	for _, e := range all {
		if e.pkg != p.path || e.key != p.key {
			continue
		}
		p.runs++
		p.wall += e.wall
		p.cpu += e.cpu
		if e.result == "ok" {
			continue
		}
		p.failures++
		for name := range strings.SplitSeq(e.failed, ",") {
			p.tests[name]++
		}
	}
}

// keep writes what a failed run printed to a file.
func (f *flaky) keep(p *testPackage, text []byte) error {
	if f.output == "" {
		return nil
	}
	name := filepath.Join(f.output, fmt.Sprintf("%s-%d.txt", strings.ReplaceAll(p.path, "/", "-"), p.runs))
	_, _ = fmt.Fprintf(f.out, "all output of this run: %s\n", name)
	return os.WriteFile(name, text, 0o600)
}

// summarize prints a row for each package, those that failed most often last. It returns an error when one failed.
func (f *flaky) summarize(all []*testPackage) error {
	slices.SortStableFunc(all, func(a, b *testPackage) int { return cmp.Compare(a.failures, b.failures) })
	_, _ = fmt.Fprintln(f.out, "\n| package | runs | failures | s | CPU s | failed tests |\n|---|---|---|---|---|---|")
	failed := 0
	for _, p := range all {
		var tests []string
		for _, name := range slices.Sorted(maps.Keys(p.tests)) {
			tests = append(tests, fmt.Sprintf("%s %d", name, p.tests[name]))
		}
		runs := float64(max(p.runs, 1))
		_, _ = fmt.Fprintf(
			f.out, "| `%s` | %d | %d | %.0f | %.0f | %s |\n", p.path, p.runs, p.failures,
			p.wall.Seconds()/runs, p.cpu.Seconds()/runs, strings.Join(tests, ", "),
		)
		if p.failures > 0 || p.broken {
			failed++
		}
	}
	if failed > 0 {
		return fmt.Errorf("%d of %d packages failed", failed, len(all))
	}
	missing := 0
	for _, p := range all {
		missing += max(f.runs-p.runs, 0)
	}
	if missing > 0 {
		_, _ = fmt.Fprintf(f.out, "%d runs are missing; the same command makes them\n", missing)
	}
	return nil
}

// failedName matches the line with which a failed test ends. Lines of its subtests are indented.
var failedName = regexp.MustCompile(`(?m)^--- FAIL: (\S+)`)

// failedNames returns the tests that failed in a run, or what ended it without the name of a test.
func failedNames(text []byte) (names []string) {
	for _, m := range failedName.FindAllSubmatch(text, -1) {
		if name := string(m[1]); !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	if names == nil {
		first, _, _ := bytes.Cut(failedTests(text), []byte("\n"))
		names = []string{string(first)}
	}
	return names
}

// maxFailedLines is how much of one run's failures is printed.
const maxFailedLines = 60

// failedTests returns the part of a run's output that begins with the first failure.
func failedTests(text []byte) []byte {
	first := len(text)
	for _, mark := range []string{"--- FAIL", "panic:", "WARNING: DATA RACE", "fatal error:"} {
		if i := bytes.Index(text, []byte(mark)); i >= 0 {
			first = min(first, i)
		}
	}
	if first == len(text) {
		first = 0
	}
	lines := bytes.SplitAfter(text[first:], []byte("\n"))
	return bytes.Join(lines[:min(maxFailedLines, len(lines))], nil)
}
