package postgres

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"

	"northstar/client"
)

var (
	errConnClosed    = fmt.Errorf("%w: connection closed", client.ErrRoleLost)
	errLockLost      = fmt.Errorf("%w: row or advisory lock owned by another session", client.ErrRoleLost)
	errServerTimeout = fmt.Errorf("%w: server does not respond", client.ErrRoleLost)
)

// lease is the hold of one connection on the role, from the election to the end of its session. Its connection
// belongs to run.
type lease struct {
	e        *Elector
	conn     *pgx.Conn
	session  string
	deadline *client.Deadline
	holder   client.Holder
	tenure   *client.Leadership // the newest one; Campaign's own

	ctx               context.Context // ended by cancel
	cancel            context.CancelFunc
	heartbeatRequests chan chan error // requests for an immediate heartbeat
	ended             chan struct{}   // closed when run has returned
}

// resume returns the tenure of a live lease, after a heartbeat.
func (l *lease) resume(ctx context.Context) (*client.Leadership, error) {
	proven := make(chan error, 1)
	select {
	case l.heartbeatRequests <- proven:
	case <-l.ended:
		return nil, errConnClosed
	case <-ctx.Done():
		return nil, l.e.campaignError(context.Cause(ctx))
	}
	select {
	case err := <-proven:
		if err != nil {
			return nil, err
		}
		if l.tenure != nil && l.tenure.Cause() == nil {
			return l.tenure, nil
		}
		l.tenure, err = l.deadline.Begin(l.holder, l.resign)
		return l.tenure, err
	case <-ctx.Done():
		return nil, l.e.campaignError(context.Cause(ctx))
	}
}

// end ends the lease locally; run releases the role.
func (l *lease) end(cause error) { l.deadline.End(cause) }

// resign releases the role and waits until that is known.
func (l *lease) resign(ctx context.Context) error {
	l.end(client.ErrResigned)
	select {
	case <-l.ended:
		return l.e.clearStale(ctx, nil)
	case <-ctx.Done():
		return fmt.Errorf("release role %s: %w", l.e.cfg.Role, context.Cause(ctx))
	}
}

// run sends heartbeats until the lease ends, the connection breaks, or the row names another session. Then it
// releases the role if it can.
func (l *lease) run() {
	defer close(l.ended)
	defer l.cancel()
	expiry := make(chan struct{})
	go func() { defer close(expiry); l.deadline.Run(l.ctx) }()
	defer func() { <-expiry }()
	defer l.cancel()
	defer closeConn(l.conn)
	for {
		interval := l.e.cfg.TTL / 3
		proof, err := l.waitNext(interval - rand.N(interval/5))
		if l.deadline.Err() != nil {
			reply(proof, l.deadline.Err())
			l.release()
			return
		}
		if err == nil {
			err = l.heartbeat()
		}
		reply(proof, err)
		if err != nil {
			l.end(err)
			return
		}
	}
}

func reply(proof chan<- error, err error) {
	if proof != nil {
		proof <- err
	}
}

// waitNext waits until the next heartbeat is due or requested, or the lease ends. It listens for notifications
// meanwhile, so that it learns immediately if the connection breaks; err is set then.
func (l *lease) waitNext(d time.Duration) (proof chan<- error, err error) {
	ctx, cancel := context.WithTimeout(l.ctx, d)
	defer cancel()
	woken := make(chan struct{})
	go func() {
		defer close(woken)
		defer cancel()
		select {
		case proof = <-l.heartbeatRequests:
		case <-l.deadline.Done():
		case <-ctx.Done():
		}
	}()
	for ctx.Err() == nil && err == nil {
		_, err = l.conn.WaitForNotification(ctx)
	}
	cancel()
	<-woken
	if l.conn.IsClosed() {
		return proof, errors.Join(errConnClosed, err)
	}
	return proof, nil
}

// heartbeat proves that the role is held. Its timeout is the TTL, because the server has ended the session after
// that.
func (l *lease) heartbeat() error {
	ctx, cancel := context.WithTimeout(l.ctx, l.e.cfg.TTL)
	defer cancel()
	sent := l.deadline.Now()
	done, err := l.conn.Exec(ctx, l.e.sql.heartbeat, l.e.cfg.Role, l.session, l.e.cfg.LockKey)
	switch {
	case err != nil && ctx.Err() != nil:
		return errors.Join(errServerTimeout, err)
	case err != nil:
		return errors.Join(errConnClosed, err)
	case done.RowsAffected() != 1:
		return errLockLost
	}
	l.deadline.Extend(sent, l.e.lifetime())
	return nil
}

// release clears the row and then frees the lock, so that the next holder need not wait.
func (l *lease) release() {
	ctx, cancel := context.WithTimeout(l.ctx, min(releaseTimeout, l.e.cfg.TTL))
	defer cancel()
	if _, err := l.conn.Exec(ctx, l.e.sql.release, l.e.cfg.Role, []string{l.session}, causeResigned); err != nil {
		return // another connection clears it
	}
	l.e.removeStale(l.session)
	_, _ = l.conn.Exec(ctx, l.e.sql.unlock, l.e.cfg.Role, l.e.cfg.LockKey) // the end of the session also frees it
}
