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
	"northstar/telemetry"
)

const (
	keyExternalLock    = "failover.external-lock"
	minExternalTTL     = 2 * time.Second // of the lock, without a heartbeat
	lockReleaseTimeout = time.Second     // for giving it back
	lockRetryDelay     = time.Second     // after an error that does not pass by itself
)

// externalLock is the lock outside the cluster that a leader needs besides to serve
// writes, for those who want two systems to agree on who leads. Each reign campaigns
// for it; a lock that is lost is campaigned for again.
type externalLock struct {
	cfg       *Config
	clusterID func() string
	gate      client.Gate
	journal   *telemetry.Journal
	log       hclog.Logger
}

func (n *Node) newExternalLock() *externalLock {
	return &externalLock{
		cfg: &n.cfg, clusterID: func() string { return n.consensus.View().ClusterID() },
		journal: n.journal, log: n.log.Named("external-lock"),
	}
}

// newExternalElector makes this node's candidate for the lock of a cluster.
func newExternalElector(c *Config, clusterID string) (*postgres.Elector, error) {
	url := c.Failover.ExternalLock
	if !strings.HasPrefix(url, "postgres://") && !strings.HasPrefix(url, "postgresql://") {
		return nil, errors.New("want a URL that begins with postgres://")
	}
	return postgres.New(postgres.Config{
		DSN: url, Role: "northstar.leader." + clusterID, Name: string(c.ID), TTL: max(minExternalTTL, 4*c.Election.TimeoutMax),
		BackoffMin: 20 * time.Millisecond, BackoffMax: 200 * time.Millisecond,
	})
}

// mayWrite says why this node, should it lead, may not serve writes.
func (x *externalLock) mayWrite() error {
	if err := x.gate.Require(); err != nil {
		return fmt.Errorf("this leader does not hold the external lock (%s): %w", keyExternalLock, err)
	}
	return nil
}

// runWhileLeader holds the lock, or campaigns for it, for one reign.
func (x *externalLock) runWhileLeader(ctx context.Context, term uint64) {
	e, err := newExternalElector(x.cfg, x.clusterID())
	if err != nil { // it was good when the node started
		x.log.Error("no external lock", "error", err)
		return
	}
	for ctx.Err() == nil {
		l, err := e.Campaign(ctx)
		if err != nil {
			x.wait(ctx, err)
			continue
		}
		x.gate.Bind(l)
		x.event(term, "this leader holds the external lock", map[string]any{"token": l.Token})
		select {
		case <-l.Done():
			x.event(term, "this leader has lost the external lock and serves no writes", map[string]any{"cause": l.Cause().Error()})
		case <-ctx.Done():
		}
	}
	leave, cancel := context.WithTimeout(context.WithoutCancel(ctx), lockReleaseTimeout)
	defer cancel()
	// This shuts the gate before it gives the lock back.
	if err := e.Close(leave); err != nil {
		x.log.Warn("the next leader has to wait for the external lock", "error", err)
	}
}

// wait says what is wrong, and waits before the next try.
func (x *externalLock) wait(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return
	}
	x.log.Error("no external lock: trying again", "error", err)
	select {
	case <-time.After(lockRetryDelay):
	case <-ctx.Done():
	}
}

func (x *externalLock) event(term uint64, message string, fields map[string]any) {
	x.log.Info(message, "term", term)
	x.journal.Append(cluster.Event{Type: "failover", Term: term, Message: message, Fields: fields})
}
