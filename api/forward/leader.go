package forward

import (
	"context"
	"sync/atomic"

	"northstar/cluster"
)

// Leader is a snapshot of the leader, valid until Changed ends.
type Leader struct {
	ID      cluster.NodeID // "" if unknown
	Term    uint64
	Changed context.Context // ends when the leader or the term changes
	end     context.CancelFunc
}

func newLeader(id cluster.NodeID, term uint64) *Leader {
	l := &Leader{ID: id, Term: term}
	l.Changed, l.end = context.WithCancel(context.Background())
	return l
}

// LeaderSource reports leader changes to a LeaderTracker.
type LeaderSource interface {
	Status() cluster.NodeStatus
	// LeaderChanged returns a channel that is closed at the next change of the leader or the term.
	LeaderChanged() <-chan struct{}
}

// LeaderTracker caches the leader, so that a request need not ask consensus.
type LeaderTracker struct {
	source  LeaderSource
	current atomic.Pointer[Leader]
}

// NewLeaderTracker returns a tracker that knows no leader until it runs.
func NewLeaderTracker(source LeaderSource) *LeaderTracker {
	t := &LeaderTracker{source: source}
	t.current.Store(newLeader("", 0))
	return t
}

// Current returns the current leader. It may be called by any goroutine.
func (t *LeaderTracker) Current() *Leader { return t.current.Load() }

// Run follows the leader until ctx ends; after that Current returns no leader.
func (t *LeaderTracker) Run(ctx context.Context) {
	replace := func(id cluster.NodeID, term uint64) { t.current.Swap(newLeader(id, term)).end() }
	defer replace("", 0)
	for ctx.Err() == nil {
		changed := t.source.LeaderChanged() // before Status, so that no change is missed
		st := t.source.Status()
		if l := t.Current(); l.ID != st.LeaderID || l.Term != st.Term {
			replace(st.LeaderID, st.Term)
		}
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}
}
