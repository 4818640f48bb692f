package api

import (
	"net/netip"
	"sync"
	"time"
)

// Bad tokens of one address: a burst, then one a second.
const (
	failureBurst  = 20
	failureRefill = time.Second
	maxAddresses  = 4096 // remembered; beyond it, the address closest to a full burst is evicted
)

// authFailureLimiter limits bad tokens by address. Requests with a valid token do not use it.
type authFailureLimiter struct {
	mu   sync.Mutex
	seen map[netip.Prefix]time.Time // time at which the address has its full burst again
}

func newAuthFailureLimiter() *authFailureLimiter {
	return &authFailureLimiter{seen: make(map[netip.Prefix]time.Time)}
}

// allow counts one bad token and reports whether it may be answered as unauthenticated.
func (f *authFailureLimiter) allow(remote string, now time.Time) bool {
	key := addressGroup(remote)
	f.mu.Lock()
	defer f.mu.Unlock()
	full, known := f.seen[key]
	if !known || full.Before(now) {
		full = now
	}
	full = full.Add(failureRefill)
	if full.Sub(now) > failureBurst*failureRefill {
		return false
	}
	if !known && len(f.seen) >= maxAddresses {
		f.evict(now)
	}
	f.seen[key] = full
	return true
}

// evict removes all addresses with a full burst, or else the address closest to one.
func (f *authFailureLimiter) evict(now time.Time) {
	var best netip.Prefix
	var at time.Time
	for k, full := range f.seen {
		if !full.After(now) {
			delete(f.seen, k)
			continue
		}
		if at.IsZero() || full.Before(at) {
			best, at = k, full
		}
	}
	if len(f.seen) >= maxAddresses {
		delete(f.seen, best)
	}
}

// addressGroup returns an address, or for IPv6 the network that one client controls. Unreadable addresses share one
// group.
func addressGroup(remote string) netip.Prefix {
	ap, err := netip.ParseAddrPort(remote)
	if err != nil {
		return netip.Prefix{}
	}
	addr := ap.Addr().Unmap().WithZone("")
	bits := 32
	if addr.Is6() {
		bits = 64
	}
	p, err := addr.Prefix(bits)
	if err != nil {
		return netip.Prefix{}
	}
	return p
}
