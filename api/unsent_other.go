//go:build !linux

package api

import "net"

// limitUnsent does nothing: what the kernel holds of unsent bytes is limited by its own settings.
func limitUnsent(net.Conn) {}
