//go:build !exactreplay

package sim

// deterministic reports that a seed fixes all that happens in a run. On the toolchain as
// it is, it fixes the faults, delays and disks, not the order of goroutines.
const deterministic = false

func seedScheduler(uint64) {}
