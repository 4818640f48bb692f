//go:build !linux

package transport

import "net"

// Canary is for Linux only: elsewhere there is none.
type Canary struct{}

// NewCanary gives nil.
func NewCanary(net.Listener) (*Canary, error) { return nil, nil }

// Port is 0.
func (c *Canary) Port() int { return 0 }

// Close does nothing.
func (c *Canary) Close() {}
