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

// change is a notification, or the row.
type change struct {
	Role       string    `json:"role"`
	Epoch      int64     `json:"epoch"`
	Session    string    `json:"session"` // "": nobody holds the role
	Holder     string    `json:"holder"`
	Value      string    `json:"value"`
	Cause      string    `json:"cause"`
	AcquiredAt time.Time `json:"acquired_at"`
}

func decode(payload string) (change, error) {
	var c change
	err := json.Unmarshal([]byte(payload), &c)
	return c, err
}

// watcher knows what an observer was told last.
type watcher struct {
	delivered bool
	epoch     int64 // of the latest tenure that was told
	hasHolder bool
	since     heartbeatSeen
}

// next gives what a change means for who knows what was told before.
func (w *watcher) next(c change) (client.Holder, bool) {
	held := c.Session != ""
	if w.delivered && (c.Epoch < w.epoch || c.Epoch == w.epoch && (held || !w.hasHolder)) {
		return client.Holder{}, false
	}
	return w.deliver(c, held)
}

func (w *watcher) deliver(c change, held bool) (client.Holder, bool) {
	w.delivered, w.epoch, w.hasHolder = true, c.Epoch, held
	if !held {
		return client.Holder{Role: c.Role, Cause: c.Cause}, true
	}
	return client.Holder{Role: c.Role, Name: c.Holder, Session: c.Session, Token: uint64(c.Epoch), Value: c.Value, AcquiredAt: c.AcquiredAt}, true
}

// check is next for the row, which besides tells whether its holder lives: one of
// which nothing was heard for its TTL does not, until something is.
func (w *watcher) check(r heartbeatRow, c change, now time.Time) (client.Holder, bool) {
	w.since.observe(r, now)
	dead := r.session != "" && now.Sub(w.since.at) >= r.ttl
	switch {
	case dead && w.delivered && w.epoch == c.Epoch && w.hasHolder:
		c.Cause = causeExpired
		return w.deliver(c, false)
	case dead:
		return client.Holder{}, false
	case r.session != "" && w.delivered && w.epoch == c.Epoch && !w.hasHolder && r == w.since.heartbeatRow && w.since.at.Equal(now):
		return w.deliver(c, true) // it lives after all
	}
	return w.next(c)
}

// Observe is of client.Elector. Changes while its connection is broken are seen as
// one. A holder that is lost without having given the role back is seen as such
// after its TTL.
func (e *Elector) Observe(ctx context.Context) iter.Seq2[client.Holder, error] {
	return func(yield func(client.Holder, error) bool) {
		var w watcher
		for n := 0; ; n++ {
			stopped, err := e.observe(ctx, &w, func(h client.Holder) bool { n = 0; return yield(h, nil) })
			if stopped {
				return
			}
			if ctx.Err() != nil || isPermanent(err) || pause(ctx, e.reconnectDelay(n)) != nil {
				yield(client.Holder{}, fmt.Errorf("observe role %s: %w", e.cfg.Role, errors.Join(err, context.Cause(ctx))))
				return
			}
		}
	}
}

// observe goes on for as long as one connection stands; stopped: each said false.
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
		if h, ok := w.check(r, c, time.Now()); ok && !each(h) {
			return true, nil
		}
		if stopped, err := e.receiveNotifications(ctx, conn, w, each); stopped || err != nil {
			return stopped, err
		}
	}
}

// receiveNotifications takes notifications for a while.
func (e *Elector) receiveNotifications(ctx context.Context, conn *pgx.Conn, w *watcher, each func(client.Holder) bool) (stopped bool, err error) {
	within, cancel := context.WithTimeout(ctx, e.backoff())
	defer cancel()
	for {
		n, err := conn.WaitForNotification(within)
		switch {
		case ctx.Err() != nil:
			return false, context.Cause(ctx)
		case within.Err() != nil:
			return false, nil
		case err != nil:
			return false, err
		}
		c, err := decode(n.Payload)
		if err != nil || c.Role != e.cfg.Role {
			continue
		}
		if h, ok := w.next(c); ok && !each(h) {
			return true, nil
		}
	}
}
