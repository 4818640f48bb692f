package postgres

import (
	"context"
	"errors"
	"fmt"
	"net"
	"testing"
	"time"

	"northstar/client"
)

// A candidate remembers exactly those of its sessions that the row may still name.
func TestStaleSessionsAreCleared(t *testing.T) {
	t.Parallel()
	p := newProxy(t)
	e, conn := connected(t, "a", func(c *Config) { c.DSN = p.dsn() })
	requireStale := func(what string, want ...string) {
		t.Helper()
		if got := e.staleSessions; len(got) != len(want) || len(got) == 1 && got[0] != want[0] {
			t.Errorf("%s: %q, want %q", what, got, want)
		}
	}
	e.addStale("x")
	e.addStale("y")
	e.removeStale("x")
	requireStale("one is cleared", "y")
	if err := e.clearStale(t.Context(), conn); err != nil {
		t.Fatal(err)
	}
	requireStale("the row is cleared")
	l := (&tenureLog{t: t}).campaign(e)
	requireStale("elected", l.Session)
	held := p.connections() // two, and more if a busy machine has ended one
	if err := l.Resign(t.Context()); err != nil {
		t.Fatal(err)
	}
	requireStale("released")
	if n := p.connections(); n != held {
		t.Errorf("%d connections, want the %d of before: the tenure's releases it", n, held)
	}
}

// A lease releases its session while a campaign clears the row of all stale ones: each is removed once.
func TestStaleSessions_ReleasedMeanwhile(t *testing.T) {
	t.Parallel()
	e, conn := connected(t, "a", nil)
	_, other := connected(t, "b", nil)
	_, watching := connected(t, "c", nil)
	holds := "UPDATE " + e.cfg.Table + " SET session = 'x' WHERE role = $1"
	if _, err := other.Exec(t.Context(), holds, e.cfg.Role); err != nil {
		t.Fatal(err)
	}
	tx, err := other.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	lock := "SELECT FROM " + e.cfg.Table + " WHERE role = $1 FOR UPDATE"
	if _, err := tx.Exec(t.Context(), lock, e.cfg.Role); err != nil {
		t.Fatal(err)
	}
	e.addStale("x")
	e.addStale("y")
	pid, cleared := conn.PgConn().PID(), make(chan error, 1)
	go func() { cleared <- e.clearStale(t.Context(), conn) }()
	for waits := false; !waits; {
		err := watching.QueryRow(t.Context(), "SELECT cardinality(pg_blocking_pids($1)) > 0", pid).Scan(&waits)
		if err != nil {
			t.Fatal(err)
		}
	}
	e.removeStale("x")
	e.addStale("z")
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-cleared; err != nil {
		t.Fatal(err)
	}
	if got := e.staleSessions; len(got) != 1 || got[0] != "z" {
		t.Errorf("%q are stale, want z", got)
	}
}

// A campaign that ends while it asks whether the role is still held releases it: no process acts for it any longer.
func TestCampaign_GivenUpReleasesTheRole(t *testing.T) {
	t.Parallel()
	b := &tenureLog{t: t}
	long := func(c *Config) { c.TTL = time.Minute }
	e := candidate(t, "a", long)
	first := b.campaign(e)
	_, other := connected(t, "b", nil)
	_, watching := connected(t, "c", nil)
	tx, err := other.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	lock := "SELECT FROM " + e.cfg.Table + " WHERE role = $1 FOR UPDATE"
	if _, err := tx.Exec(t.Context(), lock, e.cfg.Role); err != nil {
		t.Fatal(err)
	}
	ctx, giveUp := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { _, err := e.Campaign(ctx); ended <- err }()
	pid := e.current().conn.PgConn().PID()
	for waits := false; !waits; {
		err := watching.QueryRow(t.Context(), "SELECT cardinality(pg_blocking_pids($1)) > 0", pid).Scan(&waits)
		if err != nil {
			t.Fatal(err)
		}
	}
	giveUp()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("Campaign: %v", err)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if next := b.campaign(candidate(t, "d", long)); next.Token <= first.Token || first.Cause() == nil {
		t.Errorf("token %d after %d; the first tenure: %v", next.Token, first.Token, first.Cause())
	}
}

