package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"northstar/chaos/pg"
	"northstar/chaos/testenv"
	"northstar/client"
)

// advisory returns a candidate for the test's own lock.
func advisory(t *testing.T, change func(*AdvisoryLockConfig)) *AdvisoryLock {
	t.Helper()
	cfg := AdvisoryLockConfig{
		DSN: server(t).DSN(), Key: LockKey("advisory", t.Name()), TTL: shortTTL, BackoffMin: 5 * time.Millisecond,
		BackoffMax: 50 * time.Millisecond,
	}
	if change != nil {
		change(&cfg)
	}
	a, err := NewAdvisoryLock(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// acquired acquires the lock, and releases it at the end of the test.
func acquired(t *testing.T, a *AdvisoryLock) (*client.Deadline, func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	held, release, err := a.Acquire(ctx)
	for err != nil && ctx.Err() == nil { // the server ends a session that a busy machine stops for the TTL
		held, release, err = a.Acquire(ctx)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = release(context.Background()) })
	return held, release
}

// try tries the lock as any other program does.
func try(t *testing.T, conn *pgx.Conn, key int64) (locked bool) {
	t.Helper()
	if err := conn.QueryRow(t.Context(), `SELECT pg_try_advisory_lock($1)`, key).Scan(&locked); err != nil {
		t.Fatal(err)
	}
	return locked
}

func dialed(t *testing.T) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), server(t).DSN())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeConn(conn) })
	return conn
}

// The lock excludes programs that know only pg_try_advisory_lock, for longer than the TTL, until it is released.
func TestAdvisoryLock_ExcludesOthers(t *testing.T) {
	t.Parallel()
	a, conn := advisory(t, func(c *AdvisoryLockConfig) { c.TTL = 3 * time.Second }), dialed(t)
	held, release := acquired(t, a)
	for began := time.Now(); time.Since(began) < 4*time.Second; <-time.After(100 * time.Millisecond) {
		if try(t, conn, a.cfg.Key) {
			t.Fatal("another program gets the lock")
		}
	}
	if held.ValidFor() == 0 || held.Err() != nil {
		t.Fatalf("it is not held any longer: %v", held.Err())
	}
	if err := release(t.Context()); err != nil {
		t.Error(err)
	}
	if held.ValidFor() > 0 || !try(t, conn, a.cfg.Key) {
		t.Error("it is not released")
	}
	ctx, cancel := context.WithTimeout(t.Context(), shortTTL)
	defer cancel()
	if _, _, err := a.Acquire(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("beside another program: %v", err)
	}
}

// The end of the session ends the hold immediately.
func TestAdvisoryLock_SessionKilled(t *testing.T) {
	t.Parallel()
	a := advisory(t, func(c *AdvisoryLockConfig) { c.TTL = time.Hour })
	held, release := acquired(t, a)
	do(t, killSession, a.cfg.Key)
	select {
	case <-held.Done():
	case <-time.After(testTimeout):
		t.Fatal("it does not notice")
	}
	if err := held.Err(); !errors.Is(err, client.ErrRoleLost) {
		t.Error(err)
	}
	if err := release(t.Context()); err != nil {
		t.Error(err)
	}
}

// If the network to the holder is cut, the server frees the lock after the holder's deadline, however long its pauses
// between attempts may be.
func TestAdvisoryLock_NetworkCut(t *testing.T) {
	t.Parallel()
	p, conn := newProxy(t), dialed(t)
	a := advisory(t, func(c *AdvisoryLockConfig) { c.DSN, c.BackoffMax = p.dsn(), time.Minute })
	held, release := acquired(t, a)
	p.set(true)
	for began := time.Now(); !try(t, conn, a.cfg.Key); <-time.After(time.Millisecond) {
		if time.Since(began) > testTimeout {
			t.Fatal("the lock is never free")
		}
	}
	if held.ValidFor() > 0 {
		t.Errorf("another program has the lock, and the holder %v left", held.ValidFor())
	}
	_ = release(t.Context()) // it does not reach the server
}

// A connection that breaks without the server's word says nothing of the lock: its release reports an error.
func TestAdvisoryLock_ConnectionReset(t *testing.T) {
	t.Parallel()
	p, conn := newProxy(t), dialed(t)
	a := advisory(t, func(c *AdvisoryLockConfig) { c.DSN, c.TTL = p.dsn(), time.Minute })
	held, release := acquired(t, a)
	p.set(true)
	p.reset()
	select {
	case <-held.Done():
	case <-time.After(testTimeout):
		t.Fatal("it does not notice")
	}
	if err := release(t.Context()); err == nil || try(t, conn, a.cfg.Key) {
		t.Errorf("release: %v, and another program may get the lock", err)
	}
}

// Acquire fails when its connection is silently dead. The bridge then gives the role to others.
func TestAdvisoryLock_WaitsOnDeadConnection(t *testing.T) {
	t.Parallel()
	p, conn := newProxy(t), dialed(t)
	a := advisory(t, func(c *AdvisoryLockConfig) { c.DSN, c.TTL = p.dsn(), 2*time.Second })
	if !try(t, conn, a.cfg.Key) {
		t.Fatal("the lock is not free")
	}
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	ended := make(chan error, 1)
	go func() { _, _, err := a.Acquire(ctx); ended <- err }()
	asked(t, fmt.Sprintf("northstar lock %d", a.cfg.Key), "pg_try_advisory_lock")
	p.set(true)
	if err := <-ended; err == nil || ctx.Err() != nil {
		t.Errorf("Acquire: %v", err)
	}
}

