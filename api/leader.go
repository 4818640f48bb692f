package api

import (
	"context"
	"errors"
	"net/http"
	"sync/atomic"
	"time"

	"northstar/cluster"
)

// leaderSnapshot is what this node knows of the leader until that changes.
type leaderSnapshot struct {
	id      cluster.NodeID // "" when it knows none
	term    uint64
	changed context.Context // ends when this view is no longer true
	cancel  context.CancelFunc
}

func newLeaderSnapshot(id cluster.NodeID, term uint64) *leaderSnapshot {
	v := &leaderSnapshot{id: id, term: term}
	v.changed, v.cancel = context.WithCancel(context.Background())
	return v
}

// leaderTracker follows the leader, so that a request need not ask consensus.
type leaderTracker struct {
	cluster Cluster
	current atomic.Pointer[leaderSnapshot]
}

func newLeaderTracker(c Cluster) *leaderTracker {
	w := &leaderTracker{cluster: c}
	w.current.Store(newLeaderSnapshot("", 0))
	return w
}

// snapshot is the leader as of now.
func (w *leaderTracker) snapshot() *leaderSnapshot { return w.current.Load() }

// stream keeps the view current until ctx ends; from then on there is no leader.
func (w *leaderTracker) run(ctx context.Context) {
	replace := func(id cluster.NodeID, term uint64) {
		w.current.Swap(newLeaderSnapshot(id, term)).cancel()
	}
	defer replace("", 0)
	for ctx.Err() == nil {
		wake := w.cluster.LeaderChanged() // before Status, so that no change is missed
		st := w.cluster.Status()
		if v := w.snapshot(); v.id != st.LeaderID || v.term != st.Term {
			replace(st.LeaderID, st.Term)
		}
		select {
		case <-wake:
		case <-ctx.Done():
		}
	}
}

// httpAddress is where a node's API is, "" when this node does not know.
func (s *Server) httpAddress(id cluster.NodeID) string {
	if id == s.deps.Node.ID {
		return s.deps.Node.HTTPAddress
	}
	if m, ok := s.cluster.View().Member(id); ok && m.HTTPAddress != "" {
		return m.HTTPAddress
	}
	if s.deps.AddressOf != nil {
		return s.deps.AddressOf(id)
	}
	return ""
}

// leaderRequest is a request that only the leader can serve.
type leaderRequest struct {
	write          bool
	idempotent     bool                            // may be sent twice: a read, or a write with an idempotency key
	body           []byte                          // of the request, for the leader
	stream         *bodyStream                     // instead of body, when that is too large to keep
	oldLeaderGrace time.Duration                   // how much longer than others the old leader may take to answer, once there is another
	local          func(ctx context.Context) error // serves it here; CodeNoLeader when this node does not lead

	// finalCode is a refusal that is the truth about earlier tries too; 0: none beside
	// those of the state.
	finalCode cluster.Code
	// mayHaveApplied says that an earlier try may have taken effect. A later one that is
	// turned away proves nothing then: the call is tried on, and ends as unknown.
	mayHaveApplied bool
}

// errResponseWritten says that the answer was written already.
var errResponseWritten = errors.New("answered")

// serveOnLeader serves work here while this node leads, else at the leader, one hop
// away. While there is none, or it cannot be reached, the request is held, so
// that a failover is a pause and not an error. A nil error means that local
// succeeded, errResponseWritten that the leader's answer was passed on.
func (c *request) serveOnLeader(ctx context.Context, work leaderRequest) error {
	redirect, err := c.queryBool("redirect")
	if err != nil {
		return err
	}
	h := leaderWait{s: c.s, write: work.write}
	defer h.release()
	for {
		if err := c.s.mayServe(); err != nil {
			return withUnknownOutcome(err, work.mayHaveApplied)
		}
		h.v = c.s.leader.snapshot() // before local, so that no change is missed
		err := c.s.serveLocally(ctx, work)
		switch {
		case work.idempotent && work.write && cluster.IsCode(err, cluster.CodeOutcomeUnknown):
			work.mayHaveApplied = true
		case cluster.IsCode(err, cluster.CodeNoLeader), work.mayHaveApplied && isNodeUnavailable(err):
		default:
			return withUnknownOutcome(err, work.mayHaveApplied)
		}
		if c.forwarded || work.stream.consumed() { // what was read cannot be sent again
			return withUnknownOutcome(err, work.mayHaveApplied)
		}
		if addr := c.s.remoteLeaderAddr(h.v); addr != "" {
			if redirect {
				return c.redirectTo(addr)
			}
			var out forwardResult
			out, err = c.forwardTo(ctx, h.v, addr, work)
			switch {
			case out == forwardAnswered:
				return errResponseWritten
			case out == forwardUnknown && work.write:
				work.mayHaveApplied = true
			}
			if work.mayHaveApplied && !work.idempotent || work.stream.consumed() {
				return err
			}
		}
		if held := h.wait(ctx, err); held != nil {
			if work.mayHaveApplied {
				return withUnknownOutcome(err, true)
			}
			return held
		}
	}
}

