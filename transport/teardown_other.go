//go:build !linux

package transport

// TeardownThreads is for Linux only: elsewhere there is none.
type TeardownThreads struct{}

// NewAnchor gives nil.
func NewAnchor() (*TeardownThreads, error) { return nil, nil }

// Close does nothing.
func (a *TeardownThreads) Close() {}
