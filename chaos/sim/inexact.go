//go:build !exactreplay

package sim

// exact says that a seed fixes all that happens in a world. On the toolchain as
// it is, it fixes the faults, delays and disks, not the order of goroutines.
const exact = false

func reseed(uint64) {}
