//go:build !linux

package api

import (
	"net"
	"time"
)

// setTCPUserTimeout leaves it to the system when it gives a connection up.
func setTCPUserTimeout(net.Conn, time.Duration) {}

// hasUnacknowledgedData is not known on this system.
func hasUnacknowledgedData(net.Conn) bool { return false }
