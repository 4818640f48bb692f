package node

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"

	"northstar/client"
	"northstar/client/postgres"
	"northstar/cluster"
)

const (
	keyExternalLock    = "failover.external-lock"
	minExternalTTL     = 2 * time.Second // TTL of the lock, without a heartbeat
	lockReleaseTimeout = time.Second     // for releasing the lock
	lockRetryDelay     = time.Second     // after an error that needs a change of the configuration
)

// externalLock is a lock outside the cluster that a leader must also hold to serve writes, for users who want two
// systems to agree on the leader. Each leadership campaigns for it, also when it loses the lock.
type externalLock struct {
	n    *Node
	gate client.Gate
}

// newExternalElector returns this node's elector for the lock of a cluster.
func newExternalElector(c *Config, clusterID string) (*postgres.Elector, error) {
	url := c.Failover.ExternalLock
	if !strings.HasPrefix(url, "postgres://") && !strings.HasPrefix(url, "postgresql://") {
		return nil, errors.New("must be a URL that begins with postgres:// or postgresql://")
	}
	return postgres.New(postgres.Config{
		DSN: url, Role: "northstar.leader." + clusterID, Name: string(c.ID), TTL: max(minExternalTTL,
			4*c.Election.TimeoutMax),
		BackoffMin: 20 * time.Millisecond, BackoffMax: 200 * time.Millisecond,
	})
}

// mayWrite returns why this node must not serve writes as leader, or "".
func (x *externalLock) mayWrite() error {
	if err := x.gate.Require(); err != nil {
		return fmt.Errorf("this leader does not hold the external lock (%s): %w", keyExternalLock, err)
	}
	return nil
}

// runWhileLeader campaigns for the lock and holds it for one leadership.
func (x *externalLock) runWhileLeader(ctx context.Context, term uint64) {
	log := x.n.log.Named("external-lock")
	e, err := newExternalElector(&x.n.cfg, x.n.consensus.View().ClusterID())
	if err != nil { // the URL was valid when the node started
		log.Error("no external lock", "error", err)
		return
	}
	for ctx.Err() == nil {
		l, err := e.Campaign(ctx)
		if err != nil {
			awaitLockRetry(ctx, log, err)
			continue
		}
		x.gate.Bind(l)
		x.event(term, "this leader holds the external lock", map[string]any{"token": l.Token})
		select {
		case <-l.Done():
			x.event(term, "this leader has lost the external lock and serves no writes",
				map[string]any{"cause": l.Cause().Error()})
		case <-ctx.Done():
		}
	}
	leave, cancel := context.WithTimeout(context.WithoutCancel(ctx), lockReleaseTimeout)
	defer cancel()
	// Close closes the write gate before it releases the lock.
	if err := e.Close(leave); err != nil {
		log.Warn("external lock not released: the next leader must wait for its TTL", "error", err)
	}
}

// awaitLockRetry logs the problem and waits before the next attempt.
func awaitLockRetry(ctx context.Context, log hclog.Logger, err error) {
	if ctx.Err() == nil {
		log.Error("cannot acquire the external lock, retrying", "error", err)
		sleep(ctx, lockRetryDelay)
	}
}

func (x *externalLock) event(term uint64, message string, fields map[string]any) {
	x.n.eventLog.Append(cluster.Event{Type: "failover", Term: term, Message: message, Fields: fields})
}
