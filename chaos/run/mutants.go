package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"northstar/chaos/mutants"
	"northstar/chaos/mutants/planted"
	"northstar/chaos/overlay"
)

// runMutants builds the simulation with all mutants, and expects each to be found within its budget. The mutants that
// only tests of processes find get programs of their own.
func runMutants(ctx context.Context, args []string, out io.Writer) error {
	fs := flag.NewFlagSet("mutants", flag.ContinueOnError)
	only := fs.String("only", "", "these, separated by commas; absent: all")
	budget := fs.Int("budget", math.MaxInt, "without -only, those that at most so many simulation runs are to find, and that are not marked Nightly")
	procs := fs.Int("procs", runtime.NumCPU(), "mutants at a time: each uses one core")
	update := fs.Bool("update", false, "begin with the seed that found it from now on: in its patch and in docs/planted-bugs.md")
	if err := fs.Parse(args); err != nil {
		return err
	}
	all, err := chooseMutants(*only, *budget)
	if err != nil {
		return err
	}
	return inTemp(func(dir string) error {
		root, err := moduleRoot(ctx)
		if err != nil {
			return err
		}
		bins, err := buildMutants(ctx, root, dir, all)
		if err != nil {
			return err
		}
		var mu sync.Mutex // guards what follows, and out
		var missed []error
		var running errgroup.Group
		running.SetLimit(*procs)
		_, _ = fmt.Fprintln(out, "| mutant | mitigation that it lacks | detected by | violated invariant | time |\n"+
			"|---|---|---|---|---|")
		for _, m := range all {
			running.Go(func() error {
				f, err := findMutant(ctx, bins, m)
				mu.Lock()
				defer mu.Unlock()
				if err == nil && *update && m.Scenario != "" {
					err = record(root, m, f)
				}
				if err != nil {
					missed = append(missed, fmt.Errorf("%s: %w", m.Name, err))
					return nil
				}
				_, _ = fmt.Fprintf(out, "| `%s` | %s | %s | %s | %.0f s |\n", m.Name, m.Mitigation, f.in(m), f.violated,
					f.took.Seconds())
				return nil
			})
		}
		_ = running.Wait()
		return errors.Join(missed...)
	})
}

// longestFirst orders mutants by the time that they may take: those of processes, then those with the most seeds.
func longestFirst(a, b mutants.Mutant) int {
	return cmp.Or(strings.Compare(b.Test, a.Test), cmp.Compare(b.MaxSeeds, a.MaxSeeds))
}

// programs are the paths of programs that have mutants.
type programs struct{ simulation, explorer string }

func moduleRoot(ctx context.Context) (string, error) {
	module, err := goEnv(ctx, "GOMOD")
	return filepath.Dir(module), err
}

// buildMutants builds the simulation and the explorer, each with those of the mutants that it can find.
func buildMutants(ctx context.Context, root, dir string, all []mutants.Mutant) (bins programs, err error) {
	only := func(is func(mutants.Mutant) bool) []mutants.Mutant {
		return slices.DeleteFunc(slices.Clone(all), func(m mutants.Mutant) bool { return !is(m) })
	}
	simulated := only(func(m mutants.Mutant) bool { return m.Scenario != "" })
	explored := only(func(m mutants.Mutant) bool { return m.Explorer != "" })
	if len(simulated) > 0 {
		sources, err := mutants.Shared(root, simulated)
		if err != nil {
			return bins, err
		}
		if bins.simulation, err = buildExact(ctx, dir, sources); err != nil {
			return bins, err
		}
	}
	if len(explored) > 0 {
		bins.explorer, err = buildExplorer(ctx, root, dir, explored)
	}
	return bins, err
}

// buildExplorer builds this program with mutants.
func buildExplorer(ctx context.Context, root, dir string, all []mutants.Mutant) (string, error) {
	sources, err := mutants.Shared(root, all)
	if err != nil {
		return "", err
	}
	dir = filepath.Join(dir, "explorer")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return "", err
	}
	file, err := overlay.Write(dir, sources)
	if err != nil {
		return "", err
	}
	bin := filepath.Join(dir, "run")
	cmd := exec.CommandContext(ctx, "go", "build", "-overlay", file, "-o", bin,
		"northstar/chaos/run")
	if text, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the explorer: %w\n%s", err, text)
	}
	return bin, nil
}

func chooseMutants(only string, budget int) ([]mutants.Mutant, error) {
	if only == "" {
		all, err := mutants.All()
		all = slices.DeleteFunc(all, func(m mutants.Mutant) bool {
			return m.MaxSeeds > budget || (m.Nightly || m.Test != "") && budget < math.MaxInt
		})
		slices.SortStableFunc(all, longestFirst)
		return all, err
	}
	var chosen []mutants.Mutant
	for name := range strings.SplitSeq(only, ",") {
		m, err := mutants.Find(name)
		if err != nil {
			return nil, fmt.Errorf("-only: %w", err)
		}
		chosen = append(chosen, m)
	}
	return chosen, nil
}

// detection is how a mutant was found.
type detection struct {
	seed     uint64
	runs     int
	step     int // of the explorer
	violated string
	took     time.Duration // without the build
}

