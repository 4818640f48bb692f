// Package postgres elects leaders with nothing but a PostgreSQL server (14 or later): the
// Elector of package client, with the same tenures, gates and fencing tokens, for teams
// that run no NorthStar cluster. docs/decisions/016-postgres.md has the reasons.
//
// A candidate has a connection of its own. It holds the role while that session holds
// an advisory lock, and proves it with heartbeats in a row of a table, each of which
// extends its deadline. A session that ends frees the lock; whoever gets that waits
// until the deadline of the holder in the row must have passed, unless the row says
// that it gave the role back. That wait is counted by its own clock from when it first
// saw the last heartbeat: the clocks of servers and clients do not matter.
package postgres

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"regexp"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"northstar/client"
)

// Config says who stands for which role, and where. DSN and Role are required.
type Config struct {
	// DSN is the server's: a URL or key=value pairs, as libpq has them. The connection
	// must reach the server itself or a pooler in session mode.
	DSN   string
	Role  string // 1 to 128 of A-Z a-z 0-9 . _ : @ -
	Name  string // what others see of the holder, at most 128 bytes; "": client.ProcessName
	Value string // shown with the role while it is held, at most 1024 bytes
	// TTL is how long the role stays taken without a heartbeat. 0: 10 s; 500 ms to 1 h.
	TTL time.Duration
	// TakeoverDelay is how long this candidate waits after a holder was lost
	// involuntarily, so that what that had under way can end.
	TakeoverDelay time.Duration
	// Table is where the state is, with its schema or without. "": northstar_roles. It
	// is made when there is none: see Schema.
	Table string
	// LockKey is the key of the advisory lock; 0: LockKey(Table, Role). All candidates of
	// a role must agree on it.
	LockKey int64
	// BackoffMin and BackoffMax are the bounds of the time between two tries of a
	// follower. 0: 200 ms and 800 ms.
	BackoffMin, BackoffMax time.Duration
	// Clock counts the holder's own deadline, from any fixed moment. Nil:
	// CLOCK_BOOTTIME on Linux, Go's monotonic clock elsewhere.
	Clock func() time.Duration
}

const (
	defaultTTL        = 10 * time.Second
	minTTL            = 500 * time.Millisecond
	maxTTL            = time.Hour
	defaultTable      = "northstar_roles"
	maxName           = 128
	maxValue          = 1024 // with the name and all of it escaped it fits into a notification
	connectTimeout    = 5 * time.Second
	maxReconnectDelay = 5 * time.Second // between two connections that fail
	releaseTimeout    = 5 * time.Second // for what nobody waits for
)

