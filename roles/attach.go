package roles

import (
	"context"
	"slices"
	"time"

	"northstar/cluster"
	"northstar/state"
)

// A new leader learns of attached connections from the nodes that serve them, at
// once. Until it has, the end of one that it has not heard of may be that of a
// client which is attached elsewhere by now.
const (
	attachReportWindow = time.Second
	unknownStreamGrace = 500 * time.Millisecond
)

// stream is a connection that holds a session.
type stream struct {
	id            string
	lastRenewedAt time.Duration // of the reign's clock: when it was last kept
}

// Keep renews sessions that are attached: what Renew says holds for it too. Without
// an error, this reign knows of the connections. A new leader is told of them while
// it still takes the sessions in: it has to be told again then, as it ends those
// whose connections it does not know.
func (k *SessionManager) RenewAttached(ctx context.Context, list []cluster.Attachment) (state.Renewed, error) {
	return k.renewAfterBarrier(ctx, list)
}

// attach notes that a connection stands. Those of nodes that have died without a
// word are forgotten then.
func (e *sessionTimer) attach(id string, at time.Duration) {
	e.streams = slices.DeleteFunc(e.streams, func(s stream) bool { return s.id == id || !s.isLive(e, at) })
	e.streams = append(e.streams, stream{id, at})
}

// isLive says whether the connection was kept lately enough to still stand.
func (s stream) isLive(e *sessionTimer, now time.Duration) bool {
	return now-s.lastRenewedAt <= 2*cluster.KeepEvery(e.ttl)+pauseSlack
}

// Drop ends the sessions of connections that have ended, unless they are attached
// by another: at once, or after their grace. It returns when they have, or are
// known to live on. With an error, CodeNoLeader as a rule, it is to be repeated.
func (k *SessionManager) Detach(ctx context.Context, list []cluster.Attachment) error {
	ends, unsure, err := k.detachAll(list)
	if err != nil {
		return err
	}
	for _, end := range ends {
		if err := end.wait(ctx); err != nil {
			return noLeader("the end of a session whose connection broke is on its way: %w", err)
		}
		if !end.ended {
			return noLeader("the end of a session whose connection broke could not be proposed")
		}
	}
	if unsure { // and the next leader would know nothing of it
		return noLeader("a session whose connection broke ends soon, unless another one holds it that this new leader has not heard of yet")
	}
	return nil
}

func (k *SessionManager) detachAll(list []cluster.Attachment) (ends []*pendingExpiry, unsure bool, err error) {
	view := k.deps.Consensus.View()
	raw := k.deps.Clock()
	k.mu.Lock()
	defer k.mu.Unlock()
	r := k.leaderState
	if r == nil {
		return nil, false, noLeader("this node does not lead")
	}
	now := r.clock.read(raw)
	for _, a := range list {
		e := r.sessions[a.Session]
		if e == nil {
			s, lives := view.Session(a.Session)
			if !lives {
				continue
			}
			e = r.addSession(s, now)
		}
		if e.expiry == nil {
			unsure = r.detach(e, a, now) || unsure
		}
		if e.expiry != nil {
			ends = append(ends, e.expiry)
		}
	}
	notify(r.wakeExpiry)
	return ends, unsure, nil
}

// detach takes one connection from a session. It is unsure when another one may hold
// the session, of which this leader has not heard yet.
func (r *leaderState) detach(e *sessionTimer, a cluster.Attachment, now time.Duration) (unsure bool) {
	known, others := false, false
	e.streams = slices.DeleteFunc(e.streams, func(s stream) bool {
		known = known || s.id == a.Stream
		others = others || s.id != a.Stream && s.isLive(e, now)
		return s.id == a.Stream
	})
	grace := a.Grace
	if !known && now < attachReportWindow {
		unsure = !others && grace < unknownStreamGrace
		grace = max(grace, unknownStreamGrace)
	}
	switch {
	case others:
	case grace > 0:
		if at := now + grace; at < e.deadline {
			e.deadline, e.cause = at, state.CauseDisconnected
			r.due.move(e, at)
			notify(r.wakeTimer)
		}
	default:
		e.cause = state.CauseDisconnected
		r.expireNow(e)
	}
	return unsure
}
