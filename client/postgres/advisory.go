package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"

	"northstar/client"
)

// AdvisoryLockConfig configures an AdvisoryLock. DSN and Key are required.
type AdvisoryLockConfig struct {
	// DSN is the data source name of the server, as in Config. It must lead to the database in which the other
	// processes take the lock: advisory locks of two databases are different locks.
	DSN string
	// Key is the key of pg_try_advisory_lock.
	Key int64
	// TTL is how long the server keeps the session of a silent process, and with it the lock. 0: 10 s; 500 ms to 1 h.
	TTL time.Duration
	// BackoffMin and BackoffMax bound the time between two attempts. 0: 200 ms and 800 ms.
	BackoffMin, BackoffMax time.Duration
	// Clock is the clock of the holder's deadline, as in Config.
	Clock func() time.Duration
}

func (c AdvisoryLockConfig) check() (AdvisoryLockConfig, error) {
	c.TTL = cmp.Or(c.TTL, defaultTTL)
	if c.BackoffMin == 0 && c.BackoffMax == 0 {
		c.BackoffMin, c.BackoffMax = 200*time.Millisecond, 800*time.Millisecond
	}
	var errs []error
	if c.DSN == "" {
		errs = append(errs, errors.New("DSN: empty"))
	}
	if c.Key == 0 {
		errs = append(errs, errors.New("key: must be that of the other processes (got 0)"))
	}
	if c.TTL < minTTL || c.TTL > maxTTL {
		errs = append(errs, fmt.Errorf("TTL: must be %v to %v (got %v)", minTTL, maxTTL, c.TTL))
	}
	if c.BackoffMin <= 0 || c.BackoffMax < c.BackoffMin || c.BackoffMax > time.Minute {
		errs = append(errs, fmt.Errorf("BackoffMin, BackoffMax: must be 0 < min ≤ max ≤ 1m (got %v, %v)", c.BackoffMin,
			c.BackoffMax))
	}
	return c, errors.Join(errs...)
}

// AdvisoryLock is one candidate for an advisory lock of PostgreSQL that other programs take, too: it implements
// bridge.Lock. It writes nothing. Its holder has a deadline, but other programs do not wait for that: they get the
// lock when the holder's session ends. Usually the holder learns of that by the end of its connection.
type AdvisoryLock struct {
	cfg  AdvisoryLockConfig
	dial *pgx.ConnConfig
}

// NewAdvisoryLock checks the configuration. It does not connect; Acquire does.
func NewAdvisoryLock(cfg AdvisoryLockConfig) (*AdvisoryLock, error) {
	cfg, err := cfg.check()
	if err != nil {
		return nil, fmt.Errorf("postgres advisory lock: %w", err)
	}
	dial, err := parseDSN(cfg.DSN, fmt.Sprintf("northstar lock %d", cfg.Key))
	if err != nil {
		return nil, fmt.Errorf("postgres advisory lock: %w", err)
	}
	return &AdvisoryLock{cfg: cfg, dial: dial}, nil
}

// A server that is not the primary has advisory locks of its own, which exclude no one. From a granted lock on, the
// server ends the session if it is silent for $2 milliseconds.
const (
	tryAdvisorySQL = `WITH t AS MATERIALIZED (
  SELECT pg_is_in_recovery() AS standby, CASE WHEN pg_is_in_recovery() THEN false ELSE pg_try_advisory_lock($1) END AS locked)
SELECT standby, locked, CASE WHEN locked THEN set_config('idle_session_timeout', $2, false) ELSE '' END FROM t`
	holdsAdvisorySQL = `
SELECT NOT pg_is_in_recovery() AND EXISTS (
  SELECT FROM pg_locks WHERE locktype = 'advisory' AND granted AND pid = pg_backend_pid() AND objsubid = 1
  AND (classid::bigint << 32 | objid::bigint) = $1)`
	unlockAdvisorySQL = `SELECT pg_advisory_unlock($1)`
)

// ErrStandby: the server is a standby, whose advisory locks exclude no one.
var ErrStandby = errors.New("the server is not the primary")

// errReleased is the cause of the end of a hold that its owner has released.
var errReleased = errors.New("the advisory lock was released")

// errProofRefused: the server answers the question for the lock with an error.
var errProofRefused = fmt.Errorf("%w: the server does not say that the lock is held", client.ErrRoleLost)

// Acquire implements bridge.Lock.
func (a *AdvisoryLock) Acquire(ctx context.Context) (*client.Deadline, func(context.Context) error, error) {
	h, err := a.acquire(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("acquire advisory lock %d: %w", a.cfg.Key, err)
	}
	go h.run()
	return h.deadline, h.release, nil
}

