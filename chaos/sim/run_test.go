package sim

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"
	"testing/cryptotest"
	"testing/synctest"
	"time"

	"northstar/chaos/check"
	"northstar/chaos/testenv"
)

// hangLimit is of real time for one run: more means that something spins, also on a busy machine.
var hangLimit = testenv.Slowdown() * 15 * time.Minute

// Run runs one run in a bubble of its own, checks its history, and returns the
// report of a failure; "" when nothing was violated. A run that stops or
// spins ends the process with its seed.
func Run(t *testing.T, cfg Config) (Result, string) {
	t.Helper()
	cfg.Plan = cfg.faults()
	var res Result
	var report strings.Builder
	var sim *Simulation
	hang := time.AfterFunc(hangLimit, func() {
		debug.SetTraceback("all") // what spins is none of this goroutine's
		panic(fmt.Sprintf(
			"sim: seed %d, %d nodes: still not at its end after %v: something spins or waits for real time", cfg.Seed,
			cfg.Nodes, hangLimit))
	})
	defer hang.Stop()
	defer func() {
		if p := recover(); p != nil {
			sim.Report(&report)
			panic(fmt.Sprintf("%v\nsim: %s", p, report.String()))
		}
	}()
	defer disableGC()()
	cryptotest.SetGlobalRandom(t, cfg.Seed)
	seedScheduler(cfg.Seed)
	synctest.Test(t, func(t *testing.T) {
		sim = NewSimulation(t.Context(), cfg)
		res = sim.Run()
	})
	if len(res.Violations) == 0 { // a history of a broken cluster takes long to decide, and adds nothing
		res.Violations = check.Linearizable(res.History, testenv.Slowdown()*check.DecisionLimit)
		for _, v := range res.Violations {
			sim.violated(v)
		}
	}
	if len(res.Violations) > 0 {
		sim.Report(&report)
	}
	if len(res.Violations) > 0 || cfg.Timeline {
		r := sim.timelineOf(res.Violations, res.SLO)
		res.Timeline = &r
	}
	return res, report.String()
}

// disableGC collects what the runs before have left, and holds off further
// collections until the function it returns is called: they come at times that
// depend on the machine, and take turns with the run's goroutines.
func disableGC() (release func()) {
	if !deterministic {
		return func() {}
	}
	percent := debug.SetGCPercent(-1)
	for range 2 {
		runtime.GC()
		time.Sleep(time.Millisecond) // finalizers and the like have their turn
	}
	return func() { debug.SetGCPercent(percent) }
}
