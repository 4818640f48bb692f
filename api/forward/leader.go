package forward

import (
	"context"
	"sync/atomic"

	"northstar/cluster"
)

// Leader is what this node knows of the leader until that changes.
type Leader struct {
	ID      cluster.NodeID // "" when this node knows none
	Term    uint64
	Changed context.Context // ends when the leader or the term changes
	end     context.CancelFunc
}

func newLeader(id cluster.NodeID, term uint64) *Leader {
	l := &Leader{ID: id, Term: term}
	l.Changed, l.end = context.WithCancel(context.Background())
	return l
}

// LeaderSource is what a LeaderTracker follows.
type LeaderSource interface {
	Status() cluster.NodeStatus
	// LeaderChanged is closed at the next change of the leader or the term.
	LeaderChanged() <-chan struct{}
}

// LeaderTracker follows the leader, so that a request need not ask consensus.
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

// Current returns the leader as of now. It may be called by any goroutine.
func (t *LeaderTracker) Current() *Leader { return t.current.Load() }

// Run follows the leader until ctx ends; from then on there is none.
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