func (f detection) in(m mutants.Mutant) string {
	if m.Test != "" {
		return fmt.Sprintf("`%s`, seed %d, up to %d faults", m.Test, f.seed, m.MaxSeeds)
	}
	if m.Explorer != "" {
		return fmt.Sprintf("`explore %s`, step %d of %d", m.Explorer, f.step, m.Depth)
	}
	nth := "the first"
	if f.runs > 1 {
		nth = fmt.Sprintf("number %d", f.runs)
	}
	return fmt.Sprintf("`%s`, %d nodes, seed %d (%s of %d)", m.Scenario, m.Nodes, f.seed, nth, m.MaxSeeds)
}

// record makes the seed that found a mutant the first of its patch, and changes its row in the documentation.
func record(root string, m mutants.Mutant, f detection) error {
	m.Seed, f.runs = f.seed, 1
	patch := filepath.Join(root, "chaos", "mutants", "patches", m.Name+".patch")
	page := filepath.Join(root, "docs", "planted-bugs.md")
	return errors.Join(
		replaceIn(patch, `(?m)^Seed: \d+$`, fmt.Sprintf("Seed: %d", m.Seed)),
		replaceIn(page, "(?m)^(\\| `"+m.Name+"` \\|[^|]*\\|).*(\\|[^|]*\\|)$",
			fmt.Sprintf("${1} %s | %s ${2}", f.in(m), f.violated)),
	)
}

func replaceIn(file, pattern, by string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	re := regexp.MustCompile(pattern)
	if !re.Match(text) {
		return fmt.Errorf("%s has no line %s", file, pattern)
	}
	return os.WriteFile(file, re.ReplaceAll(text, []byte(by)), 0o600)
}

// findMutant runs runs of a mutant until one of its invariants breaks.
func findMutant(ctx context.Context, bins programs, m mutants.Mutant) (detection, error) {
	switch {
	case m.Test != "":
		return findMutantInProcesses(ctx, m)
	case m.Explorer != "":
		return exploreMutant(ctx, bins.explorer, m)
	}
	start := time.Now()
	f := detection{}
	var other string
	for f.violated == "" && f.runs < m.MaxSeeds && ctx.Err() == nil {
		f.seed = m.Seed + uint64(f.runs)
		f.runs++
		p := simProcess{bin: bins.simulation, mutant: m.Name, scenario: m.Scenario, nodes: m.Nodes, seed: f.seed}
		err := p.run(ctx, func(s summary) {
			for _, v := range s.Violations {
				for _, invariant := range m.Invariants {
					if strings.HasPrefix(v, invariant+" violated") {
						f.violated = invariant
						return
					}
				}
				other = fmt.Sprintf("; seed %d: %s", s.Seed, v)
			}
		})
		if err != nil {
			return f, err
		}
	}
	f.took = time.Since(start)
	if f.violated == "" {
		return f, fmt.Errorf("not found in %d runs of %s with %d nodes, %.0f s%s", f.runs, m.Scenario, m.Nodes,
			f.took.Seconds(), other)
	}
	return f, nil
}

// exploredDepth is in a result of the explorer.
var exploredDepth = regexp.MustCompile(` depth (\d+),`)

// exploreMutant searches with a mutant for a state that breaks one of its properties.
func exploreMutant(ctx context.Context, bin string, m mutants.Mutant) (detection, error) {
	start := time.Now()
	cmd := exec.CommandContext(ctx, bin, "explore", "-models", m.Explorer, "-depth", strconv.Itoa(m.Depth))
	cmd.Env = append(os.Environ(), planted.Variable+"="+m.Name)
	out, err := cmd.CombinedOutput()
	f := detection{took: time.Since(start)}
	if err == nil {
		return f, fmt.Errorf("not found in %d steps of %s:\n%s", m.Depth, m.Explorer, out)
	}
	for _, property := range m.Invariants {
		if strings.Contains(string(out), "violated: "+property) {
			f.violated = property
			if at := exploredDepth.FindSubmatch(out); at != nil {
				f.step, err = strconv.Atoi(string(at[1]))
				return f, err
			}
		}
	}
	return f, fmt.Errorf("%s fails, and not for %q:\n%s", m.Explorer, m.Invariants, out[:min(len(out), 4000)])
}

// findMutantInProcesses runs a test of processes with nodes that have the bug: it must fail, for what the bug breaks.
func findMutantInProcesses(ctx context.Context, m mutants.Mutant) (detection, error) {
	pkg, test, _ := strings.Cut(m.Test, " ")
	start := time.Now()
	cmd := exec.CommandContext(ctx, "go", "test", pkg, "-run", "^"+test+"$", "-count=1", "-timeout", "15m")
	cmd.Env = append(os.Environ(), "NORTHSTAR_CHAOS_MUTANT="+m.Name,
		fmt.Sprintf("NORTHSTAR_CHAOS_ITERATIONS=%d", m.MaxSeeds), fmt.Sprintf("NORTHSTAR_CHAOS_SEED=%d", m.Seed))
	out, err := cmd.CombinedOutput()
	f := detection{seed: m.Seed, took: time.Since(start)}
	if err == nil {
		return f, fmt.Errorf("%s passes, after %.0f s", m.Test, f.took.Seconds())
	}
	for _, b := range m.Invariants {
		if strings.Contains(string(out), b) {
			f.violated = b
			return f, nil
		}
	}
	return f, fmt.Errorf("%s fails, and not for %q:\n%s", m.Test, m.Invariants, out[:min(len(out), 4000)])
}
