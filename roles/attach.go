package roles

import (
	"context"
	"slices"
	"time"

	"northstar/cluster"
	"northstar/state"
)

// Nodes report their attached connections to a new leader immediately. Until then, the client of a closed connection
// that the leader does not know may already be attached elsewhere.
const (
	attachReportWindow = time.Second
	unknownStreamGrace = 500 * time.Millisecond
)

// stream is an attached connection.
type stream struct {
	id            string
	lastRenewedAt time.Duration // on the leaderState's clock: time of the last renewal
}

// maxStreams bounds the connections that are known of one session: each renewal looks at all of them, and a client may
// have thousands. A session with more goes on for as long as one that is known does.
const maxStreams = 64

// attach records a live connection. It forgets connections of nodes that died without a report, and beyond maxStreams
// those that were renewed longest ago.
func (e *sessionTimer) attach(id string, at time.Duration) {
	e.streams = slices.DeleteFunc(e.streams, func(s stream) bool { return s.id == id || !s.isLive(e, at) })
	if n := len(e.streams) - maxStreams + 1; n > 0 {
		e.streams = slices.Delete(e.streams, 0, n)
	}
	e.streams = append(e.streams, stream{id, at})
	if e.cause == state.CauseDisconnected { // the grace of another connection does not count any more
		e.deadline, e.cause = e.renewedUntil, state.CauseExpired
	}
}

// isLive reports whether the connection was renewed recently enough to be live.
func (s stream) isLive(e *sessionTimer, now time.Duration) bool {
	return now-s.lastRenewedAt <= 2*cluster.KeepEvery(e.ttl)+pauseSlack
}

// disconnect notes that the last connection has ended, and the deadline until then.
func (e *sessionTimer) disconnect() {
	if e.cause != state.CauseDisconnected {
		e.renewedUntil, e.cause = e.deadline, state.CauseDisconnected
	}
}

// Detach ends the sessions of closed connections, immediately or after their grace, unless another connection holds
// them. It returns when they have ended or are known to live on, and must be repeated after an error.
func (k *SessionManager) Detach(ctx context.Context, list []cluster.Attachment) error {
	ends, unsure, err := k.detachAll(list)
	if err != nil {
		return err
	}
	for _, end := range ends {
		if err := end.wait(ctx); err != nil {
			return noLeader("the end of a session whose connection closed is not applied yet: %w", err)
		}
		if !end.ended {
			return noLeader("the end of a session whose connection closed could not be proposed")
		}
	}
	if unsure { // and the next leader would not know of the closed connection
		return noLeader(
			"a session whose connection closed ends soon, unless another node reports a connection attached to it")
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

// detach removes a connection from its session. unsure: another one, unknown to this leader, may hold the session.
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
			e.disconnect()
			e.deadline = at
			r.due.move(e, at)
			notify(r.wakeTimer)
		}
	default:
		e.disconnect()
		r.expireNow(e)
	}
	return unsure
}