// A proof fails if the session does not hold the lock: a pooler may have moved it.
func TestAdvisoryLock_SessionMoved(t *testing.T) {
	t.Parallel()
	a := advisory(t, func(c *AdvisoryLockConfig) { c.TTL = time.Minute }) // a busy machine may stop the test for long
	h, err := a.acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer closeConn(h.conn)
	if err := h.prove(); err != nil {
		t.Error(err)
	}
	if _, err := h.conn.Exec(t.Context(), `SELECT pg_advisory_unlock_all()`); err != nil {
		t.Fatal(err)
	}
	if err := h.prove(); !errors.Is(err, errLockLost) {
		t.Errorf("without the lock: %v", err)
	}
}

// A proof that the server refuses ends only the deadline, and that not before more proofs could be refused. The session
// and its lock are still there: other programs get the lock when the work has stopped, however long that takes.
func TestAdvisoryLock_ProofRefused(t *testing.T) {
	t.Parallel()
	own, err := pg.Start(t.Context())
	if errors.Is(err, pg.ErrNone) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer own.Stop()
	conn, err := pgx.Connect(t.Context(), own.DSN())
	if err != nil {
		t.Fatal(err)
	}
	defer closeConn(conn)
	as := func(sql string) {
		t.Helper()
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	as(`CREATE ROLE plain LOGIN`)
	a := advisory(t, func(c *AdvisoryLockConfig) {
		c.DSN, c.TTL = strings.Replace(own.DSN(), "postgres@", "plain@", 1), testenv.Slowdown()*5*time.Second
	})
	held, release := acquired(t, a)
	until := func(what string, is func(left time.Duration) bool) {
		t.Helper()
		for began := time.Now(); !is(held.ValidFor()); <-time.After(time.Millisecond) {
			if time.Since(began) > testTimeout || held.Err() != nil {
				t.Fatalf("%s: %v left: %v", what, held.ValidFor(), held.Err())
			}
		}
	}
	as(`REVOKE SELECT ON pg_catalog.pg_locks FROM PUBLIC`)
	until("proofs are refused", func(left time.Duration) bool { return left < a.cfg.TTL/2 })
	as(`GRANT SELECT ON pg_catalog.pg_locks TO PUBLIC`)
	until("proofs are answered again", func(left time.Duration) bool { return left > a.cfg.TTL/2 })

	as(`REVOKE SELECT ON pg_catalog.pg_locks FROM PUBLIC`)
	select {
	case <-held.Done():
	case <-time.After(testTimeout):
		t.Fatal("it does not end")
	}
	if err := held.Err(); !errors.Is(err, client.ErrRoleLost) || code(err) != "42501" {
		t.Errorf("cause: %v", err)
	}
	for began := time.Now(); time.Since(began) < a.cfg.TTL*3/2; <-time.After(10 * time.Millisecond) {
		if try(t, conn, a.cfg.Key) {
			t.Fatalf("another program has the lock %v after the deadline, and the work goes on", time.Since(began))
		}
	}
	if err := release(t.Context()); err != nil || !try(t, conn, a.cfg.Key) {
		t.Errorf("it is not released: %v", err)
	}
}

// A standby has advisory locks of its own, which exclude no one.
func TestAdvisoryLock_Standby(t *testing.T) {
	t.Parallel()
	standby, err := pg.Start(t.Context())
	if errors.Is(err, pg.ErrNone) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer standby.Stop()
	if err := errors.Join(standby.Down(), standby.BecomeStandby(), standby.Up(t.Context())); err != nil {
		t.Fatal(err)
	}
	a := advisory(t, func(c *AdvisoryLockConfig) { c.DSN, c.TTL = standby.DSN(), time.Minute })
	if _, _, err := a.Acquire(t.Context()); !errors.Is(err, ErrStandby) {
		t.Error(err)
	}
}

func TestNewAdvisoryLock(t *testing.T) {
	t.Parallel()
	good := AdvisoryLockConfig{DSN: "postgres://127.0.0.1/x", Key: 1}
	if a, err := NewAdvisoryLock(good); err != nil || a.cfg.TTL != defaultTTL || a.cfg.BackoffMax == 0 {
		t.Errorf("%+v, %v", a, err)
	}
	for name, change := range map[string]func(*AdvisoryLockConfig){
		"no DSN": func(c *AdvisoryLockConfig) { c.DSN = "" }, "bad DSN": func(c *AdvisoryLockConfig) { c.DSN = "postgres://%" },
		"no key": func(c *AdvisoryLockConfig) { c.Key = 0 }, "TTL": func(c *AdvisoryLockConfig) { c.TTL = 1 },
		"backoff": func(c *AdvisoryLockConfig) { c.BackoffMin = time.Second; c.BackoffMax = 1 },
	} {
		bad := good
		change(&bad)
		if _, err := NewAdvisoryLock(bad); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}
