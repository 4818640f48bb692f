package storage

import (
	"math"
	"slices"
	"sync"
	"time"
)

// latencyTracker tracks operations in flight, and the durations of synced ones over the last minute.
type latencyTracker struct {
	epoch time.Time
	stall time.Duration // longer operations, and those beside them, say that the disk stalled, and nothing of its speed

	mu       sync.Mutex
	nextID   uint64
	inFlight []operation // a handful: Raft's loops and its replication
	windows  [windowCount]window
	longest  [longestCount]longestOf
	stalled  time.Time // when an operation that was a stall has ended last
	inRow    int       // synced operations that were stalls, since one that was none
	known    struct {
		p99    time.Duration
		total  uint64
		median time.Duration // of recentWindows
		usual  time.Duration // the median of all windows
		until  time.Time     // valid until then
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

// The longest synced operations are kept by periods of a minute, for ten minutes.
const (
	longestCount  = 10
	longestPeriod = time.Minute
)

// longestOf is what one period has seen.
type longestOf struct {
	number int64
	synced [2]time.Duration // the two longest operations that were no stalls, the longest first
	count  int
}

// The median is that of the present window and the one before, and of minRecent operations at least: a slow disk has
// few in that time. Before the tracker has seen two windows there is none: the operations of a start say little about
// a disk. The median of the last minute needs minUsual operations.
const (
	recentWindows = 2
	minRecent     = 8
	minUsual      = 32
)

// p99TTL is how long a percentile is reused: each claim to each peer contains it.
const p99TTL = 100 * time.Millisecond

type window struct {
	number int64 // how many windowSize after the tracker's epoch
	counts [bucketCount]uint32
}

// newWatch counts its windows from now on the monotonic clock: a step of the wall clock loses and repeats none.
func newWatch(stall time.Duration) *latencyTracker {
	return &latencyTracker{epoch: time.Now(), stall: stall}
}

// begin records an operation that begins, and reports whether no other one is in flight.
func (w *latencyTracker) begin(op string, now time.Time) (id uint64, first bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.nextID++
	w.inFlight = append(w.inFlight, operation{w.nextID, op, now})
	return w.nextID, len(w.inFlight) == 1
}

func (w *latencyTracker) end(id uint64, now time.Time, synced bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, f := range w.inFlight {
		if f.id == id {
			last := len(w.inFlight) - 1
			w.inFlight[i] = w.inFlight[last]
			w.inFlight = w.inFlight[:last]
			took := now.Sub(f.start)
			if took > w.stall {
				w.stalled = now
			}
			if synced {
				w.observe(now, took, w.inStall(f.start, now))
			}
			return
		}
	}
}

// maxInRow is how many synced operations in a row may be stalls: one stall holds up only a few. If there are more, the
// disk is always that slow.
const maxInRow = 4

// inStall reports whether a synced operation that began at start and ends now is a stall, or was in flight beside one.
// The lock must be held.
func (w *latencyTracker) inStall(start, now time.Time) bool {
	if now.Sub(start) > w.stall {
		w.inRow++
		return w.inRow <= maxInRow
	}
	beside := !start.After(w.stalled) ||
		slices.ContainsFunc(w.inFlight, func(f operation) bool { return now.Sub(f.start) > w.stall })
	if !beside {
		w.inRow = 0
	}
	return beside
}

// observe records a synced operation. The lock must be held.
func (w *latencyTracker) observe(now time.Time, took time.Duration, inStall bool) {
	w.window(now).counts[bucket(took)]++
	n := int64(now.Sub(w.epoch)/longestPeriod) + 1
	l := &w.longest[n%longestCount]
	if l.number != n {
		*l = longestOf{number: n}
	}
	if !inStall {
		l.synced = longestTwo(l.synced, took)
	}
	l.count++
}

// longestTwo returns the two longest ones of longest and took.
func longestTwo(longest [2]time.Duration, took time.Duration) [2]time.Duration {
	switch {
	case took > longest[0]:
		return [2]time.Duration{took, longest[0]}
	case took > longest[1]:
		longest[1] = took
	}
	return longest
}

// slowest returns the two longest synced operations of the last minutes, and how many there were.
func (w *latencyTracker) slowest(now time.Time) (took [2]time.Duration, count int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	current := int64(now.Sub(w.epoch)/longestPeriod) + 1
	for _, l := range w.longest {
		if age := current - l.number; l.number > 0 && age >= 0 && age < longestCount {
			took, count = longestTwo(longestTwo(took, l.synced[0]), l.synced[1]), count+l.count
		}
	}
	return took, count
}

// unmeasured reports whether a read or a truncation is in flight. The times of other operations say nothing about
// theirs, and an append may wait for a truncation.
func (w *latencyTracker) unmeasured() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.ContainsFunc(w.inFlight, func(f operation) bool { return f.op == OpRead || f.op == OpTruncate })
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

// quantiles returns the percentile, the number of operations behind it, and the median of the last 5 to 10 seconds. The
// result is at most p99TTL old.
func (w *latencyTracker) quantiles(now time.Time) (p99 time.Duration, total uint64, median time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.refresh(now)
	return w.known.p99, w.known.total, w.known.median
}

// usual returns the median of the last minute; 0 if fewer than minUsual operations were synced.
func (w *latencyTracker) usual(now time.Time) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.refresh(now)
	return w.known.usual
}

// refresh computes what is known when that is too old. The lock must be held.
func (w *latencyTracker) refresh(now time.Time) {
	if now.Before(w.known.until) {
		return
	}
	w.known.p99, w.known.total = w.quantile(now, windowCount, 100)
	w.known.usual, w.known.median = 0, 0
	if w.known.total >= minUsual {
		w.known.usual, _ = w.quantile(now, windowCount, 2)
	}
	median, some := w.quantile(now, recentWindows, 2)
	if some >= minRecent && now.Sub(w.epoch) >= recentWindows*windowSize {
		w.known.median = median
	}
	w.known.until = now.Add(p99TTL)
}

// quantile returns the duration above which one of part operations lies in the newest windows, and their number. With
// fewer than part it is the longest. The lock must be held.
func (w *latencyTracker) quantile(now time.Time, windows int64, part uint64) (d time.Duration, total uint64) {
	var counts [bucketCount]uint64
	current := w.windowNumber(now)
	for i := range w.windows {
		if age := current - w.windows[i].number; age < 0 || age >= windows {
			continue
		}
		for b, n := range w.windows[i].counts {
			counts[b] += uint64(n)
			total += uint64(n)
		}
	}
	above := total / part // at most this many may lie above the result
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
