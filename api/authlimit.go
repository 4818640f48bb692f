package api

import (
	"net/netip"
	"sync"
	"time"
)

// How many bad tokens an address may send: some at once, then one a second.
const (
	failureBurst  = 20
	failureRefill = time.Second
	maxAddresses  = 4096 // remembered; beyond, the one that is best off is forgotten
)

// authFailureLimiter limits bad tokens by address. A valid token never gets here.
type authFailureLimiter struct {
	mu   sync.Mutex
	seen map[netip.Prefix]time.Time // when the address has its whole burst back
}

func newAuthFailureLimiter() *authFailureLimiter {
	return &authFailureLimiter{seen: make(map[netip.Prefix]time.Time)}
}

// allow counts one bad token and says whether it is to be answered as such.
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

// evict makes room: all addresses that have their burst back, else the one
// that is closest to it.
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

// addressGroup is an address, or for IPv6 the network of which one client has
// all addresses. What cannot be read shares one group.
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
