package consensus

import (
	"sync"
	"time"

	"northstar/consensus/raftnode"
)

// freshness is when this node's state was known to be current: it has applied all that a leader had, when that leader
// said so. Raft's own last contact does not tell. A granted vote and a lost leadership set it too.
type freshness struct {
	mu    sync.Mutex
	of    *raftnode.Instance // another instance starts with another state
	known time.Time          // the state was current then; zero: never
	last  uint64             // when this is applied, the state was current at the time at
	at    time.Time          // zero: no leader has said what it has
}

// leaderHas notes that a leader has entries up to last, one of its own term: all that was committed is among them.
func (f *freshness) leaderHas(of *raftnode.Instance, last, applied uint64, now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.of != of {
		f.of, f.known, f.at = of, time.Time{}, time.Time{}
	}
	if !f.at.IsZero() && applied < f.last {
		return // that is tested first: a later message has more to apply
	}
	f.known, f.last, f.at = f.at, last, now
}

// age returns how long ago the state was known to be current, -1 if it never was.
func (f *freshness) age(of *raftnode.Instance, applied uint64, now time.Time) time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	known := f.known
	if applied >= f.last {
		known = f.at
	}
	if f.of != of || known.IsZero() {
		return -1
	}
	return now.Sub(known)
}