// A follower with long pauses keeps its connection between attempts.
func TestFollower_KeepsIdleConnection(t *testing.T) {
	t.Parallel()
	e, conn := connected(t, "a", func(c *Config) { c.BackoffMin, c.BackoffMax = 3*shortTTL, 3*shortTTL })
	if err := e.waitBackoff(t.Context(), conn, e.backoff()); err != nil {
		t.Error(err)
	}
}

// A candidate that resigns or closes after a lost session clears its row: no other candidate waits.
func TestClose_ClearsStaleSessions(t *testing.T) {
	t.Parallel()
	for how, leave := range map[string]func(*Elector, *client.Leadership) error{
		"resign": func(_ *Elector, l *client.Leadership) error { return l.Resign(t.Context()) },
		"close":  func(e *Elector, _ *client.Leadership) error { return e.Close(t.Context()) },
	} {
		long := func(c *Config) { c.Role, c.LockKey, c.TTL = role(t)+"."+how, 0, time.Hour }
		b := &tenureLog{t: t}
		e := candidate(t, "a", long)
		l := b.campaign(e)
		do(t, killSession, e.cfg.LockKey)
		done(t, l, client.ErrRoleLost)
		if err := leave(e, l); err != nil {
			t.Errorf("%s: %v", how, err)
		}
		b.campaign(candidate(t, "b", long))
	}
}

