//go:build race

package consensus_test

// slowdown is how much longer the nodes' timeouts are, as the race detector makes everything slower.
const slowdown = 4
