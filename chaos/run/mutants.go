package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"northstar/chaos/mutants"
)

// runMutants builds the simulation with one bug after the other, and wants each to be found within its budget.
func runMutants(ctx context.Context, args []string, out io.Writer) error {
	fs := flag.NewFlagSet("mutants", flag.ContinueOnError)
	only := fs.String("only", "", "these, separated by commas; absent: all")
	procs := fs.Int("procs", runtime.NumCPU(), "mutants at a time: each uses one core")
	if err := fs.Parse(args); err != nil {
		return err
	}
	all, err := chooseMutants(*only)
	if err != nil {
		return err
	}
	return inTemp(func(dir string) error {
		var mu sync.Mutex // guards what follows, and out
		var missed []error
		var running errgroup.Group
		running.SetLimit(*procs)
		_, _ = fmt.Fprintln(out, "| mutant | mitigation that it lacks | detected by | violated invariant | time |\n"+
			"|---|---|---|---|---|")
		for _, m := range all {
			running.Go(func() error {
				f, err := findMutant(ctx, filepath.Join(dir, m.Name), m)
				mu.Lock()
				defer mu.Unlock()
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

func chooseMutants(only string) ([]mutants.Mutant, error) {
	all, err := mutants.All()
	if err != nil || only == "" {
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
	violated string
	took     time.Duration // without the build
}

func (f detection) in(m mutants.Mutant) string {
	if m.Test != "" {
		return fmt.Sprintf("`%s`, seed %d, up to %d faults", m.Test, f.seed, m.MaxSeeds)
	}
	nth := "the first"
	if f.runs > 1 {
		nth = fmt.Sprintf("number %d", f.runs)
	}
	return fmt.Sprintf("`%s`, %d nodes, seed %d (%s of %d)", m.Scenario, m.Nodes, f.seed, nth, m.MaxSeeds)
}

// findMutant runs runs of a mutant until one of its invariants breaks.
func findMutant(ctx context.Context, dir string, m mutants.Mutant) (detection, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return detection{}, err
	}
	if m.Test != "" {
		return findMutantInProcesses(ctx, m)
	}
	root, err := goEnv(ctx, "GOMOD")
	if err != nil {
		return detection{}, err
	}
	edits, err := m.Edits(filepath.Dir(root))
	if err != nil {
		return detection{}, err
	}
	bin, err := buildExact(ctx, dir, edits)
	if err != nil {
		return detection{}, err
	}
	defer func() { _ = os.Remove(bin) }()
	start := time.Now()
	f := detection{}
	var other string
	for f.violated == "" && f.runs < m.MaxSeeds && ctx.Err() == nil {
		f.seed = m.Seed + uint64(f.runs)
		f.runs++
		err := simProcess{bin: bin, scenario: m.Scenario, nodes: m.Nodes, seed: f.seed}.run(ctx, func(s summary) {
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
