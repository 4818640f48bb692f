package api

import (
	"context"
	"errors"
	"net/http"
	"sync/atomic"
	"time"

	"northstar/cluster"
)

// leaderView is what this node knows of the leader until that changes.
type leaderView struct {
	id      cluster.NodeID // "" when it knows none
	term    uint64
	changed context.Context // ends when this view is no longer true
	end     context.CancelFunc
}

func newLeaderView(id cluster.NodeID, term uint64) *leaderView {
	v := &leaderView{id: id, term: term}
	v.changed, v.end = context.WithCancel(context.Background())
	return v
}

// leaderWatch follows the leader, so that a request need not ask consensus.
type leaderWatch struct {
	cluster Cluster
	current atomic.Pointer[leaderView]
}

func newLeaderWatch(c Cluster) *leaderWatch {
	w := &leaderWatch{cluster: c}
	w.current.Store(newLeaderView("", 0))
	return w
}

// known is the leader as of now.
func (w *leaderWatch) known() *leaderView { return w.current.Load() }

// run keeps the view current until ctx ends; from then on there is no leader.
func (w *leaderWatch) run(ctx context.Context) {
	replace := func(id cluster.NodeID, term uint64) {
		w.current.Swap(newLeaderView(id, term)).end()
	}
	defer replace("", 0)
	for ctx.Err() == nil {
		wake := w.cluster.LeaderChanged() // before Status, so that no change is missed
		st := w.cluster.Status()
		if v := w.known(); v.id != st.LeaderID || v.term != st.Term {
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
	if id == s.deps.Facts.ID {
		return s.deps.Facts.HTTPAddress
	}
	if m, ok := s.cluster.View().Member(id); ok && m.HTTPAddress != "" {
		return m.HTTPAddress
	}
	if s.deps.AddressOf != nil {
		return s.deps.AddressOf(id)
	}
	return ""
}

// leaderWork is a request that only the leader can serve.
type leaderWork struct {
	write  bool
	resend bool                            // may be sent twice: a read, or a write with an idempotency key
	body   []byte                          // of the request, for the leader
	stream *bodyStream                     // instead of body, when that is too large to keep
	late   time.Duration                   // how much longer than others the old leader may take to answer, once there is another
	local  func(ctx context.Context) error // serves it here; CodeNoLeader when this node does not lead

	// settles is a refusal that is the truth about earlier tries too; 0: none beside
	// those of the state.
	settles cluster.Code
	// maybeDone says that an earlier try may have taken effect. A later one that is
	// turned away proves nothing then: the call is tried on, and ends as unknown.
	maybeDone bool
}

// errAnswered says that the answer was written already.
var errAnswered = errors.New("answered")

// atLeader serves work here while this node leads, else at the leader, one hop
// away. While there is none, or it cannot be reached, the request is held, so
// that a failover is a pause and not an error. A nil error means that local
// succeeded, errAnswered that the leader's answer was passed on.
func (c *call) atLeader(ctx context.Context, work leaderWork) error {
	redirect, err := c.queryBool("redirect")
	if err != nil {
		return err
	}
	h := holding{s: c.s, write: work.write}
	defer h.end()
	for {
		if err := c.s.mayServe(); err != nil {
			return notDone(err, work.maybeDone)
		}
		h.v = c.s.leader.known() // before local, so that no change is missed
		err := c.s.tryHere(ctx, work)
		switch {
		case work.resend && work.write && cluster.IsCode(err, cluster.CodeOutcomeUnknown):
			work.maybeDone = true
		case cluster.IsCode(err, cluster.CodeNoLeader), work.maybeDone && unavailable(err):
		default:
			return notDone(err, work.maybeDone)
		}
		if c.hop || work.stream.begun() { // what was read cannot be sent again
			return notDone(err, work.maybeDone)
		}
		if addr := c.s.otherLeader(h.v); addr != "" {
			if redirect {
				return c.redirectTo(addr)
			}
			var out hopOutcome
			out, err = c.forwardTo(ctx, h.v, addr, work)
			switch {
			case out == hopAnswered:
				return errAnswered
			case out == hopUnknown && work.write:
				work.maybeDone = true
			}
			if work.maybeDone && !work.resend || work.stream.begun() {
				return err
			}
		}
		if held := h.wait(ctx, err); held != nil {
			if work.maybeDone {
				return notDone(err, true)
			}
			return held
		}
	}
}

// otherLeader is where a leader is asked that is another node, "" when there is none
// that is known to live.
func (s *Server) otherLeader(v *leaderView) (addr string) {
	if v.id == "" || v.id == s.deps.Facts.ID || s.deps.LeaderDead != nil && s.deps.LeaderDead(v.id, v.term) {
		return ""
	}
	return s.httpAddress(v.id)
}

// notDone makes of a try's refusal what is known of the request: where an earlier
// try may have taken effect, that this one did not says nothing, unless the
// state itself refused.
func notDone(err error, maybeDone bool) error {
	var e *cluster.Error
	if err == nil || !maybeDone || errors.As(err, &e) && (e.Code == cluster.CodeOutcomeUnknown || e.DecidedByState()) {
		return err
	}
	return cluster.Errorf(cluster.CodeOutcomeUnknown, "it was sent to a leader that did not answer, and since: %w", err)
}

// unavailable says that a node turned a request away for its own state, whatever
// the request was.
func unavailable(err error) bool {
	var e *cluster.Error
	return errors.As(err, &e) && e.HTTPStatus() == http.StatusServiceUnavailable
}

// tryHere runs local unless this node is about to leave.
func (s *Server) tryHere(ctx context.Context, work leaderWork) error {
	if work.write && s.draining.Load() {
		return noLeader("node %s is draining and leads no further write", s.deps.Facts.ID)
	}
	return work.local(ctx)
}

// redirectTo answers 307 to the same request at another node.
func (c *call) redirectTo(addr string) error {
	u := *c.r.URL
	u.Scheme, u.Host = c.s.forward.scheme, addr
	h := c.Header()
	h["Location"] = []string{u.String()}
	h["Cache-Control"] = noStore
	c.WriteHeader(http.StatusTemporaryRedirect)
	return errAnswered
}

// holding is one request's wait for a leader.
type holding struct {
	s       *Server
	v       *leaderView // as it was before the last try
	write   bool
	until   time.Time // zero: it has not waited yet
	backoff time.Duration
}

// HeldWrites is how many writes have waited for a leader and are not answered yet.
func (s *Server) HeldWrites() int { return int(s.writes.Load()) }

// end must be called when the request is not held any more.
func (h *holding) end() {
	if h.write && !h.until.IsZero() {
		h.s.writes.Add(-1)
	}
}

// Waits between tries while the leader is known but does not serve (yet).
const (
	firstBackoff = 2 * time.Millisecond
	maxBackoff   = 50 * time.Millisecond
)

// wait returns nil when another try is worth it, and else the error to answer
// with: the hold or the request's time is over, or too many are held. last is how
// the last try ended.
func (h *holding) wait(ctx context.Context, last error) error {
	now := time.Now()
	if h.until.IsZero() {
		h.until = now.Add(2 * h.s.deps.TimeoutMax)
		if h.write {
			h.s.writes.Add(1)
		}
	}
	left := h.until.Sub(now)
	if left <= 0 {
		return h.giveUp(last, "it was held for %v", 2*h.s.deps.TimeoutMax)
	}
	if h.s.held.Add(1) > int64(h.s.limits.Held) {
		h.s.held.Add(-1)
		return busy("%d requests wait for a leader already", h.s.limits.Held)
	}
	defer h.s.held.Add(-1)
	if h.v.id != "" {
		h.backoff = min(max(2*h.backoff, firstBackoff), maxBackoff)
		left = min(left, h.backoff)
	}
	timer := time.NewTimer(left)
	defer timer.Stop()
	select {
	case <-h.v.changed.Done():
	case <-timer.C:
	case <-ctx.Done():
		return h.giveUp(last, "the request's time is over")
	}
	return nil
}

// giveUp names the leader that does not serve, and what it said last: its reason may
// be one that waiting does not mend.
func (h *holding) giveUp(last error, format string, args ...any) error {
	v := h.s.leader.known()
	if v.id == "" {
		return noLeader("node %s knows no leader; "+format, append([]any{h.s.deps.Facts.ID}, args...)...)
	}
	why := ""
	if e := (*cluster.Error)(nil); errors.As(last, &e) {
		why = ": " + e.Detail
	}
	return noLeader("leader %s of term %d does not serve; "+format+"%s", append(append([]any{v.id, v.term}, args...), why)...)
}
