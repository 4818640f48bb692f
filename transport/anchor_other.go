//go:build !linux

package transport

// Anchor is for Linux only: elsewhere there is none.
type Anchor struct{}

// NewAnchor gives nil.
func NewAnchor() (*Anchor, error) { return nil, nil }

// Close does nothing.
func (a *Anchor) Close() {}
