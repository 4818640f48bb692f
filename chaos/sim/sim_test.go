package sim

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"northstar/chaos/testenv"
)

// One bubble runs on one core: more only pass its goroutines around. Memory is cheaper than collecting it.
func TestMain(m *testing.M) {
	runtime.GOMAXPROCS(1)
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(400)
	}
	os.Exit(m.Run())
}

// number is the value of an environment variable.
func number(t *testing.T, name string, usual uint64) uint64 {
	t.Helper()
	s := os.Getenv(name)
	if s == "" {
		return usual
	}
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
}

// seeds returns the seeds to run: NORTHSTAR_SIM_SEED replays one,
// NORTHSTAR_SIM_SEEDS is how many, from NORTHSTAR_SIM_FROM on.
func seeds(t *testing.T, usual int) []uint64 {
	t.Helper()
	if os.Getenv("NORTHSTAR_SIM_SEED") != "" {
		return []uint64{number(t, "NORTHSTAR_SIM_SEED", 0)}
	}
	from, n := number(t, "NORTHSTAR_SIM_FROM", 1), number(t, "NORTHSTAR_SIM_SEEDS", uint64(usual))
	var all []uint64
	for s := from; s < from+n; s++ {
		all = append(all, s)
	}
	return all
}

// sum adds up what runs found.
type sum struct {
	runs, faults, messages, elections, ops int
	converged                              []time.Duration
	took, cpu                              time.Duration
}

// cpuTime is the processor time that this process has used.
func cpuTime() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func (s *sum) add(r Result) {
	s.runs++
	s.faults += r.Injected
	s.messages += r.Messages
	s.elections += r.Elections
	s.ops += len(r.History)
	s.converged = append(s.converged, r.ConvergedAfter)
}

func (s *sum) String() string {
	slices.Sort(s.converged)
	at := func(q float64) time.Duration { return s.converged[int(q*float64(len(s.converged)-1))] }
	rate := func(n int) float64 { return float64(n) / s.cpu.Seconds() }
	return fmt.Sprintf(
		"%d runs, %d faults injected (%.0f per CPU second), %d messages disturbed, %d elections (%.0f per CPU second), %d operations; converged in p50 %v p99 %v max %v; %v, of which %v CPU",
		s.runs, s.faults, rate(s.faults), s.messages, s.elections, rate(s.elections), s.ops,
		at(0.5), at(0.99), at(1), s.took.Round(time.Millisecond), s.cpu.Round(time.Millisecond))
}

// TestSim runs whole nodes under all kinds of faults together, or in the scenario that
// NORTHSTAR_SIM_SCENARIO names. There are few runs by default, as make sim has many. A failure
// names the command that replays it.
// NORTHSTAR_SIM_FAULTS keeps only the faults of a seed at the given places.
// NORTHSTAR_SIM_REPORT=1 prints a timeline also for a run without a failure.
// NORTHSTAR_SIM_JSON=1 prints each run's Summary. NORTHSTAR_SIM_SHRINK reduces the
// faults of a failed run, for so many seconds. chaos/run sets them.
func TestSim(t *testing.T) {
	for _, nodes := range Sizes {
		t.Run(fmt.Sprintf("%d nodes", nodes), func(t *testing.T) {
			var total sum
			start, cpu := time.Now(), cpuTime()
			for _, seed := range seeds(t, testenv.Repeats(2)) {
				cfg, err := NewConfig(os.Getenv("NORTHSTAR_SIM_SCENARIO"), seed, nodes)
				if err != nil {
					t.Fatal(err)
				}
				total.add(simulate(t, cfg))
			}
			total.took, total.cpu = time.Since(start), cpuTime()-cpu
			t.Log(total.String())
		})
	}
}

// simulate runs one run as the environment asks for.
func simulate(t *testing.T, cfg Config) Result {
	t.Helper()
	if s := os.Getenv("NORTHSTAR_SIM_FAULTS"); s != "" {
		at, err := ParseIndexes(s)
		if err != nil {
			t.Fatal(err)
		}
		cfg.Plan = SelectFaults(cfg.faults(), at)
	}
	tell := os.Getenv("NORTHSTAR_SIM_JSON") != ""
	if tell {
		fmt.Printf("begin seed %d, %d nodes\n", cfg.Seed, cfg.Nodes)
	}
	cfg.Timeline = os.Getenv("NORTHSTAR_SIM_REPORT") != ""
	cpu := cpuTime()
	res, report := Run(t, cfg)
	s := Summary{
		Outcome: res.Outcome, Scenario: cmp.Or(os.Getenv("NORTHSTAR_SIM_SCENARIO"), DefaultScenario), Nodes: cfg.Nodes,
		Digest: fmt.Sprintf("%016x", res.Digest), Ops: len(res.History), CPU: cpuTime() - cpu, Report: report,
	}
	for _, v := range res.Violations {
		s.Violations = append(s.Violations, v.Error())
	}
	if limit := number(t, "NORTHSTAR_SIM_SHRINK", 0); report != "" && limit > 0 {
		s.Minimal = Minimize(t, cfg, res.Violations, time.Duration(limit)*time.Second)
	}
	if s.Timeline != nil {
		s.Timeline.ReplayCommand = replayCommand(s)
	}
	if tell {
		line, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Printf("run %s\n", line)
	}
	if report != "" {
		t.Errorf("%s\n%s", replayCommand(s), report)
	}
	return res
}

func replayCommand(s Summary) string {
	return fmt.Sprintf("make chaos-replay SCENARIO=%s NODES=%d SEED=%d", s.Scenario, s.Nodes, s.Seed)
}
