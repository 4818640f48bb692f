package client

import (
	"time"

	"golang.org/x/sys/unix"
)

// sinceBoot reads CLOCK_MONOTONIC_RAW. Unlike Go's monotonic clock, it advances while the machine sleeps, so that a
// lease ends meanwhile.
func sinceBoot() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC_RAW, &ts); err != nil {
		panic("client: the system has no CLOCK_MONOTONIC_RAW: " + err.Error()) // exists since macOS 10.12
	}
	return time.Duration(ts.Nano())
}