// remoteLeaderAddr is where a leader is asked that is another node, "" when there is none
// that is known to live.
func (s *Server) remoteLeaderAddr(v *leaderSnapshot) (addr string) {
	if v.id == "" || v.id == s.deps.Node.ID || s.deps.LeaderProcessDead != nil && s.deps.LeaderProcessDead(v.id, v.term) {
		return ""
	}
	return s.httpAddress(v.id)
}

// withUnknownOutcome makes of a try's refusal what is known of the request: where an earlier
// try may have taken effect, that this one did not says nothing, unless the
// state itself refused.
func withUnknownOutcome(err error, maybeDone bool) error {
	var e *cluster.Error
	if err == nil || !maybeDone || errors.As(err, &e) && (e.Code == cluster.CodeOutcomeUnknown || e.DecidedByState()) {
		return err
	}
	return cluster.Errorf(cluster.CodeOutcomeUnknown, "it was sent to a leader that did not answer, and since: %w", err)
}

// isNodeUnavailable says that a node turned a request away for its own state, whatever
// the request was.
func isNodeUnavailable(err error) bool {
	var e *cluster.Error
	return errors.As(err, &e) && e.HTTPStatus() == http.StatusServiceUnavailable
}

// serveLocally runs local unless this node is about to leave.
func (s *Server) serveLocally(ctx context.Context, work leaderRequest) error {
	if work.write && s.draining.Load() {
		return noLeader("node %s is draining and leads no further write", s.deps.Node.ID)
	}
	return work.local(ctx)
}

// redirectTo answers 307 to the same request at another node.
func (c *request) redirectTo(addr string) error {
	u := *c.r.URL
	u.Scheme, u.Host = c.s.forward.scheme, addr
	h := c.Header()
	h["Location"] = []string{u.String()}
	h["Cache-Control"] = noStore
	c.WriteHeader(http.StatusTemporaryRedirect)
	return errResponseWritten
}

// leaderWait is one request's wait for a leader.
type leaderWait struct {
	s       *Server
	v       *leaderSnapshot // as it was before the last try
	write   bool
	until   time.Time // zero: it has not waited yet
	backoff time.Duration
}

// QueuedWrites is how many writes have waited for a leader and are not answered yet.
func (s *Server) QueuedWrites() int { return int(s.writes.Load()) }

// release must be called when the request is not held any more.
func (h *leaderWait) release() {
	if h.write && !h.until.IsZero() {
		h.s.writes.Add(-1)
	}
}

// Waits between tries while the leader is known but does not serve (yet).
const (
	minBackoff = 2 * time.Millisecond
	maxBackoff = 50 * time.Millisecond
)

// wait returns nil when another try is worth it, and else the error to answer
// with: the hold or the request's time is over, or too many are held. last is how
// the last try ended.
func (h *leaderWait) wait(ctx context.Context, last error) error {
	now := time.Now()
	if h.until.IsZero() {
		h.until = now.Add(2 * h.s.deps.TimeoutMax)
		if h.write {
			h.s.writes.Add(1)
		}
	}
	left := h.until.Sub(now)
	if left <= 0 {
		return h.timeoutError(last, "it was held for %v", 2*h.s.deps.TimeoutMax)
	}
	if h.s.queuedForLeader.Add(1) > int64(h.s.limits.QueuedForLeader) {
		h.s.queuedForLeader.Add(-1)
		return busy("%d requests wait for a leader already", h.s.limits.QueuedForLeader)
	}
	defer h.s.queuedForLeader.Add(-1)
	if h.v.id != "" {
		h.backoff = min(max(2*h.backoff, minBackoff), maxBackoff)
		left = min(left, h.backoff)
	}
	timer := time.NewTimer(left)
	defer timer.Stop()
	select {
	case <-h.v.changed.Done():
	case <-timer.C:
	case <-ctx.Done():
		return h.timeoutError(last, "the request's time is over")
	}
	return nil
}

// timeoutError names the leader that does not serve, and what it said last: its reason may
// be one that waiting does not mend.
func (h *leaderWait) timeoutError(last error, format string, args ...any) error {
	v := h.s.leader.snapshot()
	if v.id == "" {
		return noLeader("node %s knows no leader; "+format, append([]any{h.s.deps.Node.ID}, args...)...)
	}
	why := ""
	if e := (*cluster.Error)(nil); errors.As(last, &e) {
		why = ": " + e.Detail
	}
	return noLeader("leader %s of term %d does not serve; "+format+"%s", append(append([]any{v.id, v.term}, args...), why)...)
}
