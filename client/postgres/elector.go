// Package postgres implements the Elector of package client with only a PostgreSQL server (14 or later). It has the
// same tenures, gates and fencing tokens, and needs no NorthStar cluster. docs/decisions/016-postgres.md has the
// reasons.
//
// Each candidate has its own connection. It holds the role while its session holds an advisory lock. It proves that
// with heartbeats in a row of a table, each of which extends its deadline. When a session ends, the server frees
// the lock. The next candidate with the lock waits until the previous holder's deadline has passed, unless the row
// shows that the role was released. It measures that wait with its own clock, from when it first read the last
// heartbeat. Differences between the clocks of servers and clients have no effect.
package postgres

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"northstar/client"
)

// Config configures an Elector. DSN and Role are required.
type Config struct {
	// DSN is the data source name of the server: a URL or key=value pairs, as in libpq. The connection must reach
	// the server itself or a pooler in session mode. Without connect_timeout, that is 5 s.
	DSN   string
	Role  string // 1 to 128 of A-Z a-z 0-9 . _ : @ -
	Name  string // shown as the holder, at most 128 bytes; "": client.ProcessName
	Value string // shown with the role while it is held, at most 1024 bytes
	// TTL is how long the role stays held without a heartbeat. 0: 10 s; 500 ms to 1 h.
	TTL time.Duration
	// TakeoverDelay is how long this candidate waits after a holder crashed or lost its session, so that the
	// holder's work in progress can finish.
	TakeoverDelay time.Duration
	// Eligible returns nil while this process may be elected, as in client.CandidateConfig. Nil: always eligible.
	Eligible func(ctx context.Context) error
	// Table is the name of the state table, at most 51 long, with or without its schema, and then at most 63 long. "":
	// northstar_roles. It is created if missing: see Schema.
	Table string
	// LockKey is the key of the advisory lock; 0: LockKey(Table, Role). All candidates of a role must use the same
	// key.
	LockKey int64
	// BackoffMin and BackoffMax bound the time between two attempts of a follower. 0: 200 ms and 800 ms.
	BackoffMin, BackoffMax time.Duration
	// Clock is the clock of the holder's own deadline: the time since any fixed moment. Nil: CLOCK_BOOTTIME on
	// Linux, CLOCK_MONOTONIC_RAW on macOS, Go's monotonic clock elsewhere.
	Clock func() time.Duration
}

const (
	defaultTTL        = 10 * time.Second
	minTTL            = 500 * time.Millisecond
	maxTTL            = time.Hour
	defaultTable      = "northstar_roles"
	maxName           = 128
	maxTable          = 63              // with its schema: PostgreSQL's limit for a channel
	maxValue          = 1024            // a notification has room for it and the name, escaped
	connectTimeout    = 5 * time.Second // without connect_timeout in the DSN
	maxReconnectDelay = 5 * time.Second // between two failed connections
	releaseTimeout    = 5 * time.Second // of releases in the background
)

