//go:build !linux

package crashdetect

import (
	"net"
	"time"
)

// CrashSocket exists on Linux only.
type CrashSocket struct{}

// NewCrashSocket returns nil.
func NewCrashSocket(net.Listener) (*CrashSocket, error) { return nil, nil }

// Port returns 0.
func (c *CrashSocket) Port() int { return 0 }

// Close does nothing.
func (c *CrashSocket) Close() {}

// PreciseSleep sleeps for d, or as long as the timer takes.
func PreciseSleep(d time.Duration) { time.Sleep(d) }
