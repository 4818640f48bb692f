//go:build !linux && !darwin

package client

import "time"

var processStart = time.Now()

// sinceBoot reads the monotonic clock of this process.
func sinceBoot() time.Duration { return time.Since(processStart) }
