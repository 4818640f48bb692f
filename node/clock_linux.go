package node

import (
	"time"

	"golang.org/x/sys/unix"
)

// hasBootClock: sinceBoot runs on while the machine is suspended.
const hasBootClock = true

// sinceBoot reads CLOCK_BOOTTIME, which includes suspended time: leases expire during a suspend.
func sinceBoot() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		panic("node: the kernel has no CLOCK_BOOTTIME: " + err.Error()) // exists since Linux 2.6.39
	}
	return time.Duration(ts.Nano())
}
