//go:build !linux

package attach

import (
	"net"
	"time"
)

// limitSilence does nothing: the system decides when to close a connection.
func limitSilence(net.Conn, time.Duration) {}

// unacknowledged returns false: this system does not report it.
func unacknowledged(net.Conn) bool { return false }
