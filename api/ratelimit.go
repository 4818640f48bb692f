package api

import (
	"sync"
	"time"
)

// Bad tokens of one address, and recorded refusals of one caller: a burst, then one a second.
const (
	failureBurst  = 20
	failureRefill = time.Second
	refusalBurst  = 100
	refusalRefill = time.Second
	maxLimited    = 4096 // keys remembered; beyond it, the key closest to a full burst is evicted
)

// keyLimiter is a token bucket for each key. Its methods may be called by any goroutine.
type keyLimiter[K comparable] struct {
	burst  time.Duration // after which an empty bucket is full again
	refill time.Duration

	mu   sync.Mutex
	seen map[K]bucket
}

type bucket struct {
	full    time.Time // when the bucket is full again
	skipped int       // refused since the last that was allowed
}

func newKeyLimiter[K comparable](burst int, refill time.Duration) *keyLimiter[K] {
	return &keyLimiter[K]{burst: time.Duration(burst) * refill, refill: refill, seen: make(map[K]bucket)}
}

// allow takes one token of the key's bucket and reports whether there was one. skipped is the number of calls that
// were refused before this one.
func (l *keyLimiter[K]) allow(key K, now time.Time) (ok bool, skipped int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	b, known := l.seen[key]
	if !known || b.full.Before(now) {
		b.full = now
	}
	full := b.full.Add(l.refill)
	if full.Sub(now) > l.burst {
		b.skipped++
		l.seen[key] = b
		return false, b.skipped
	}
	if !known && len(l.seen) >= maxLimited {
		l.evict(now)
	}
	l.seen[key] = bucket{full: full}
	return true, b.skipped
}

// evict removes all keys with a full bucket, or else the key closest to one.
func (l *keyLimiter[K]) evict(now time.Time) {
	var best K
	var at time.Time
	for key, b := range l.seen {
		if !b.full.After(now) {
			delete(l.seen, key)
			continue
		}
		if at.IsZero() || b.full.Before(at) {
			best, at = key, b.full
		}
	}
	if len(l.seen) >= maxLimited {
		delete(l.seen, best)
	}
}
