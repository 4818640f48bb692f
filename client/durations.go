package client

import "time"

// durationBounds are the upper bounds of the buckets of a DurationHistogram.
var durationBounds = [...]time.Duration{
	time.Millisecond, 2500 * time.Microsecond, 5 * time.Millisecond, 10 * time.Millisecond, 25 * time.Millisecond,
	50 * time.Millisecond, 100 * time.Millisecond, 250 * time.Millisecond, 500 * time.Millisecond, time.Second,
	2500 * time.Millisecond, 5 * time.Second, 10 * time.Second, 30 * time.Second, time.Minute,
}

// DurationHistogram counts durations by their length.
type DurationHistogram struct {
	Count uint64
	Sum   time.Duration

	atMost [len(durationBounds)]uint64 // cumulative
}

// Buckets returns how many durations were at most as long as each upper bound, which is in seconds.
func (h DurationHistogram) Buckets() map[float64]uint64 {
	buckets := make(map[float64]uint64, len(durationBounds))
	for i, bound := range durationBounds {
		buckets[bound.Seconds()] = h.atMost[i]
	}
	return buckets
}

func (h *DurationHistogram) observe(d time.Duration) {
	h.Count++
	h.Sum += d
	for i, bound := range durationBounds {
		if d <= bound {
			h.atMost[i]++
		}
	}
}

// addSince adds what now has in addition to before, an earlier state of it.
func (h *DurationHistogram) addSince(now, before DurationHistogram) {
	h.Count += now.Count - before.Count
	h.Sum += now.Sum - before.Sum
	for i := range h.atMost {
		h.atMost[i] += now.atMost[i] - before.atMost[i]
	}
}
