package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

// flaky runs test packages again and again on a machine that is busy.
type flaky struct {
	dir      string // of the module
	runs     int    // of each package
	parallel int    // packages at a time
	busy     int    // loops that do nothing but use a processor
	race     bool
	timeout  time.Duration // of one run
}

// runFlaky runs every test package many times, several concurrently, next to busy
// loops. It prints how often each failed and what the failed tests printed.
func runFlaky(ctx context.Context, args []string, out io.Writer) error {
	fs := flag.NewFlagSet("flaky", flag.ContinueOnError)
	f := flaky{dir: "."}
	fs.IntVar(&f.runs, "n", 20, "runs of each package")
	fs.IntVar(&f.parallel, "parallel", 8, "packages at a time")
	fs.IntVar(&f.busy, "busy", 2, "busy loops next to them")
	fs.BoolVar(&f.race, "race", true, "with the race detector")
	fs.DurationVar(&f.timeout, "timeout", 30*time.Minute, "of one run of a package")
	pkgs := fs.String("pkgs", "./...", "packages, separated by blanks")
	if err := fs.Parse(args); err != nil {
		return err
	}
	return f.run(ctx, strings.Fields(*pkgs), out)
}

// testPackage is a package with tests, and what its runs gave.
type testPackage struct {
	path, dir string
	bin       string
	runs      int
	failures  []string // what the failed tests printed, by run
}

func (f flaky) run(ctx context.Context, patterns []string, out io.Writer) error {
	return inTemp(func(tmp string) error {
		all, err := f.build(ctx, tmp, patterns)
		if err != nil {
			return err
		}
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		for range f.busy {
			go func() {
				for ctx.Err() == nil { // ends with this function
				}
			}()
		}
		var mu sync.Mutex // guards failed and out
		var failed []error
		var running errgroup.Group
		running.SetLimit(f.parallel)
		_, _ = fmt.Fprintln(out, "| package | runs | failures |\n|---|---|---|")
		for _, p := range all {
			running.Go(func() error {
				f.repeat(ctx, p)
				mu.Lock()
				defer mu.Unlock()
				_, _ = fmt.Fprintf(out, "| `%s` | %d | %d |\n", p.path, p.runs, len(p.failures))
				if len(p.failures) > 0 {
					failed = append(failed, fmt.Errorf("%s failed in %d of %d runs:\n%s", p.path, len(p.failures),
						p.runs, strings.Join(p.failures, "\n")))
				}
				return nil
			})
		}
		_ = running.Wait()
		return errors.Join(append(failed, ctx.Err())...)
	})
}

// build builds the tests of each package that has some.
func (f flaky) build(ctx context.Context, tmp string, patterns []string) (all []*testPackage, err error) {
	const testsOnly = "{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}} {{.Dir}}{{end}}"
	list := exec.CommandContext(ctx, "go", append([]string{"list", "-C", f.dir, "-f", testsOnly}, patterns...)...)
	list.Stderr = os.Stderr
	text, err := list.Output()
	if err != nil {
		return nil, fmt.Errorf("list the packages: %w", err)
	}
	for line := range strings.Lines(string(text)) {
		p := &testPackage{bin: filepath.Join(tmp, fmt.Sprintf("%d.test", len(all)))}
		p.path, p.dir, _ = strings.Cut(strings.TrimSpace(line), " ")
		args := []string{"test", "-C", f.dir, "-c", fmt.Sprintf("-race=%v", f.race), "-o", p.bin, p.path}
		if text, err := exec.CommandContext(ctx, "go", args...).CombinedOutput(); err != nil {
			return nil, fmt.Errorf("build the tests of %s: %w\n%s", p.path, err, text)
		}
		all = append(all, p)
	}
	return all, nil
}

// repeat runs one package's tests, one run after the other.
func (f flaky) repeat(ctx context.Context, p *testPackage) {
	for p.runs < f.runs && ctx.Err() == nil {
		cmd := exec.CommandContext(ctx, p.bin, "-test.timeout", f.timeout.String())
		cmd.Dir = p.dir
		text, err := cmd.CombinedOutput()
		if ctx.Err() != nil {
			return
		}
		p.runs++
		if err != nil {
			p.failures = append(p.failures, fmt.Sprintf("run %d: %v\n%s", p.runs, err, failedTests(text)))
		}
	}
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
