//go:build !race

package consensus_test

// slowdown is how much longer the nodes' timeouts are: the race detector is off.
const slowdown = 1
