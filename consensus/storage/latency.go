package storage

import (
	"math"
	"sync"
	"time"
)

// latencyTracker tracks operations in flight, and the durations of synced ones over the last minute.
type latencyTracker struct {
	epoch time.Time

	mu       sync.Mutex
	nextID   uint64
	inFlight []operation // a handful: Raft's loops and its replication
	windows  [windowCount]window
	known    struct {
		p99   time.Duration
		total uint64
		until time.Time // valid until then
	}
}

type operation struct {
	id    uint64
	op    string
	start time.Time
}

// Durations are counted in buckets that grow by 10 %, from 10 µs to over 100 s. The buckets are kept in
// windows of five seconds, and the last twelve windows count.
const (
	windowCount = 12
	windowSize  = 5 * time.Second
	bucketCount = 170
	bucketBase  = 10 * time.Microsecond
	bucketStep  = 1.1
)

// p99TTL is how long a percentile is reused: each claim to each peer contains it.
const p99TTL = 100 * time.Millisecond

type window struct {
	number int64 // how many windowSize after the tracker's epoch
	counts [bucketCount]uint32
}

// newWatch counts its windows from now on the monotonic clock: a step of the wall clock loses and repeats none.
func newWatch() *latencyTracker { return &latencyTracker{epoch: time.Now()} }

func (w *latencyTracker) begin(op string, now time.Time) uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.nextID++
	w.inFlight = append(w.inFlight, operation{w.nextID, op, now})
	return w.nextID
}

func (w *latencyTracker) end(id uint64, now time.Time, synced bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, f := range w.inFlight {
		if f.id == id {
			last := len(w.inFlight) - 1
			w.inFlight[i] = w.inFlight[last]
			w.inFlight = w.inFlight[:last]
			if synced {
				w.window(now).counts[bucket(now.Sub(f.start))]++
			}
			return
		}
	}
}

// oldest returns the operation that has been in flight for longest.
func (w *latencyTracker) oldest(now time.Time) (op string, d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, f := range w.inFlight {
		if age := now.Sub(f.start); age > d {
			op, d = f.op, age
		}
	}
	return op, d
}

// p99 returns the percentile and the number of operations behind it. The result is at most p99TTL old.
func (w *latencyTracker) p99(now time.Time) (p99 time.Duration, total uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !now.Before(w.known.until) {
		w.known.p99, w.known.total = w.count(now)
		w.known.until = now.Add(p99TTL)
	}
	return w.known.p99, w.known.total
}

// count computes p99 from the windows. The lock must be held.
func (w *latencyTracker) count(now time.Time) (p99 time.Duration, total uint64) {
	var counts [bucketCount]uint64
	current := w.windowNumber(now)
	for i := range w.windows {
		if age := current - w.windows[i].number; age < 0 || age >= windowCount {
			continue
		}
		for b, n := range w.windows[i].counts {
			counts[b] += uint64(n)
			total += uint64(n)
		}
	}
	above := total / 100 // at most this many may lie above the percentile
	for b := bucketCount - 1; b >= 0; b-- {
		if counts[b] > above {
			return upperBound(b), total
		}
		above -= counts[b]
	}
	return 0, total
}

func (w *latencyTracker) window(now time.Time) *window {
	n := w.windowNumber(now)
	win := &w.windows[((n%windowCount)+windowCount)%windowCount]
	if win.number != n {
		*win = window{number: n}
	}
	return win
}

func (w *latencyTracker) windowNumber(now time.Time) int64 {
	return int64(now.Sub(w.epoch)/windowSize) + 1
}

func bucket(d time.Duration) int {
	if d <= bucketBase {
		return 0
	}
	b := int(math.Ceil(math.Log(float64(d)/float64(bucketBase)) / math.Log(bucketStep)))
	return min(b, bucketCount-1)
}

func upperBound(b int) time.Duration {
	return time.Duration(float64(bucketBase) * math.Pow(bucketStep, float64(b)))
}