var (
	rolePattern  = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._:@-]{0,127}$`)
	tablePattern = regexp.MustCompile(`^([a-z_][a-z0-9_]{0,62}\.)?[a-z_][a-z0-9_]{0,50}$`)
)

// LockKey is the key of a role's advisory lock: the first 64 bits of the SHA-256 of
// "northstar/TABLE/ROLE", big endian, signed.
func LockKey(table, role string) int64 {
	sum := sha256.Sum256([]byte("northstar/" + table + "/" + role))
	return int64(binary.BigEndian.Uint64(sum[:8]))
}

func (c Config) check() (Config, error) {
	if c.TTL == 0 {
		c.TTL = defaultTTL
	}
	if c.Table == "" {
		c.Table = defaultTable
	}
	if c.Name == "" {
		c.Name = client.ProcessName()
	}
	if c.BackoffMin == 0 && c.BackoffMax == 0 {
		c.BackoffMin, c.BackoffMax = 200*time.Millisecond, 800*time.Millisecond
	}
	if c.LockKey == 0 {
		c.LockKey = LockKey(c.Table, c.Role)
	}
	var errs []error
	bad := func(wrong bool, format string, args ...any) {
		if wrong {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	bad(c.DSN == "", "DSN: empty")
	bad(!rolePattern.MatchString(c.Role), "Role: %q: want 1 to 128 of A-Z, a-z, 0-9, '.', '_', ':', '@' and '-', starting with a letter or digit", c.Role)
	bad(len(c.Name) > maxName || !text(c.Name), "Name: want at most %d bytes of UTF-8 without NUL, got %d", maxName, len(c.Name))
	bad(len(c.Value) > maxValue || !text(c.Value), "Value: want at most %d bytes of UTF-8 without NUL, got %d", maxValue, len(c.Value))
	bad(c.TTL < minTTL || c.TTL > maxTTL || c.TTL%time.Millisecond != 0, "TTL: want whole milliseconds, %v to %v, got %v", minTTL, maxTTL, c.TTL)
	bad(c.TakeoverDelay < 0, "TakeoverDelay: want 0 or more, got %v", c.TakeoverDelay)
	bad(!tablePattern.MatchString(c.Table), "Table: %q: want a name of a-z, 0-9 and '_', at most 51 long, with a schema or without", c.Table)
	bad(c.BackoffMin <= 0 || c.BackoffMax < c.BackoffMin || c.BackoffMax > time.Minute, "BackoffMin, BackoffMax: want 0 < min ≤ max ≤ 1m, got %v, %v", c.BackoffMin, c.BackoffMax)
	return c, errors.Join(errs...)
}

// text says whether PostgreSQL takes a string as text.
func text(s string) bool { return utf8.ValidString(s) && !strings.Contains(s, "\x00") }

// Elector is one candidate for one role. It is a client.Elector; several roles want
// one each.
type Elector struct {
	cfg  Config
	dial *pgx.ConnConfig
	sql  statements

	campaigning chan struct{} // capacity 1: campaigning

	mu            sync.Mutex
	lease         *lease   // the latest; nil: none yet
	staleSessions []string // sessions of this candidate that the row may still name
}

var _ client.Elector = (*Elector)(nil)

// New makes a candidate. It connects to nothing: Campaign does.
func New(cfg Config) (*Elector, error) {
	cfg, err := cfg.check()
	if err != nil {
		return nil, fmt.Errorf("postgres elector: %w", err)
	}
	dial, err := pgx.ParseConfig(cfg.DSN)
	if err != nil {
		return nil, fmt.Errorf("postgres elector: DSN: %w", err) // says no password
	}
	dial.ConnectTimeout = connectTimeout
	dial.DefaultQueryExecMode = pgx.QueryExecModeExec // nothing is prepared: a pooler may be between
	dial.RuntimeParams["application_name"] = "northstar role " + cfg.Role
	return &Elector{cfg: cfg, dial: dial, sql: newStatements(cfg.Table), campaigning: make(chan struct{}, 1)}, nil
}

// Campaign is of client.Elector. Several calls wait for one another. Followers are
// not served in the order in which they came.
func (e *Elector) Campaign(ctx context.Context) (*client.Leadership, error) {
	select {
	case e.campaigning <- struct{}{}:
	case <-ctx.Done():
		return nil, e.campaignError(context.Cause(ctx))
	}
	defer func() { <-e.campaigning }()
	if l := e.current(); l != nil {
		if t, err := l.resume(ctx); err == nil || ctx.Err() != nil {
			return t, err
		}
		l.end(errConnClosed) // whatever was wrong, a new session stands for election
	}
	for n := 0; ; n++ {
		t, err := e.campaign(ctx)
		if err == nil {
			return t, nil
		}
		if ctx.Err() != nil || isPermanent(err) {
			return nil, e.campaignError(errors.Join(err, context.Cause(ctx)))
		}
		if pause(ctx, e.reconnectDelay(n)) != nil {
			return nil, e.campaignError(errors.Join(err, context.Cause(ctx)))
		}
	}
}

func (e *Elector) campaignError(err error) error {
	return fmt.Errorf("campaign for role %s: %w", e.cfg.Role, err)
}

// current gives the latest lease.
func (e *Elector) current() *lease {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.lease
}

// Close is of client.Elector. A campaign that is under way goes on: end its context
// first.
func (e *Elector) Close(ctx context.Context) error {
	if l := e.current(); l != nil {
		l.end(client.ErrResigned)
		select {
		case <-l.ended:
		case <-ctx.Done():
			l.cancel()
			<-l.ended
		}
	}
	return e.clearStale(ctx)
}

// clearStale clears the row of this candidate's old sessions, through a connection of
// its own, where their own could not. All of their tenures are over.
func (e *Elector) clearStale(ctx context.Context) error {
	e.mu.Lock()
	none := len(e.staleSessions) == 0
	e.mu.Unlock()
	if none {
		return nil
	}
	conn, err := e.connect(ctx)
	if err != nil {
		return fmt.Errorf("give role %s back: %w", e.cfg.Role, err)
	}
	defer closeConn(conn)
	return e.clear(ctx, conn)
}

// clear clears the row of this candidate's old sessions.
func (e *Elector) clear(ctx context.Context, conn *pgx.Conn) error {
	e.mu.Lock()
	stale := e.staleSessions
	e.mu.Unlock()
	if len(stale) == 0 {
		return nil
	}
	if _, err := conn.Exec(ctx, e.sql.release, e.cfg.Role, stale, causeLost); err != nil {
		return fmt.Errorf("give role %s back: %w", e.cfg.Role, err)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.staleSessions = e.staleSessions[len(stale):]
	return nil
}

// addStale notes a session that the row may name.
func (e *Elector) addStale(session string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.staleSessions = append(e.staleSessions, session)
}

// removeStale notes that the row does not name a session any more.
func (e *Elector) removeStale(session string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	var left []string
	for _, s := range e.staleSessions {
		if s != session {
			left = append(left, s)
		}
	}
	e.staleSessions = left
}

// Release gives back the role of another process that is known to act no more: one
// that this process has watched end, say. session is the Session of its Leadership.
// Without it the role is free after that one's TTL.
func Release(ctx context.Context, cfg Config, session string) error {
	e, err := New(cfg)
	if err != nil {
		return err
	}
	e.addStale(session)
	return e.clearStale(ctx)
}

// connect opens a session that ends by itself when nothing is heard of this process:
// the server may not learn that the network is cut.
func (e *Elector) connect(ctx context.Context) (*pgx.Conn, error) {
	conn, err := pgx.ConnectConfig(ctx, e.dial)
	if err != nil {
		return nil, err
	}
	idle := max(e.cfg.TTL, 2*e.cfg.BackoffMax).Milliseconds()
	if _, err := conn.Exec(ctx, sessionSetupSQL, fmt.Sprint(idle)); err != nil {
		closeConn(conn)
		if code(err) == "42704" {
			err = fmt.Errorf("want PostgreSQL 14 or later: %w", err)
		}
		return nil, err
	}
	return conn, nil
}

// closeConn closes a connection, whose session and locks end with it.
func closeConn(conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), releaseTimeout)
	defer cancel()
	_ = conn.Close(ctx) // it may be broken already
}

// code is the SQLSTATE of an error.
func code(err error) string {
	var e *pgconn.PgError
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}

// isPermanent says whether an error will not pass by itself: authentication, a database
// that does not exist, a right or a setting that is missing.
func isPermanent(err error) bool {
	c := code(err)
	return strings.HasPrefix(c, "28") || strings.HasPrefix(c, "42") || c == "3D000"
}

// backoff is the time until a follower's next try.
func (e *Elector) backoff() time.Duration {
	return e.cfg.BackoffMin + mathrand.N(e.cfg.BackoffMax-e.cfg.BackoffMin+1)
}

// resume is the time until the next connection after n that failed, and one more.
func (e *Elector) reconnectDelay(n int) time.Duration {
	return min(e.backoff()<<min(n, 10), maxReconnectDelay)
}

func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func newSession() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}
