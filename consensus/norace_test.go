//go:build !race

package consensus_test

const (
	slowdown = 1
	parallel = "16"
)
