//go:build race

package node

// slowdown is how much longer a test waits, as the race detector makes it.
const slowdown = 3
