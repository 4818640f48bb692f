package client

import (
	"math"
	"sync/atomic"
	"time"
)

// atomicTime is a point in time that several goroutines note and look at. It keeps
// the monotonic reading: a wall clock that is set changes nothing.
type atomicTime struct{ at atomic.Pointer[time.Time] }

func (m *atomicTime) set(t time.Time) { m.at.Store(&t) }

// since is how long before t the moment was; for ever when it was never set.
func (m *atomicTime) since(t time.Time) time.Duration {
	if at := m.at.Load(); at != nil {
		return t.Sub(*at)
	}
	return math.MaxInt64
}
