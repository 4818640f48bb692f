package client

import (
	"time"

	"golang.org/x/sys/unix"
)

// sinceBoot is CLOCK_BOOTTIME: it runs on while the machine is suspended, unlike
// Go's monotonic clock, so that a lease ends meanwhile.
func sinceBoot() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		panic("client: the kernel has no CLOCK_BOOTTIME: " + err.Error()) // it is there since Linux 2.6.39
	}
	return time.Duration(ts.Nano())
}
