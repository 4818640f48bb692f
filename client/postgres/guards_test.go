package postgres

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"northstar/client"
)

// connected returns a candidate and a prepared connection of it.
func connected(t *testing.T, name string, change func(*Config)) (*Elector, *pgx.Conn) {
	t.Helper()
	e := candidate(t, name, func(c *Config) {
		c.BackoffMax = testTimeout // a statement may take so long: on a busy machine, longer than the TTL
		if change != nil {
			change(c)
		}
	})
	conn, err := e.connect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeConn(conn) })
	if err := e.prepare(t.Context(), conn); err != nil {
		t.Fatal(err)
	}
	stayIdle(t, conn)
	return e, conn
}

// stayIdle lets a session be idle: PostgreSQL ends it after the TTL, which a busy machine takes between two steps of a
// test.
func stayIdle(t *testing.T, conn *pgx.Conn) {
	t.Helper()
	if _, err := conn.Exec(t.Context(), "SET idle_session_timeout = 0"); err != nil {
		t.Fatal(err)
	}
}

// The row that was read with the lock may be older than the holder's last heartbeat. It is read again, and that
// heartbeat is waited out.
func TestLease_WaitsOutLastHeartbeat(t *testing.T) {
	t.Parallel()
	e, conn := connected(t, "a", nil)
	l, err := e.waitForLock(t.Context(), conn)
	if err != nil {
		t.Fatal(err)
	}
	stayIdle(t, conn)
	next, waiting := connected(t, "b", nil)
	var seen heartbeatSeen
	if locked, err := next.tryLock(t.Context(), waiting, &seen); err != nil || locked {
		t.Fatalf("%v, %v", locked, err)
	}
	seen.at = seen.at.Add(-time.Hour)
	if err := l.heartbeat(); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	closeConn(conn)
	var old heartbeatSeen
	eventuallyLocked(t, next, waiting, &old)
	if _, err := next.waitOutLease(t.Context(), waiting, &seen); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took < shortTTL {
		t.Errorf("elected %v after a heartbeat", took)
	}
}

func eventuallyLocked(t *testing.T, e *Elector, conn *pgx.Conn, seen *heartbeatSeen) {
	t.Helper()
	for end := time.Now().Add(testTimeout); time.Now().Before(end); {
		locked, err := e.tryLock(t.Context(), conn, seen)
		if err != nil {
			t.Fatal(err)
		}
		if locked {
			return
		}
		if err := e.waitBackoff(t.Context(), conn, 5*time.Millisecond); err != nil {
			t.Fatal(err)
		}
	}
	t.Fatal("the lock is not free")
}

// A deadline counts from when the election or heartbeat was sent, however slow the server is. It is a tenth shorter
// than the TTL.
func TestDeadline_CountsFromSendTime(t *testing.T) {
	t.Parallel()
	var skip atomic.Int64
	e, conn := connected(t, "a", func(c *Config) {
		c.TTL = time.Hour
		c.Clock = func() time.Duration { return time.Duration(skip.Load()) }
	})
	if want := 54 * time.Minute; e.lifetime() != want {
		t.Errorf("lifetime %v, want %v", e.lifetime(), want)
	}
	const late = 10 * time.Minute
	var l *lease
	slowly(t, conn, func() { skip.Add(int64(late)) },
		func() (err error) { l, err = e.writeTenure(t.Context(), conn); return err })
	if got, want := l.deadline.ValidFor(), e.lifetime()-late; got != want {
		t.Errorf("election: valid for %v, want %v", got, want)
	}
	eventuallyLocked(t, e, conn, new(heartbeatSeen)) // the heartbeat checks the lock too
	skip.Add(int64(time.Minute))
	slowly(t, conn, func() { skip.Add(int64(late)) }, l.heartbeat)
	if got, want := l.deadline.ValidFor(), e.lifetime()-late; got != want {
		t.Errorf("heartbeat: valid for %v, want %v", got, want)
	}
}

// slowly sends a statement while another session locks the row; meanwhile runs before the lock is released.
func slowly(t *testing.T, conn *pgx.Conn, meanwhile func(), send func() error) {
	t.Helper()
	other, err := pgx.Connect(t.Context(), server(t).DSN())
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close(context.Background())
	tx, err := other.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `SELECT FROM northstar_roles WHERE role = $1 FOR UPDATE`, role(t)); err != nil {
		t.Fatal(err)
	}
	sent := make(chan error, 1)
	pid := conn.PgConn().PID()
	go func() { sent <- send() }()
	blocked := false
	for end := time.Now().Add(testTimeout); !blocked && time.Now().Before(end); {
		if err := other.QueryRow(t.Context(), `SELECT cardinality(pg_blocking_pids($1::int)) > 0`, int(pid)).Scan(
			&blocked,
		); err != nil {
			t.Fatal(err)
		}
	}
	meanwhile()
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-sent; err != nil || !blocked {
		t.Fatalf("%v, blocked %v", err, blocked)
	}
}

