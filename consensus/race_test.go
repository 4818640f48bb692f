//go:build race

package consensus_test

// Under the race detector everything takes longer: so do the nodes' timeouts, and fewer tests run at once.
const (
	slowdown = 3
	parallel = "8"
)
