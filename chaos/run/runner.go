package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"northstar/chaos/check"
	"northstar/chaos/mutants/planted"
	"northstar/chaos/sim"
)

type summary = sim.Summary

const maxFailures = 10 // then it ends: more say nothing new

// runner runs simulated clusters, a few processes at a time.
type runner struct {
	bin   string
	out   io.Writer
	from  uint64
	limit struct{ runs, faults int } // of each kind and size, of faults those with an effect; 0: none
	pages string                     // the directory for reports

	mu    sync.Mutex
	stats []*stats // one for each kind and size
}

// stats is what was found with clusters of one kind and size.
type stats struct {
	scenario       string
	nodes          int
	next           uint64 // seed
	begun, runs    int
	sum            summary // of all runs
	convergedAfter []time.Duration
	slo            check.SLOReport // of kinds that are measured
	failures       []summary
}

func (w *runner) choose(kinds, sizes string) error {
	for kind := range strings.SplitSeq(kinds, ",") {
		for s := range strings.SplitSeq(sizes, ",") {
			n, err := strconv.Atoi(s)
			if err != nil {
				return fmt.Errorf("-nodes: %q is no number", s)
			}
			if err := exists(kind, n); err != nil {
				return err
			}
			t := &stats{scenario: kind, nodes: n, next: w.from}
			t.sum.Faults, t.sum.Reached = map[sim.FaultKind]int{}, map[string]int{}
			w.stats = append(w.stats, t)
		}
	}
	return nil
}

// exists reports when there are no such runs.
func exists(kind string, nodes int) error {
	if !slices.Contains(sim.Scenarios(), kind) {
		return fmt.Errorf("scenario %q is none of %s", kind, strings.Join(sim.Scenarios(), ", "))
	}
	if !slices.Contains(sim.Sizes, nodes) {
		return fmt.Errorf("-nodes: there are no runs of %d nodes, but of each of %v", nodes, sim.Sizes)
	}
	return nil
}

// run keeps procs processes busy until all runs are done, and prints the results.
func (w *runner) run(ctx context.Context, procs int) error {
	start := time.Now()
	all := make([]error, procs)
	var running sync.WaitGroup
	for i := range procs {
		running.Go(func() {
			for all[i] == nil && ctx.Err() == nil {
				t, r := w.next()
				if t == nil {
					return
				}
				all[i] = r.run(ctx, func(s summary) { w.add(t, s) })
			}
		})
	}
	running.Wait()
	failed := 0
	for _, t := range w.stats {
		_, _ = fmt.Fprintln(w.out, t)
		failed += len(t.failures)
		if t.slo.Total > 0 {
			_, _ = fmt.Fprintf(w.out, "  %v\n", &t.slo)
		}
		if why := t.slo.Violations(); why != "" {
			all = append(all, fmt.Errorf("%s, %d nodes: %s", t.scenario, t.nodes, why))
		}
	}
	_, _ = fmt.Fprintf(w.out, "%v with %d processes\n", time.Since(start).Round(time.Second), procs)
	if failed > 0 {
		all = append(all, fmt.Errorf("%d runs failed", failed))
	}
	return errors.Join(all...)
}

// next returns the next runs to run, of the kind and size that had the fewest so far; nil when it is enough of all.
func (w *runner) next() (*stats, simProcess) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var least *stats
	for _, t := range w.stats {
		if w.wants(t) && (least == nil || t.begun < least.begun) {
			least = t
		}
	}
	if least == nil {
		return nil, simProcess{}
	}
	r := simProcess{bin: w.bin, scenario: least.scenario, nodes: least.nodes, seed: least.next}
	least.next++
	least.begun++
	return least, r
}

// wants reports whether a kind and size needs more runs. Called with the lock held.
func (w *runner) wants(t *stats) bool {
	switch {
	case len(t.failures) >= maxFailures:
		return false
	case w.limit.runs > 0 && t.begun >= w.limit.runs:
		return false
	case w.limit.faults > 0:
		return t.sum.Effective() < w.limit.faults
	}
	return true
}

func (w *runner) add(t *stats, s summary) {
	w.mu.Lock()
	defer w.mu.Unlock()
	t.runs++
	t.sum.Injected += s.Injected
	if s.SLO != nil {
		t.slo.Add(*s.SLO)
	}
	for kind, n := range s.Faults {
		t.sum.Faults[kind] += n
	}
	for what, n := range s.Reached {
		t.sum.Reached[what] += n
	}
	t.sum.Messages += s.Messages
	t.sum.Elections += s.Elections
	t.sum.Ops += s.Ops
	t.convergedAfter = append(t.convergedAfter, s.ConvergedAfter)
	t.sum.CPU += s.CPU
	if len(s.Violations) > 0 {
		t.failures = append(t.failures, s)
		describe(w.out, s)
		savePage(w.out, w.pages, s)
	}
}

// savePage writes the page of a run, if it has one.
func savePage(out io.Writer, dir string, s summary) {
	if s.Timeline == nil || dir == "" {
		return
	}
	path, err := s.Timeline.Save(dir, fmt.Sprintf("%s-%d-%d", s.Scenario, s.Nodes, s.Seed))
	if err != nil {
		_, _ = fmt.Fprintf(out, "report: %v\n", err)
		return
	}
	_, _ = fmt.Fprintf(out, "report: %s\n", path)
}