// Tokens grow if the row is ahead of every clock, and if the row was lost.
func TestTokensIncrease(t *testing.T) {
	t.Parallel()
	b := &tenureLog{t: t}
	e := candidate(t, "a", nil)
	set := func(epoch int64) {
		t.Helper()
		do(t, `UPDATE northstar_roles SET epoch = $2 WHERE role = $1`, role(t), epoch)
	}
	first := b.campaign(e)
	if err := first.Resign(t.Context()); err != nil {
		t.Fatal(err)
	}
	set(0)
	second := b.campaign(e)
	if err := second.Resign(t.Context()); err != nil {
		t.Fatal(err)
	}
	const ahead = 1 << 50
	set(ahead)
	if third := b.campaign(e); third.Token != ahead+1 {
		t.Errorf("token %d after %d", third.Token, ahead)
	}
	do(t, `DELETE FROM northstar_roles WHERE role = $1`, role(t)) // for repeated runs of the test
}

// Commits wait for the disk with any default of the server, and for standbys if configured.
func TestCommitsAreSynchronous(t *testing.T) {
	t.Parallel()
	for setting, want := range map[string]string{"off": "on", "local": "on", "remote_apply": "remote_apply"} {
		_, conn := connected(t, "a", func(c *Config) { c.DSN += "&options=-csynchronous_commit%3D" + setting })
		var got string
		if err := conn.QueryRow(t.Context(), `SELECT current_setting('synchronous_commit')`).Scan(&got); err != nil ||
			got != want {
			t.Errorf("%s: %q, %v, want %q", setting, got, err, want)
		}
	}
}

// Candidates that start at the same time without a table create one.
func TestSchema_ConcurrentCreation(t *testing.T) {
	t.Parallel()
	for i := range 3 {
		table := fmt.Sprintf("once_%d", i)
		var all sync.WaitGroup
		for range 8 {
			e := candidate(t, "a", func(c *Config) { c.Table, c.TTL = table, time.Minute }) // which bounds statements
			all.Go(func() {
				conn, err := e.connect(t.Context())
				if err != nil {
					t.Error(err)
					return
				}
				defer closeConn(conn)
				if err := e.makeTable(t.Context(), conn); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
	}
}

// A follower waits until its own role is released. It then tries again immediately, and also when the lock is free.
func TestFollower_WakesOnNotify(t *testing.T) {
	t.Parallel()
	idle := func(c *Config) { c.TTL = time.Minute } // so that no session ends meanwhile
	e, conn := connected(t, "a", idle)
	next, waiting := connected(t, "b", idle)
	other, third := connected(t, "c", func(c *Config) { idle(c); c.Role = role(t) + ".other" })
	wakes := func(what string, want bool) {
		t.Helper()
		limit := testTimeout
		if !want {
			limit = 300 * time.Millisecond
		}
		began := time.Now()
		if err := next.waitBackoff(t.Context(), waiting, limit); err != nil {
			t.Fatal(err)
		}
		if woken := time.Since(began) < limit; woken != want {
			t.Errorf("%s: woken %v", what, woken)
		}
	}
	l, err := e.waitForLock(t.Context(), conn)
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := other.waitForLock(t.Context(), third)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := third.Exec(t.Context(), other.sql.release, other.cfg.Role, []string{theirs.session},
		causeResigned); err != nil {
		t.Fatal(err)
	}
	wakes("another role is released, this one has a holder", false)
	if _, err := conn.Exec(t.Context(), e.sql.release, e.cfg.Role, []string{l.session}, causeResigned); err != nil {
		t.Fatal(err)
	}
	wakes("it is released", true)
	var seen heartbeatSeen
	if locked, err := next.tryLock(t.Context(), waiting, &seen); locked || err != nil {
		t.Fatalf("%v, %v", locked, err)
	}
	if _, err := conn.Exec(t.Context(), e.sql.unlock, e.cfg.Role, e.cfg.LockKey); err != nil {
		t.Fatal(err)
	}
	wakes("its lock is free", true)
	if locked, err := next.tryLock(t.Context(), waiting, &seen); !locked || err != nil {
		t.Fatalf("%v, %v", locked, err)
	}
}

// An observer receives changes without reading the row.
func TestObserver_ReceivesChanges(t *testing.T) {
	t.Parallel()
	b := &tenureLog{t: t}
	seldom := candidate(t, "observer", func(c *Config) { c.BackoffMin, c.BackoffMax = testTimeout, testTimeout })
	began := time.Now()
	changes := 0
	for h, err := range seldom.Observe(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		switch changes++; changes {
		case 1: // the role is vacant, and the observer listens
			l := b.campaign(candidate(t, "a", nil))
			defer func() { _ = l.Resign(t.Context()) }()
		case 2:
			if h.Name != "a" {
				t.Errorf("%+v", h)
			}
			if took := time.Since(began); took > testTimeout/2 {
				t.Errorf("delivered after %v", took)
			}
			return
		}
	}
}

// A candidate that campaigns while it holds the role is asked whether it is eligible once its lease has lapsed.
func TestCampaign_EligibleAfterHolding(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	asked := false
	e, err := New(Config{
		DSN: "postgres://127.0.0.1:1", Role: role(t), TTL: shortTTL,
		Eligible: func(context.Context) error { asked = true; cancel(); return nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	// Its connection is silent, so that the lease is not proven again.
	held := &lease{e: e, deadline: client.NewDeadline(nil), ended: make(chan struct{})}
	held.deadline.Extend(held.deadline.Now(), 200*time.Millisecond)
	e.lease = held
	if _, err := e.Campaign(ctx); !errors.Is(err, context.Canceled) || !asked {
		t.Errorf("%v; asked: %v", err, asked)
	}
	close(held.ended)
	if err := e.Close(t.Context()); err != nil {
		t.Error(err)
	}
}
