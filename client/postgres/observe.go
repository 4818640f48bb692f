package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/jackc/pgx/v5"

	"northstar/client"
)

// change is a notification or the row.
type change struct {
	Role       string    `json:"role"`
	Epoch      int64     `json:"epoch"`
	Session    string    `json:"session"` // "" if the role is vacant
	Holder     string    `json:"holder"`
	Value      string    `json:"value"`
	Cause      string    `json:"cause"`
	AcquiredAt time.Time `json:"acquired_at"`
}

// watcher knows what an observer received last.
type watcher struct {
	delivered bool
	epoch     int64 // of the last delivered tenure
	hasHolder bool
	since     heartbeatSeen
	expired   heartbeatRow // of the holder that was last delivered as expired; zero: it was delivered otherwise
}

// next returns the change as a Holder; false if the observer has received it already.
func (w *watcher) next(c change) (client.Holder, bool) {
	held := c.Session != ""
	if w.delivered && (c.Epoch < w.epoch || c.Epoch == w.epoch && (held || !w.hasHolder)) {
		return client.Holder{}, false
	}
	return w.deliver(c, held)
}

func (w *watcher) deliver(c change, held bool) (client.Holder, bool) {
	w.delivered, w.epoch, w.hasHolder, w.expired = true, c.Epoch, held, heartbeatRow{}
	if !held {
		return client.Holder{Role: c.Role, Cause: c.Cause}, true
	}
	return client.Holder{
		Role: c.Role, Name: c.Holder, Session: c.Session, Token: uint64(c.Epoch), Value: c.Value,
		AcquiredAt: c.AcquiredAt,
	}, true
}

// check is next for the row. The row also shows whether its holder is alive: without a new heartbeat for its TTL,
// the holder counts as lost until the next heartbeat.
func (w *watcher) check(r heartbeatRow, c change, now time.Time) (client.Holder, bool) {
	w.since.observe(r, now)
	dead := r.session != "" && now.Sub(w.since.at) >= r.ttl
	switch {
	case dead && w.delivered && w.epoch == c.Epoch && w.hasHolder:
		c.Cause = causeExpired
		h, ok := w.deliver(c, false)
		w.expired = r
		return h, ok
	case dead:
		return client.Holder{}, false
	case r.session != "" && r.session == w.expired.session && r.heartbeatSeq > w.expired.heartbeatSeq:
		return w.deliver(c, true) // the holder is alive after all
	}
	return w.next(c)
}

// Observe implements client.Elector. Changes during a broken connection appear as one, and so can changes within
// milliseconds. A holder that is lost without a release appears as lost after its TTL.
func (e *Elector) Observe(ctx context.Context) iter.Seq2[client.Holder, error] {
	return func(yield func(client.Holder, error) bool) {
		var w watcher
		for n := 0; ; n++ {
			stopped, err := e.observe(ctx, &w, func(h client.Holder) bool { n = 0; return yield(h, nil) })
			if stopped {
				return
			}
			if ctx.Err() != nil || isPermanent(err) || pause(ctx, e.reconnectDelay(n)) != nil {
				yield(client.Holder{}, fmt.Errorf("observe role %s: %w", e.cfg.Role,
					errors.Join(err, context.Cause(ctx))))
				return
			}
		}
	}
}

// observe observes with one connection until it breaks. stopped reports that each returned false.
func (e *Elector) observe(ctx context.Context, w *watcher, each func(client.Holder) bool) (stopped bool, err error) {
	conn, err := e.connect(ctx)
	if err != nil {
		return false, err
	}
	defer closeConn(conn)
	if err := e.prepare(ctx, conn); err != nil {
		return false, err
	}
	w.since = heartbeatSeen{}
	for {
		r, c, err := e.read(ctx, conn)
		if err != nil {
			return false, err
		}
		notified := false
		next := func(c change) bool {
			notified = true
			h, ok := w.next(c)
			return ok && !each(h)
		}
		// Those that came with the row have the changes that led to it.
		if stopped, err := e.receiveNotifications(ctx, conn, 0, next); stopped || err != nil {
			return stopped, err
		}
		if !notified { // otherwise the row may be older than they are
			if h, ok := w.check(r, c, time.Now()); ok && !each(h) {
				return true, nil
			}
		}
		stopped, err := e.receiveNotifications(ctx, conn, e.backoff(), next)
		if stopped || err != nil {
			return stopped, err
		}
	}
}

// receiveNotifications passes the changes of the role to handle: those that have arrived, and those of the next d.
// stopped reports that handle returned true.
func (e *Elector) receiveNotifications(
	ctx context.Context, conn *pgx.Conn, d time.Duration, handle func(change) bool,
) (stopped bool, err error) {
	limited, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	for {
		n, err := conn.WaitForNotification(limited)
		switch {
		case err == nil:
		case ctx.Err() != nil:
			return false, context.Cause(ctx)
		case limited.Err() != nil:
			return false, nil
		case err != nil:
			return false, err
		}
		var c change
		if json.Unmarshal([]byte(n.Payload), &c) == nil && c.Role == e.cfg.Role && handle(c) {
			return true, nil
		}
	}
}