func (t *stats) String() string {
	if t.runs == 0 {
		return fmt.Sprintf("%s, %d nodes: no run", t.scenario, t.nodes)
	}
	slices.Sort(t.convergedAfter)
	at := func(q float64) time.Duration { return t.convergedAfter[int(q*float64(len(t.convergedAfter)-1))] }
	return fmt.Sprintf(
		"%s, %d nodes: %d runs to seed %d, %d failed; %d faults with an effect (%.0f a CPU second) of %d injected, %d messages disturbed, %d elections, %d operations; converged in p50 %v p99 %v max %v\n  %s\n  reached: %s",
		t.scenario, t.nodes, t.runs, t.next-1, len(t.failures), t.sum.Effective(),
		float64(t.sum.Effective())/t.sum.CPU.Seconds(), t.sum.Injected, t.sum.Messages, t.sum.Elections, t.sum.Ops,
		at(0.5), at(0.99), at(1), byCount(t.sum.Faults), byCount(t.sum.Reached))
}

// byCount names what was counted with its number, the most frequent first.
func byCount[K ~string](counts map[K]int) string {
	names := slices.SortedFunc(maps.Keys(counts), func(a, b K) int {
		return cmp.Or(cmp.Compare(counts[b], counts[a]), cmp.Compare(a, b))
	})
	var parts []string
	for _, k := range names {
		parts = append(parts, fmt.Sprintf("%s %d", k, counts[k]))
	}
	return strings.Join(parts, ", ")
}

// describe prints a run, and how to see it again.
func describe(out io.Writer, s summary) {
	_, _ = fmt.Fprintf(out, "seed %d, %d nodes: %d faults, %d elections, digest %s\n", s.Seed, s.Nodes, s.Effective(),
		s.Elections, s.Digest)
	if s.Timeline != nil {
		_ = s.Timeline.Text(out) // a write error cannot be reported anywhere
	}
	if len(s.Violations) == 0 {
		return
	}
	_, _ = fmt.Fprint(out, s.Report)
	replay := fmt.Sprintf("make chaos-replay SCENARIO=%s NODES=%d SEED=%d", s.Scenario, s.Nodes, s.Seed)
	if s.Minimal != nil {
		_, _ = fmt.Fprintf(out, "it fails with %d of its faults as well:\n", len(s.Minimal))
		replay += " FAULTS=" + strings.Trim(strings.ReplaceAll(fmt.Sprint(s.Minimal), " ", ","), "[]")
	}
	_, _ = fmt.Fprintf(out, "again: %s\n", replay)
}

// simProcess is one process that runs one run: what a process has run before can change what it runs next.
type simProcess struct {
	bin             string
	mutant          string // "": none
	scenario        string
	nodes           int
	seed            uint64
	faults          string // places of faults; "": all
	minimizeSeconds int    // seconds
	report          bool   // also of a run that is well
}

// run runs the process and returns the run's outcome to done. A run that
// fails is no error; one that brings the process down is.
func (r simProcess) run(ctx context.Context, done func(summary)) error {
	cmd := exec.CommandContext(ctx, r.bin, "-test.run", fmt.Sprintf("^TestSim$/^%d_nodes$", r.nodes),
		"-test.timeout", "0")
	cmd.Env = append(os.Environ(), "GOMAXPROCS=1", "NORTHSTAR_SIM_JSON=1", "NORTHSTAR_SIM_SCENARIO="+r.scenario,
		"NORTHSTAR_SIM_SEED=", "NORTHSTAR_SIM_FAULTS="+r.faults, "NORTHSTAR_SIM_SEEDS=1", planted.Variable+"="+r.mutant,
		fmt.Sprintf("NORTHSTAR_SIM_FROM=%d", r.seed), fmt.Sprintf("NORTHSTAR_SIM_SHRINK=%d", r.minimizeSeconds))
	if r.report {
		cmd.Env = append(cmd.Env, "NORTHSTAR_SIM_REPORT=1")
	}
	var rest tail
	cmd.Stderr = &rest
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	finished, began := false, ""
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 64<<20)
	for lines.Scan() {
		line := lines.Bytes()
		if text, ok := bytes.CutPrefix(line, []byte("run ")); ok {
			var s summary
			if err := json.Unmarshal(text, &s); err != nil {
				return errors.Join(fmt.Errorf("a run's outcome: %w", err), cmd.Cancel(), cmd.Wait())
			}
			finished = true
			done(s)
			continue
		}
		if text, ok := bytes.CutPrefix(line, []byte("begin ")); ok {
			began = string(text)
			continue
		}
		_, _ = rest.Write(append(line, '\n'))
	}
	err = errors.Join(lines.Err(), cmd.Wait())
	if finished || ctx.Err() != nil {
		return nil // it exits with 1 when a run failed, which done has seen
	}
	return fmt.Errorf("the process of %s ended: %w\n%s", began, err, rest.b)
}

// tail keeps the last of what is written to it, from any goroutine.
type tail struct {
	mu sync.Mutex
	b  []byte
}

const maxTail = 64 << 10

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.b = append(t.b, b...)
	t.b = t.b[max(0, len(t.b)-maxTail):]
	return len(b), nil
}
