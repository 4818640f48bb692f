//go:build !linux

package node

import "time"

// hasBootClock: sinceBoot does not run on while the machine is suspended.
const hasBootClock = false

var processStart = time.Now()

// sinceBoot reads the monotonic clock of this process.
func sinceBoot() time.Duration { return time.Since(processStart) }
