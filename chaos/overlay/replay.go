package overlay

import (
	_ "embed" // the patch
	"path/filepath"
)

//go:embed replay.patch
var replayPatch string

// Replay changes the installed toolchain so that a synctest bubble goes the same way each time it is run from one
// seed, in any process, as long as that was started with GOMAXPROCS=1 (to set it later leaves traces) and nothing is
// collected meanwhile (a GC percent of -1). What decides between goroutines is then drawn from a generator
// (splitmix64) that chaos/sim seeds:
//
//   - the order of a select's cases, and of timers of one instant;
//   - math/rand's functions without a source of their own.
//
// What would draw from it a number of times that depends on what the process did before, as with caches that are made
// at their first use, gets the same number every time instead: the seeds of maps, and where a range over one begins.
// A select has its timers draw their places among those of one instant in the order in which it looks at its cases,
// not of their channels' addresses. Contexts end their children, and HTTP servers their connections, in the order of
// their making, not of a map of pointers, as the addresses differ from process to process. No time but the bubble's
// own counts: not for the starvation of a mutex, nor to preempt a goroutine that runs long, nor to go on with another
// while a system call is slow; and the number of goroutines that ran before is looked at no more.
//
// Nothing built so may ship: it starts with the same random numbers each time,
// and one goroutine can hold up all others for a minute.
func Replay(goroot string) Set { return Patch(filepath.Join(goroot, "src"), replayPatch) }
