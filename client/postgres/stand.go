package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"northstar/client"
)

// record is the part of the row that says whether its holder lives.
type record struct {
	epoch, beat int64
	session     string
	ttl         time.Duration
}

// sighting is a record and when it was first seen by this connection. What another
// connection has seen does not count: the server may have lost heartbeats since.
type sighting struct {
	record
	at time.Time
}

// see notes a record that was read before now.
func (s *sighting) see(r record, now time.Time) {
	if s.at.IsZero() || r != s.record {
		s.record, s.at = r, now
	}
}

// free is when the holder's deadline must have passed, for a candidate that has had
// the lock since then. The last heartbeat was sent before it was first seen, and
// none can follow. After an involuntary loss a candidate may want to wait besides.
func (s *sighting) free(locked time.Time, delay time.Duration) time.Time {
	if s.session == "" {
		return locked
	}
	at := s.at.Add(s.ttl)
	if d := locked.Add(delay); d.After(at) {
		return d
	}
	return at
}

// stand campaigns by one connection until it is elected. The error is that of the
// connection, or that ctx ended.
func (e *Elector) stand(ctx context.Context) (*client.Leadership, error) {
	conn, err := e.connect(ctx)
	if err != nil {
		return nil, err
	}
	l, err := e.follow(ctx, conn)
	if err != nil {
		hangUp(conn)
		return nil, err
	}
	e.mu.Lock()
	e.lease = l
	e.mu.Unlock()
	t, err := l.deadline.Begin(l.holder, l.resign) // before the lease can be lost
	go l.run()
	if err != nil {
		l.end(errLost)
	}
	return t, err
}

// follow waits for the role, and takes it.
func (e *Elector) follow(ctx context.Context, conn *pgx.Conn) (*lease, error) {
	if err := e.prepare(ctx, conn); err != nil {
		return nil, err
	}
	var seen sighting
	for {
		locked, err := e.try(ctx, conn, &seen)
		if err != nil {
			return nil, err
		}
		if locked {
			return e.inherit(ctx, conn, &seen)
		}
		if err := e.await(ctx, conn, e.backoff()); err != nil {
			return nil, err
		}
	}
}

// prepare makes the table and the row where there is none, gives back what this
// candidate has lost, and listens.
func (e *Elector) prepare(ctx context.Context, conn *pgx.Conn) error {
	if err := e.makeTable(ctx, conn); err != nil {
		return fmt.Errorf("make table %s: %w", e.cfg.Table, err)
	}
	if _, err := conn.Exec(ctx, e.sql.row, e.cfg.Role); err != nil {
		return err
	}
	if err := e.clear(ctx, conn); err != nil {
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
		// Two that make it at once would fail, IF NOT EXISTS or not.
		if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock($1)`, LockKey(e.cfg.Table, "")); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, e.sql.schema)
		return err
	})
}

// try tries to get the lock, and looks whether the holder lives.
func (e *Elector) try(ctx context.Context, conn *pgx.Conn, seen *sighting) (locked bool, err error) {
	var r record
	var ttl int64
	if err := conn.QueryRow(ctx, e.sql.tryLock, e.cfg.Role, e.cfg.LockKey).Scan(&locked, &r.epoch, &r.beat, &r.session, &ttl); err != nil {
		return false, err
	}
	r.ttl = time.Duration(ttl) * time.Millisecond
	seen.see(r, time.Now())
	return locked, nil
}

// await waits for as long as a follower waits, or until the role is given back.
func (e *Elector) await(ctx context.Context, conn *pgx.Conn, d time.Duration) error {
	within, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	for {
		n, err := conn.WaitForNotification(within)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case within.Err() != nil:
			return nil
		case err != nil:
			return err
		}
		if c, err := decode(n.Payload); err == nil && c.Role == e.cfg.Role && c.Session == "" {
			return nil
		}
	}
}

// inherit has the lock, waits until the last holder acts no more, and begins a
// tenure.
func (e *Elector) inherit(ctx context.Context, conn *pgx.Conn, seen *sighting) (*lease, error) {
	locked := time.Now()
	for {
		// Once more: what was read together with the lock may be older than that.
		r, _, err := e.read(ctx, conn)
		if err != nil {
			return nil, err
		}
		seen.see(r, time.Now())
		wait := time.Until(seen.free(locked, e.cfg.TakeoverDelay))
		if wait <= 0 {
			return e.take(ctx, conn)
		}
		if err := e.await(ctx, conn, min(wait, e.backoff())); err != nil {
			return nil, err
		}
	}
}

// take writes the new tenure into the row.
func (e *Elector) take(ctx context.Context, conn *pgx.Conn) (*lease, error) {
	l := newLease(e, conn)
	e.suspect(l.session) // whatever becomes of it
	sent := l.deadline.Now()
	var epoch int64
	var acquired time.Time
	var told string
	err := conn.QueryRow(ctx, e.sql.elect, e.cfg.Role, l.session, e.cfg.Name, e.cfg.Value, e.cfg.TTL.Milliseconds()).Scan(&epoch, &acquired, &told)
	if err != nil {
		return nil, err
	}
	l.deadline.Extend(sent, e.lifetime())
	l.holder = client.Holder{Role: e.cfg.Role, Name: e.cfg.Name, Session: l.session, Token: uint64(epoch), Value: e.cfg.Value, AcquiredAt: acquired}
	return l, nil
}

// lifetime is what the holder counts on: clocks drift by up to a tenth.
func (e *Elector) lifetime() time.Duration { return e.cfg.TTL - e.cfg.TTL/10 }

// read reads the row.
func (e *Elector) read(ctx context.Context, conn *pgx.Conn) (record, change, error) {
	var r record
	var ttl int64
	c := change{Role: e.cfg.Role}
	err := conn.QueryRow(ctx, e.sql.read, e.cfg.Role).Scan(&r.epoch, &r.beat, &r.session, &c.Holder, &c.Value, &c.Cause, &ttl, &c.AcquiredAt)
	r.ttl, c.Epoch, c.Session = time.Duration(ttl)*time.Millisecond, r.epoch, r.session
	return r, c, err
}
