package client

import (
	"math"
	"sync/atomic"
	"time"
)

// atomicTime is a point in time that goroutines share. It keeps the monotonic reading, so changes of the wall clock
// have no effect.
type atomicTime struct{ at atomic.Pointer[time.Time] }

func (m *atomicTime) set(t time.Time) { m.at.Store(&t) }

// since returns how long the stored time is before t; the maximum if it was never set.
func (m *atomicTime) since(t time.Time) time.Duration {
	if at := m.at.Load(); at != nil {
		return t.Sub(*at)
	}
	return math.MaxInt64
}
