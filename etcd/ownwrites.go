package etcd

import (
	"context"
	"sync/atomic"
	"time"

	"northstar/state"
)

// ownWrites are the writes that this server has acknowledged. A follower answers a write that the leader has applied,
// up to 100 ms before it has applied the write itself. A member of etcd answers what it has applied, so its
// serializable reads show all that it has acknowledged. Methods may be called by any goroutine.
type ownWrites struct {
	newest   atomic.Uint64             // revision of the newest one
	failedAt atomic.Pointer[time.Time] // when asking the leader has failed last
}

// note notes the revision of a write that is acknowledged.
func (o *ownWrites) note(revision uint64) {
	for old := o.newest.Load(); revision > old && !o.newest.CompareAndSwap(old, revision); {
		old = o.newest.Load()
	}
}

// askAgainAfter is how long a serializable read does not ask the leader after the leader has not answered one.
const askAgainAfter = time.Second

// localView returns this node's view, with every write that the server has acknowledged before the call. If it has not
// applied one yet, it asks the leader, for timeout-max and half of the client's time at most. Without an answer it
// returns what it has: a serializable read needs no leader.
func (s *Server) localView(ctx context.Context) *state.View {
	newest := s.own.newest.Load() // before the view
	v := s.deps.Node.View()
	if v.Revision() >= newest {
		return v
	}
	if last := s.own.failedAt.Load(); last != nil && time.Since(*last) < askAgainAfter {
		return v
	}
	limit := s.deps.TimeoutMax
	if deadline, ok := ctx.Deadline(); ok {
		limit = min(limit, time.Until(deadline)/2)
	}
	asking, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err := callOf(ctx).ReadIndex(asking)
	v = s.deps.Node.View()
	switch {
	case err == nil: // if the revision is not there now, it is of a state that was replaced
		if v.Revision() < newest {
			s.own.newest.CompareAndSwap(newest, v.Revision())
		}
	case ctx.Err() == nil && limit == s.deps.TimeoutMax: // one client with little time does not count for the others
		now := time.Now()
		s.own.failedAt.Store(&now)
	}
	return v
}
