//go:build !race

package node

// slowdown is how much longer a test waits: the race detector is off.
const slowdown = 1
