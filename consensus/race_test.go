//go:build race

package consensus_test

// The race detector slows everything down. So the nodes' timeouts are longer, and fewer tests run in parallel.
const (
	slowdown = 4
	parallel = "16"
)
