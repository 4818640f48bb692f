package postgres

import (
	"context"
	"crypto/rand"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"northstar/client"
)

// heartbeatRow is the part of the row that shows whether the holder is alive.
type heartbeatRow struct {
	epoch, heartbeatSeq int64
	session             string
	ttl                 time.Duration
}

// heartbeatSeen is a row and when this connection first read it. Readings of other connections do not count: the
// server may have lost heartbeats since.
type heartbeatSeen struct {
	heartbeatRow
	at time.Time
}

// observe records a row that was read before now.
func (s *heartbeatSeen) observe(r heartbeatRow, now time.Time) {
	if s.at.IsZero() || r != s.heartbeatRow {
		s.heartbeatRow, s.at = r, now
	}
}

// leaseEnd returns when the holder's deadline has passed, for a candidate that got the lock at locked. The last
// heartbeat was sent before this connection first read it, and none can follow. delay is the candidate's takeover
// delay after a lost holder.
func (s *heartbeatSeen) leaseEnd(locked time.Time, delay time.Duration) time.Time {
	if s.session == "" {
		return locked
	}
	at := s.at.Add(s.ttl)
	if d := locked.Add(delay); d.After(at) {
		return d
	}
	return at
}

// campaign campaigns with one connection until it is elected, ctx ends, or the connection fails.
func (e *Elector) campaign(ctx context.Context) (*client.Leadership, error) {
	conn, err := e.connect(ctx)
	if err != nil {
		return nil, err
	}
	l, err := e.waitForLock(ctx, conn)
	e.mu.Lock()
	if e.electing = ""; err == nil {
		e.lease = l
	}
	e.mu.Unlock()
	if err != nil {
		closeConn(conn)
		return nil, err
	}
	l.tenure, err = l.deadline.Begin(l.holder, l.resign) // before the lease can lapse
	go l.run()
	if err != nil {
		l.end(errConnClosed)
	}
	return l.tenure, err
}

// waitForLock waits for the lock and starts the tenure.
func (e *Elector) waitForLock(ctx context.Context, conn *pgx.Conn) (*lease, error) {
	if err := e.prepare(ctx, conn); err != nil {
		return nil, err
	}
	// To campaign is to say that the work of the earlier tenures has stopped. To observe is not.
	if err := e.clearStale(ctx, conn); err != nil {
		return nil, err
	}
	var seen heartbeatSeen
	for {
		locked, err := e.tryLock(ctx, conn, &seen)
		if err != nil {
			return nil, err
		}
		if locked {
			return e.waitOutLease(ctx, conn, &seen)
		}
		if err := e.waitBackoff(ctx, conn, e.backoff()); err != nil {
			return nil, err
		}
	}
}

// prepare creates the table and the row if they are missing, and listens.
func (e *Elector) prepare(ctx context.Context, conn *pgx.Conn) error {
	ctx, cancel := e.limit(ctx)
	defer cancel()
	if err := e.makeTable(ctx, conn); err != nil {
		return fmt.Errorf("make table %s: %w", e.cfg.Table, err)
	}
	if _, err := conn.Exec(ctx, e.sql.row, e.cfg.Role); err != nil {
		return err
	}
	_, err := conn.Exec(ctx, e.sql.listen)
	return err
}

func (e *Elector) makeTable(ctx context.Context, conn *pgx.Conn) error {
	var there bool
	if err := conn.QueryRow(ctx, e.sql.exists, e.cfg.Table).Scan(&there); err != nil || there {
		return err
	}
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		// Concurrent CREATE TABLE statements can fail even with IF NOT EXISTS.
		if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock($1)`, LockKey(e.cfg.Table, "")); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, e.sql.schema)
		return err
	})
}

// tryLock tries to get the lock, and reads the heartbeat row.
func (e *Elector) tryLock(ctx context.Context, conn *pgx.Conn, seen *heartbeatSeen) (locked bool, err error) {
	ctx, cancel := e.limit(ctx)
	defer cancel()
	var r heartbeatRow
	var ttl int64
	if err := conn.QueryRow(ctx, e.sql.tryLock, e.cfg.Role, e.cfg.LockKey).Scan(&locked, &r.epoch, &r.heartbeatSeq,
		&r.session, &ttl); err != nil {
		return false, err
	}
	r.ttl = time.Duration(ttl) * time.Millisecond
	seen.observe(r, time.Now())
	return locked, nil
}

// waitBackoff waits for d, or until the role is released.
func (e *Elector) waitBackoff(ctx context.Context, conn *pgx.Conn, d time.Duration) error {
	_, err := e.receiveNotifications(ctx, conn, d, func(c change) bool { return c.Session == "" })
	return err
}

// waitOutLease waits, with the lock held, until the previous holder has stopped, and starts a tenure.
func (e *Elector) waitOutLease(ctx context.Context, conn *pgx.Conn, seen *heartbeatSeen) (*lease, error) {
	locked := time.Now()
	for {
		// Read again: the row that was read with the lock may be older than the lock.
		r, _, err := e.read(ctx, conn)
		if err != nil {
			return nil, err
		}
		seen.observe(r, time.Now())
		wait := time.Until(seen.leaseEnd(locked, e.cfg.TakeoverDelay))
		if wait <= 0 {
			return e.writeTenure(ctx, conn)
		}
		if err := e.waitBackoff(ctx, conn, min(wait, e.backoff())); err != nil {
			return nil, err
		}
	}
}

// writeTenure writes the new tenure into the row.
func (e *Elector) writeTenure(ctx context.Context, conn *pgx.Conn) (*lease, error) {
	ctx, cancel := e.limit(ctx)
	defer cancel()
	l := &lease{
		e: e, conn: conn, session: rand.Text(), deadline: client.NewDeadline(e.cfg.Clock),
		heartbeatRequests: make(chan chan error), ended: make(chan struct{}),
	}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	e.mu.Lock()
	e.electing = l.session
	e.mu.Unlock()
	e.addStale(l.session) // whether or not the statement succeeds
	sent := l.deadline.Now()
	var epoch int64
	var acquired time.Time
	var notified, timeout string
	if err := conn.QueryRow(ctx, e.sql.elect, e.cfg.Role, l.session, e.cfg.Name, e.cfg.Value,
		e.cfg.TTL.Milliseconds()).Scan(&epoch, &acquired, &notified, &timeout); err != nil {
		return nil, err
	}
	l.deadline.Extend(sent, e.lifetime())
	l.holder = client.Holder{
		Role: e.cfg.Role, Name: e.cfg.Name, Session: l.session, Token: uint64(epoch), Value: e.cfg.Value,
		AcquiredAt: acquired,
	}
	return l, nil
}

// lifetime returns how long the holder relies on its lease: clocks may drift by a tenth.
func (e *Elector) lifetime() time.Duration { return e.cfg.TTL - e.cfg.TTL/10 }

// read reads the row.
func (e *Elector) read(ctx context.Context, conn *pgx.Conn) (heartbeatRow, change, error) {
	ctx, cancel := e.limit(ctx)
	defer cancel()
	var r heartbeatRow
	var ttl int64
	c := change{Role: e.cfg.Role}
	err := conn.QueryRow(ctx, e.sql.read, e.cfg.Role).Scan(&r.epoch, &r.heartbeatSeq, &r.session, &c.Holder, &c.Value,
		&c.Cause, &ttl, &c.AcquiredAt)
	r.ttl, c.Epoch, c.Session = time.Duration(ttl)*time.Millisecond, r.epoch, r.session
	return r, c, err
}
