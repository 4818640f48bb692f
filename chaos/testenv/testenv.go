// Package testenv adapts tests to the machine that runs them.
package testenv

import (
	"flag"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// slowdownEnv is how many times longer tests wait, and how many times longer their nodes' timeouts are, than on a
	// machine that is not slow. .ci/run measures the machine and sets it; make flaky makes it slow, and sets it.
	slowdownEnv = "NORTHSTAR_TEST_SLOWDOWN"

	// fewerEnv makes tests repeat less. .ci/run sets it, and make flaky, which repeats all of them; make test and make
	// nightly do not.
	fewerEnv = "NORTHSTAR_TEST_FEWER"

	// maxSlowdown bounds it: tests that wait longer would only end later.
	maxSlowdown = 5

	memory = "/dev/shm"
)

// Slowdown returns how many times longer than usual a test must wait on this machine, from 1 on.
func Slowdown() time.Duration { return slowdown(os.Getenv(slowdownEnv)) }

func slowdown(text string) time.Duration {
	n, err := strconv.Atoi(text)
	if err != nil {
		return 1
	}
	return time.Duration(min(max(n, 1), maxSlowdown))
}

// Repeats returns how often a test does something with other random numbers each time: n times, or a third of them
// where a run of all tests must not take long.
func Repeats(n int) int {
	if os.Getenv(fewerEnv) == "" {
		return n
	}
	return (n + 2) / 3
}

// Parallel lets n parallel tests run at a time, for packages whose tests mostly wait. On a slow machine, they wait for
// each other's computations: fewer run there. TestMain calls it before the flags are parsed, so that -parallel
// overrides it.
func Parallel(n int) {
	if err := flag.Set("test.parallel", strconv.Itoa(max(2, n/int(Slowdown())))); err != nil {
		panic(err)
	}
}

// InMemory makes the directories of tests lie in memory, where the machine has room for so many bytes and TMPDIR names
// no other place: verdicts on elections must not depend on how long a shared disk takes to sync. TestMain calls it.
func InMemory(room uint64) {
	var shm unix.Statfs_t
	if os.Getenv("TMPDIR") != "" || unix.Statfs(memory, &shm) != nil || shm.Bavail*uint64(shm.Bsize) < room {
		return
	}
	if err := os.Setenv("TMPDIR", memory); err != nil {
		panic(err)
	}
}