var (
	rolePattern  = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._:@-]{0,127}$`)
	tablePattern = regexp.MustCompile(`^([a-z_][a-z0-9_]{0,62}\.)?[a-z_][a-z0-9_]{0,50}$`)
)

// LockKey returns the key of a role's advisory lock: the first 64 bits of the SHA-256 of "northstar/TABLE/ROLE",
// big endian, signed.
func LockKey(table, role string) int64 {
	sum := sha256.Sum256([]byte("northstar/" + table + "/" + role))
	return int64(binary.BigEndian.Uint64(sum[:8]))
}

func (c Config) check() (Config, error) {
	c.TTL = cmp.Or(c.TTL, defaultTTL)
	c.Table = cmp.Or(c.Table, defaultTable)
	c.Name = cmp.Or(c.Name, client.ProcessName())
	if c.BackoffMin == 0 && c.BackoffMax == 0 {
		c.BackoffMin, c.BackoffMax = 200*time.Millisecond, 800*time.Millisecond
	}
	c.LockKey = cmp.Or(c.LockKey, LockKey(c.Table, c.Role))
	var errs []error
	bad := func(wrong bool, format string, args ...any) {
		if wrong {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	bad(c.DSN == "", "DSN: empty")
	bad(!rolePattern.MatchString(c.Role),
		"Role: must be 1 to 128 of A-Z, a-z, 0-9, '.', '_', ':', '@' and '-', "+
			"starting with a letter or digit (got %q)", c.Role)
	bad(len(c.Name) > maxName || !text(c.Name), "Name: must be at most %d bytes of UTF-8 without NUL (got %d)", maxName,
		len(c.Name))
	bad(len(c.Value) > maxValue || !text(c.Value), "Value: must be at most %d bytes of UTF-8 without NUL (got %d)",
		maxValue, len(c.Value))
	bad(c.TTL < minTTL || c.TTL > maxTTL || c.TTL%time.Millisecond != 0,
		"TTL: must be whole milliseconds, %v to %v (got %v)", minTTL, maxTTL, c.TTL)
	bad(c.TakeoverDelay < 0, "TakeoverDelay: must be 0 or more (got %v)", c.TakeoverDelay)
	bad(len(c.Table) > maxTable || !tablePattern.MatchString(c.Table),
		"Table: must be a name of a-z, 0-9 and '_', at most 51 long, with or without a schema, at most %d long with it "+
			"(got %q)", maxTable, c.Table)
	bad(c.BackoffMin <= 0 || c.BackoffMax < c.BackoffMin || c.BackoffMax > time.Minute,
		"BackoffMin, BackoffMax: must be 0 < min ≤ max ≤ 1m (got %v, %v)", c.BackoffMin, c.BackoffMax)
	return c, errors.Join(errs...)
}

// text reports whether PostgreSQL accepts a string as text.
func text(s string) bool { return utf8.ValidString(s) && !strings.Contains(s, "\x00") }

// Elector is one candidate for one role. It implements client.Elector.
type Elector struct {
	cfg  Config
	dial *pgx.ConnConfig
	sql  statements

	campaigning chan struct{}   // capacity 1: held during Campaign
	closed      context.Context // ended by Close
	close       context.CancelFunc

	mu            sync.Mutex
	lease         *lease   // latest lease; nil: none yet
	electing      string   // session that is being elected; "": none
	staleSessions []string // sessions of this candidate that the row may name, with the present one
}

var _ client.Elector = (*Elector)(nil)

// New checks the configuration. It does not connect; Campaign does.
func New(cfg Config) (*Elector, error) {
	cfg, err := cfg.check()
	if err != nil {
		return nil, fmt.Errorf("postgres elector: %w", err)
	}
	dial, err := parseDSN(cfg.DSN, "northstar role "+cfg.Role)
	if err != nil {
		return nil, fmt.Errorf("postgres elector: %w", err)
	}
	e := &Elector{cfg: cfg, dial: dial, sql: newStatements(cfg.Table), campaigning: make(chan struct{}, 1)}
	e.closed, e.close = context.WithCancel(context.Background())
	return e, nil
}

// parseDSN returns how to connect, as an application of this name.
func parseDSN(dsn, application string) (*pgx.ConnConfig, error) {
	dial, err := pgx.ParseConfig(dsn)
	if err != nil {
		return nil, fmt.Errorf("DSN: %w", err) // the error contains no password
	}
	dial.ConnectTimeout = cmp.Or(dial.ConnectTimeout, connectTimeout)
	dial.DefaultQueryExecMode = pgx.QueryExecModeExec // no prepared statements: a pooler may be in between
	dial.RuntimeParams["application_name"] = application
	return dial, nil
}

// Campaign implements client.Elector. Concurrent calls wait for each other. Followers are not elected in the order
// of their arrival. If ctx ends first, a role that this candidate still holds is released in the background.
func (e *Elector) Campaign(ctx context.Context) (*client.Leadership, error) {
	select {
	case e.campaigning <- struct{}{}:
	case <-ctx.Done():
		return nil, e.campaignError(context.Cause(ctx))
	}
	defer func() { <-e.campaigning }()
	return client.UntilClosed(ctx, e.closed, func(ctx context.Context) (*client.Leadership, error) {
		if e.cfg.Eligible == nil {
			return e.campaignUntil(ctx)
		}
		return client.WhileEligible(ctx, e.eligible, e.withdraw, e.campaignUntil)
	})
}

// eligible returns nil while the lease of this candidate lasts, and otherwise the result of Eligible.
func (e *Elector) eligible(ctx context.Context) error {
	if l := e.current(); l != nil && l.deadline.ValidFor() > 0 {
		return nil
	}
	return e.cfg.Eligible(ctx)
}

// withdraw releases what an ineligible candidate still holds.
func (e *Elector) withdraw() {
	if l := e.current(); l != nil {
		l.end(client.ErrResigned)
	}
}

// campaignUntil campaigns until this candidate is elected, ctx ends, or the error is permanent.
func (e *Elector) campaignUntil(ctx context.Context) (*client.Leadership, error) {
	if l := e.current(); l != nil {
		t, err := l.resume(ctx)
		switch {
		case err == nil:
			return t, nil
		case ctx.Err() != nil: // its heartbeats would keep the role, although no process acts
			l.end(client.ErrResigned)
			return nil, err
		}
		l.end(errConnClosed) // the next attempt uses a new session
	}
	for n := 0; ; n++ {
		t, err := e.campaign(ctx)
		if err == nil {
			return t, nil
		}
		if ctx.Err() != nil || isPermanent(err) || pause(ctx, e.reconnectDelay(n)) != nil {
			return nil, e.campaignError(errors.Join(err, context.Cause(ctx)))
		}
	}
}

func (e *Elector) campaignError(err error) error {
	return fmt.Errorf("campaign for role %s: %w", e.cfg.Role, err)
}

// current returns the latest lease.
func (e *Elector) current() *lease {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.lease
}

// Close implements client.Elector.
func (e *Elector) Close(ctx context.Context) error {
	e.close()
	if l := e.current(); l != nil {
		l.end(client.ErrResigned) // before the wait for a campaign
	}
	var err error
	select {
	case e.campaigning <- struct{}{}:
		defer func() { <-e.campaigning }()
	case <-ctx.Done(): // a campaign in progress releases what it wins
		err = fmt.Errorf("release role %s: %w", e.cfg.Role, context.Cause(ctx))
	}
	if l := e.current(); l != nil {
		l.end(client.ErrResigned)
		select {
		case <-l.ended:
		case <-ctx.Done():
			l.cancel()
			<-l.ended
		}
	}
	return cmp.Or(e.clearStale(ctx, nil), err)
}

// clearStale clears the row of this candidate's sessions whose tenures have ended. With a nil conn it opens a
// connection if it needs one.
func (e *Elector) clearStale(ctx context.Context, conn *pgx.Conn) (err error) {
	stale := e.endedSessions()
	if len(stale) == 0 {
		return nil
	}
	if conn == nil {
		if conn, err = e.connect(ctx); err != nil {
			return fmt.Errorf("release role %s: %w", e.cfg.Role, err)
		}
		defer closeConn(conn)
	}
	ctx, cancel := e.limit(ctx)
	defer cancel()
	if _, err := conn.Exec(ctx, e.sql.release, e.cfg.Role, stale, causeLost); err != nil {
		return fmt.Errorf("release role %s: %w", e.cfg.Role, err)
	}
	e.removeStale(stale...)
	return nil
}

// endedSessions returns the stale sessions without one that leads or is being elected.
func (e *Elector) endedSessions() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(e.staleSessions), func(s string) bool {
		return s == e.electing || e.lease != nil && s == e.lease.session && e.lease.deadline.Err() == nil
	})
}

// addStale records a session that the row may name.
func (e *Elector) addStale(session string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.staleSessions = append(e.staleSessions, session)
}

// removeStale records that the row no longer names these sessions. Some may be removed already: a lease releases its
// own one while a campaign clears all.
func (e *Elector) removeStale(sessions ...string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	ended := func(s string) bool { return slices.Contains(sessions, s) }
	e.staleSessions = slices.DeleteFunc(e.staleSessions, ended)
}

// Release releases the role of another process that has certainly stopped, for example because this process saw it
// exit. session is the Session of its Leadership. Without Release the role is free after its TTL.
func Release(ctx context.Context, cfg Config, session string) error {
	e, err := New(cfg)
	if err != nil {
		return err
	}
	e.addStale(session)
	return e.clearStale(ctx, nil)
}

// connect opens a session for candidates.
func (e *Elector) connect(ctx context.Context) (*pgx.Conn, error) {
	return openSession(ctx, e.dial, silence(e.cfg.TTL, e.cfg.BackoffMax))
}

// limit bounds the statements of a candidate, as silence says. The outcome of one that took longer is unknown.
func (e *Elector) limit(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, silence(e.cfg.TTL, e.cfg.BackoffMax))
}

// silence returns how long one end of a waiting candidate's connection waits for the other: a network failure may not
// close the connection. Then the server has ended the session, and the candidate connects again.
func silence(ttl, backoffMax time.Duration) time.Duration { return max(ttl, 2*backoffMax) }

// openSession opens a session that the server ends if this process is silent for so long.
func openSession(ctx context.Context, dial *pgx.ConnConfig, idle time.Duration) (*pgx.Conn, error) {
	conn, err := pgx.ConnectConfig(ctx, dial)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, idle)
	defer cancel()
	if _, err := conn.Exec(ctx, sessionSetupSQL, fmt.Sprint(idle.Milliseconds())); err != nil {
		closeConn(conn)
		if code(err) == "42704" {
			err = fmt.Errorf("must be PostgreSQL 14 or later: %w", err)
		}
		return nil, err
	}
	return conn, nil
}

// closeConn closes a connection. Its session and locks end with it.
func closeConn(conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), releaseTimeout)
	defer cancel()
	_ = conn.Close(ctx) // it may be broken
}

// code returns the SQLSTATE of an error.
func code(err error) string {
	var e *pgconn.PgError
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}

// isPermanent reports whether a retry cannot succeed: failed authentication, a missing database, permission or
// setting.
func isPermanent(err error) bool {
	c := code(err)
	return strings.HasPrefix(c, "28") || strings.HasPrefix(c, "42") || c == "3D000"
}

// backoff returns the time until a follower's next attempt.
func (e *Elector) backoff() time.Duration {
	return e.cfg.BackoffMin + rand.N(e.cfg.BackoffMax-e.cfg.BackoffMin+1)
}

// reconnectDelay returns the pause after n+1 failed connections in a row.
func (e *Elector) reconnectDelay(n int) time.Duration {
	return min(e.backoff()<<min(n, 10), maxReconnectDelay)
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
