// Command run drives the chaos suite from its source tree:
//
//	go run ./chaos/run simulate -runs 1000    # simulated clusters of 3 and 5 nodes, a process for each core
//	go run ./chaos/run replay -nodes 3 -seed 17
//	go run ./chaos/run mutants                # each planted bug must be found
//	go run ./chaos/run explore                # every state of a small cluster, up to some steps
//	go run ./chaos/run flaky -n 20            # every test package again and again on a busy machine
//
// It builds the simulation with the overlay of chaos/overlay, so that a seed
// fixes everything: what fails once fails again.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"northstar/chaos/overlay"
	"northstar/chaos/sim"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

const usage = "usage: run simulate|replay|mutants|explore|flaky [flags]; -h names the flags"

// defaultPages is where the pages of runs go.
const defaultPages = "out/chaos"

func run(ctx context.Context, args []string, out io.Writer) error {
	if len(args) == 0 {
		return errors.New(usage)
	}
	commands := map[string]func(context.Context, []string, io.Writer) error{
		"simulate": runSimulate, "replay": runReplay, "mutants": runMutants, "explore": runExplore,
		"flaky": runFlaky,
	}
	if command := commands[args[0]]; command != nil {
		return command(ctx, args[1:], out)
	}
	return errors.New(usage)
}

// runSimulate runs runs of each size until there were enough of them, or of their faults, or time is up.
func runSimulate(ctx context.Context, args []string, out io.Writer) error {
	fs := flag.NewFlagSet("simulate", flag.ContinueOnError)
	w := runner{out: out}
	sizes := fs.String("nodes", "3,5", "sizes of clusters")
	kinds := fs.String("scenarios", sim.DefaultScenario, "scenarios: "+strings.Join(sim.Scenarios(), ", "))
	fs.IntVar(&w.limit.runs, "runs", 0, "runs of each scenario and size (0: as many as it takes)")
	fs.IntVar(&w.limit.faults, "faults", 0, "faults with an effect on each scenario and size")
	seconds := fs.Int("seconds", 0, "seconds for all of it")
	fs.Uint64Var(&w.from, "from", 1, "first seed")
	procs := fs.Int("procs", runtime.NumCPU(), "processes at a time: one uses one core")
	fs.StringVar(&w.pages, "report", defaultPages, "directory for the page of each run that fails; empty: none is written")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if w.limit.runs == 0 && w.limit.faults == 0 && *seconds == 0 {
		return errors.New("one of -runs, -faults and -seconds must say how long it is to go on")
	}
	if err := w.choose(*kinds, *sizes); err != nil {
		return err
	}
	return inTemp(func(dir string) (err error) {
		if w.bin, err = buildExact(ctx, dir); err != nil {
			return err
		}
		if *seconds > 0 {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, time.Duration(*seconds)*time.Second)
			defer cancel()
		}
		return w.run(ctx, *procs)
	})
}

// inTemp calls f with a directory that is removed afterwards.
func inTemp(f func(dir string) error) error {
	dir, err := os.MkdirTemp("", "northstar-chaos-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	return f(dir)
}

// runReplay runs one run again and prints all that is known of it.
func runReplay(ctx context.Context, args []string, out io.Writer) error {
	fs := flag.NewFlagSet("replay", flag.ContinueOnError)
	r := simProcess{}
	fs.StringVar(&r.scenario, "scenario", sim.DefaultScenario, "scenario: "+strings.Join(sim.Scenarios(), ", "))
	fs.IntVar(&r.nodes, "nodes", 3, "size of the cluster")
	fs.Uint64Var(&r.seed, "seed", 0, "seed of the run")
	fs.StringVar(&r.faults, "faults", "", "only its faults with these indexes, separated by commas")
	pages := fs.String("report", defaultPages, "directory for the page of the run; empty: none is written")
	fs.IntVar(&r.minimizeSeconds, "shrink", 60, "seconds to look for fewer faults by which it fails; 0: not at all")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if r.seed == 0 {
		return errors.New("-seed must say which run, as in make chaos-replay SEED=17")
	}
	if err := exists(r.scenario, r.nodes); err != nil {
		return err
	}
	if r.faults != "" {
		if _, err := sim.ParseIndexes(r.faults); err != nil {
			return fmt.Errorf("-faults: %w", err)
		}
	}
	return inTemp(func(dir string) (err error) {
		if r.bin, err = buildExact(ctx, dir); err != nil {
			return err
		}
		r.report = *pages != ""
		failed := false
		err = r.run(ctx, func(s summary) {
			failed = len(s.Violations) > 0
			describe(out, s)
			savePage(out, *pages, s)
		})
		if err == nil && failed {
			err = errors.New("the run fails")
		}
		return err
	})
}

// buildExact builds the simulation so that its seeds can be replayed, with more
// changes of sources if there are any, and returns the program's path.
func buildExact(ctx context.Context, dir string, more ...overlay.Set) (string, error) {
	goroot, err := goEnv(ctx, "GOROOT")
	if err != nil {
		return "", err
	}
	file, err := overlay.Write(dir, append(more, overlay.Replay(goroot))...)
	if err != nil {
		return "", fmt.Errorf("the sources are not as chaos/overlay expects them, those of the toolchain or a mutant's: %w",
			err)
	}
	bin := filepath.Join(dir, "sim.test")
	cmd := exec.CommandContext(ctx, "go", "test", "-c", "-tags", "exactreplay", "-overlay", file, "-o", bin,
		"northstar/chaos/sim")
	if text, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the simulation: %w\n%s", err, text)
	}
	return bin, nil
}

func goEnv(ctx context.Context, name string) (string, error) {
	b, err := exec.CommandContext(ctx, "go", "env", name).Output()
	if err != nil {
		return "", fmt.Errorf("go env %s: %w", name, err)
	}
	return strings.TrimSpace(string(b)), nil
}