func (a *AdvisoryLock) acquire(ctx context.Context) (*advisoryHold, error) {
	conn, err := openSession(ctx, a.dial, silence(a.cfg.TTL, a.cfg.BackoffMax))
	if err != nil {
		return nil, err
	}
	h := &advisoryHold{
		lock: a, conn: conn, deadline: client.NewDeadline(a.cfg.Clock), ended: make(chan struct{}),
	}
	for {
		sent := h.deadline.Now()
		locked, err := a.try(ctx, conn)
		switch {
		case err == nil && locked:
			h.extend(sent)
			h.ctx, h.cancel = context.WithCancel(context.Background())
			return h, nil
		case err == nil:
			err = pause(ctx, a.cfg.BackoffMin+rand.N(a.cfg.BackoffMax-a.cfg.BackoffMin+1))
		}
		if err != nil {
			closeConn(conn)
			return nil, err
		}
	}
}

// try asks for the lock once. Without a response in time, the lock may have been granted: the session must end.
func (a *AdvisoryLock) try(ctx context.Context, conn *pgx.Conn) (locked bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, silence(a.cfg.TTL, a.cfg.BackoffMax))
	defer cancel()
	var standby bool
	var timeout string
	err = conn.QueryRow(ctx, tryAdvisorySQL, a.cfg.Key, fmt.Sprint(a.cfg.TTL.Milliseconds())).Scan(&standby, &locked,
		&timeout)
	if err == nil && standby {
		err = ErrStandby
	}
	return locked, err
}

// advisoryHold is the lock in the hands of one session. Its connection belongs to run.
type advisoryHold struct {
	lock     *AdvisoryLock
	conn     *pgx.Conn
	deadline *client.Deadline

	ctx    context.Context // ended by cancel
	cancel context.CancelFunc
	ended  chan struct{} // closed when run has returned
	err    error         // why the lock is perhaps not free; set before ended is closed
}

// extend records that the session held the lock after sent. The server ends the session later than that.
func (h *advisoryHold) extend(sent time.Duration) {
	ttl := h.lock.cfg.TTL
	h.deadline.Extend(sent, ttl-ttl/10)
}

// run proves that the session holds the lock until the lock is released, or its connection breaks. A proof that the
// server refuses is tried again before the deadline. After the deadline, the session may still hold the lock: run keeps
// it until release, because the work may go on until then.
func (h *advisoryHold) run() {
	defer close(h.ended)
	defer closeConn(h.conn)
	for interval := h.lock.cfg.TTL / 3; h.ctx.Err() == nil; {
		err := h.wait(interval - rand.N(interval/5))
		if err == nil && h.ctx.Err() == nil {
			err = h.prove()
		}
		interval = h.lock.cfg.TTL / 3
		switch {
		case err == nil:
		case h.conn.IsClosed():
			h.deadline.End(err)
			if code(err) == "" { // the server did not say that it ends the session
				h.err = fmt.Errorf("release advisory lock %d: %w", h.lock.cfg.Key, err)
			}
			return
		default:
			if interval /= 4; errors.Is(err, errLockLost) || h.deadline.ValidFor() <= interval {
				h.deadline.End(err)
			}
		}
	}
	h.err = h.unlock()
}

// wait waits for d. It listens meanwhile, so that it learns immediately if the connection breaks.
func (h *advisoryHold) wait(d time.Duration) error {
	ctx, cancel := context.WithTimeout(h.ctx, d)
	defer cancel()
	var err error
	for ctx.Err() == nil && !h.conn.IsClosed() {
		_, err = h.conn.WaitForNotification(ctx)
	}
	if h.conn.IsClosed() {
		return errors.Join(errConnClosed, err)
	}
	return nil
}

// prove asks whether the session still holds the lock. Its timeout is the TTL, because the server has ended the
// session after that.
func (h *advisoryHold) prove() error {
	ctx, cancel := context.WithTimeout(context.Background(), h.lock.cfg.TTL)
	defer cancel()
	sent := h.deadline.Now()
	var holds bool
	err := h.conn.QueryRow(ctx, holdsAdvisorySQL, h.lock.cfg.Key).Scan(&holds)
	switch {
	case err != nil && ctx.Err() != nil:
		return errors.Join(errServerTimeout, err)
	case err != nil && !h.conn.IsClosed():
		return errors.Join(errProofRefused, err)
	case err != nil:
		return errors.Join(errConnClosed, err)
	case !holds:
		return errLockLost
	}
	h.extend(sent)
	return nil
}

// unlock frees the lock. If that fails, it is free when the server has ended the session.
func (h *advisoryHold) unlock() error {
	ctx, cancel := context.WithTimeout(context.Background(), min(releaseTimeout, h.lock.cfg.TTL))
	defer cancel()
	var unlocked bool
	if err := h.conn.QueryRow(ctx, unlockAdvisorySQL, h.lock.cfg.Key).Scan(&unlocked); err != nil {
		return fmt.Errorf("release advisory lock %d: %w", h.lock.cfg.Key, err)
	}
	return nil
}

// release frees the lock and returns when that is known. It is free if the server has said so, or that it ends the
// session. After another end of the connection, it is free when the server notices that end.
func (h *advisoryHold) release(ctx context.Context) error {
	h.deadline.End(errReleased)
	h.cancel()
	select {
	case <-h.ended:
		return h.err
	case <-ctx.Done():
		return fmt.Errorf("release advisory lock %d: %w", h.lock.cfg.Key, context.Cause(ctx))
	}
}
