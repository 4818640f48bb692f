//go:build !linux

package transport

import "net"

// CrashSocket is for Linux only: elsewhere there is none.
type CrashSocket struct{}

// NewCrashSocket gives nil.
func NewCrashSocket(net.Listener) (*CrashSocket, error) { return nil, nil }

// Port is 0.
func (c *CrashSocket) Port() int { return 0 }

// Close does nothing.
func (c *CrashSocket) Close() {}
