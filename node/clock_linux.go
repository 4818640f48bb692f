package node

import (
	"time"

	"golang.org/x/sys/unix"
)

// hasBootClock: sinceBoot runs on while the machine is suspended.
const hasBootClock = true

// sinceBoot is CLOCK_BOOTTIME: unlike Go's monotonic clock it runs on while
// the machine is suspended, so that a lease ends meanwhile.
func sinceBoot() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		panic("node: the kernel has no CLOCK_BOOTTIME: " + err.Error()) // it is there since Linux 2.6.39
	}
	return time.Duration(ts.Nano())
}
