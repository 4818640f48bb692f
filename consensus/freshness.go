package consensus

import (
	"sync"
	"time"

	"northstar/consensus/raftnode"
)

// freshness is when this node's state was known to be current: it has applied all that a leader had, when that leader
// said so. Raft's own last contact does not tell. A granted vote and a lost leadership set it too. So does a message
// that was in a socket while this process was stopped.
type freshness struct {
	now   func() time.Time
	mu    sync.Mutex
	sleep suspendWatch
	woken time.Time          // messages from before do not count: the machine was suspended
	of    *raftnode.Instance // another instance starts with another state
	known time.Time          // the state was current then; zero: never
	last  uint64             // when this is applied, the state was current at the time at
	at    time.Time          // zero: no leader has said what it has
}

// leaderHas notes that a leader had entries up to last, one of its own term, at some time after sent: all that was
// committed then is among them.
func (f *freshness) leaderHas(of *raftnode.Instance, last, applied uint64, sent time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.of != of {
		f.of, f.known, f.at = of, time.Time{}, time.Time{}
	}
	if !f.at.IsZero() && applied < f.last {
		return // that is tested first: a later message has more to apply
	}
	if !sent.After(f.at) || sent.Before(f.woken) {
		return // another connection has a later one
	}
	f.known, f.last, f.at = f.at, last, sent
}

// age returns how long ago the state was known to be current, -1 if it never was.
func (f *freshness) age(of *raftnode.Instance, applied uint64) time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.now() // just before the lease clock: a wait between the two would look like a suspension
	if slept := f.sleep.slept(now); slept > 0 {
		f.woken = now
		for _, t := range []*time.Time{&f.known, &f.at} {
			if !t.IsZero() {
				*t = t.Add(-slept) // it may have been before that, and Go's clock has stopped meanwhile
			}
		}
	}
	known := f.known
	if applied >= f.last {
		known = f.at
	}
	if f.of != of || known.IsZero() {
		return -1
	}
	return now.Sub(known)
}