// Close ends a campaign in progress, and the candidate is not elected later.
func TestClose_EndsACampaign(t *testing.T) {
	t.Parallel()
	b := &tenureLog{t: t}
	long := func(c *Config) { c.TTL = time.Minute }
	holder, e := b.campaign(candidate(t, "a", long)), candidate(t, "b", long)
	ended := make(chan error, 1)
	go func() {
		ended <- client.RunAsLeader(t.Context(), e, 0, func(context.Context, *client.Leadership) error {
			return errors.New("elected after Close")
		})
	}()
	asked(t, "northstar role "+role(t), "pg_try_advisory_lock")
	if err := client.Leave(t.Context(), new(client.Gate), e); err != nil {
		t.Error(err)
	}
	if err := holder.Resign(t.Context()); err != nil {
		t.Error(err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if _, err := e.Campaign(t.Context()); !errors.Is(err, client.ErrResigned) {
		t.Errorf("a later campaign: %v", err)
	}
}

// Close ends with its context, even if the network is cut. A busy machine may delay it, so the fastest of a few counts.
func TestClose_EndsWithContext(t *testing.T) {
	t.Parallel()
	p := newProxy(t)
	fastest := releaseTimeout
	for try := 0; try < 5 && fastest >= releaseTimeout; try++ {
		e := candidate(t, "a", func(c *Config) {
			c.DSN, c.TTL, c.Role, c.LockKey = p.dsn(), time.Hour, fmt.Sprintf("%s.%d", role(t), try), 0
		})
		l := (&tenureLog{t: t}).campaign(e)
		p.set(true)
		over, cancel := context.WithCancel(t.Context())
		cancel()
		began := time.Now()
		if err := e.Close(over); err == nil {
			t.Error("Close reports that the role was released")
		}
		fastest = min(fastest, time.Since(began))
		done(t, l, client.ErrResigned)
		p.set(false)
	}
	if fastest >= releaseTimeout {
		t.Errorf("it took %v", fastest)
	}
}

// asked waits until another connection has run a statement.
func asked(t *testing.T, application, statement string) {
	t.Helper()
	_, watching := connected(t, "watching", nil)
	const sql = `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE application_name = $1 AND position($2 IN query) > 0)`
	for there := false; !there; {
		if err := watching.QueryRow(t.Context(), sql, application, statement).Scan(&there); err != nil {
			t.Fatal(err)
		}
	}
}

// A candidate whose connection is dead, although neither end knows, connects again.
func TestFollower_DeadConnection(t *testing.T) {
	t.Parallel()
	b := &tenureLog{t: t}
	holder := b.campaign(candidate(t, "a", func(c *Config) { c.TTL = time.Minute }))
	p := newProxy(t)
	// Its pauses are long, so that the cut is in one.
	elected := b.later(candidate(t, "b", func(c *Config) {
		c.DSN, c.TTL, c.BackoffMin, c.BackoffMax = p.dsn(), 2*time.Second, time.Second, time.Second
	}))
	asked(t, "northstar role "+role(t), "pg_try_advisory_lock")
	before := p.connections()
	p.set(true)
	for began := time.Now(); p.connections() == before; <-time.After(time.Millisecond) {
		if time.Since(began) > testTimeout {
			t.Fatal("it waits for the dead connection")
		}
	}
	p.set(false)
	if err := holder.Resign(t.Context()); err != nil {
		t.Fatal(err)
	}
	<-elected
}

// Failed connections are retried after a doubling pause, up to a limit.
func TestConnect_BacksOff(t *testing.T) {
	t.Parallel()
	const backoff, tries = 20 * time.Millisecond, 6
	for name, try := range map[string]func(context.Context, *Elector){
		"campaign": func(ctx context.Context, e *Elector) { _, _ = e.Campaign(ctx) },
		"observe": func(ctx context.Context, e *Elector) {
			for range e.Observe(ctx) {
			}
		},
	} {
		starting, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer starting.Close()
		e, err := New(Config{DSN: "postgres://" +
			starting.Addr().String() + "/x?sslmode=disable", Role: "r", BackoffMin: backoff, BackoffMax: backoff})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
		ended := make(chan struct{})
		go func() { defer close(ended); try(ctx, e) }()
		began := time.Now()
		for range tries {
			c, err := starting.Accept()
			if err != nil {
				t.Fatal(err)
			}
			refuse(t, c)
		}
		took := time.Since(began)
		cancel()
		<-ended
		if least := (1<<(tries-1) - 1) * backoff; took < least || ctx.Err() == context.DeadlineExceeded {
			t.Errorf("%s: %d tries in %v, want %v at least", name, tries, took, least)
		}
		for n, want := range map[int]time.Duration{0: backoff, 3: 8 * backoff, 1000: maxReconnectDelay} {
			if got := e.reconnectDelay(n); got != want {
				t.Errorf("after %d failures: %v, want %v", n, got, want)
			}
		}
	}
}

// refuse responds like a server that is still starting.
func refuse(t *testing.T, c net.Conn) {
	t.Helper()
	defer c.Close()
	if _, err := c.Read(make([]byte, 1024)); err != nil {
		t.Fatal(err)
	}
	const fields = "SFATAL\x00VFATAL\x00C57P03\x00Mnot yet\x00\x00"
	if _, err := c.Write(append([]byte{'E', 0, 0, 0, byte(4 + len(fields))}, fields...)); err != nil {
		t.Fatal(err)
	}
}

// A notification that has arrived is handled, also if its time is over: a row that was read later would hide it.
func TestReceiveNotifications_Queued(t *testing.T) {
	t.Parallel()
	e, conn := connected(t, "a", nil)
	do(t, `SELECT pg_notify($1, json_build_object('role', $2::text, 'epoch', 7)::text)`, e.sql.channel, e.cfg.Role)
	for began, got := time.Now(), int64(0); got != 7; {
		if time.Since(began) > testTimeout {
			t.Fatal("the notification is lost")
		}
		if _, err := conn.Exec(t.Context(), "SELECT"); err != nil { // it may receive the notification
			t.Fatal(err)
		}
		if _, err := e.receiveNotifications(t.Context(), conn, 0, func(c change) bool {
			got = c.Epoch
			return true
		}); err != nil {
			t.Fatal(err)
		}
	}
}
