// Package etcdlock holds an election of etcd's clientv3/concurrency, as a lock from which package bridge moves a fleet
// to a role of NorthStar.
package etcdlock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"northstar/client"
)

// Config configures an Election. Client and Prefix are required.
type Config struct {
	Client *clientv3.Client
	Prefix string // as in concurrency.NewElection
	Value  string // as in Campaign; "": client.ProcessName
	// TTL is how long the lease lasts without a renewal, in whole seconds. 0: 10 s.
	TTL time.Duration
	// Clock is the clock of the holder's deadline, as in client.SessionConfig.
	Clock func() time.Duration
}

const (
	defaultTTL     = 10 * time.Second
	releaseTimeout = 5 * time.Second // of an abandoned campaign
)

var (
	errLeaseEnded = errors.New("the etcd lease has ended")
	errKeyDeleted = errors.New("the election's key was deleted")
	errReleased   = errors.New("the election was resigned")
)

// Election is one candidate for an election in etcd. It implements bridge.Lock.
type Election struct{ cfg Config }

// New checks the configuration. It sends nothing; Acquire does.
func New(cfg Config) (*Election, error) {
	cfg.TTL = cmp.Or(cfg.TTL, defaultTTL)
	cfg.Value = cmp.Or(cfg.Value, client.ProcessName())
	switch {
	case cfg.Client == nil:
		return nil, errors.New("etcd election: Client: missing")
	case cfg.Prefix == "":
		return nil, errors.New("etcd election: Prefix: empty")
	case cfg.TTL < time.Second || cfg.TTL%time.Second != 0:
		return nil, fmt.Errorf("etcd election: TTL: must be whole seconds, at least 1s (got %v)", cfg.TTL)
	}
	return &Election{cfg}, nil
}

// Acquire implements bridge.Lock. It waits in etcd's queue. It returns an error if the lease ends meanwhile, for
// example because etcd does not respond.
func (e *Election) Acquire(ctx context.Context) (*client.Deadline, func(context.Context) error, error) {
	h, err := e.campaign(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("campaign for %s in etcd: %w", e.cfg.Prefix, err)
	}
	return h.deadline, h.release, nil
}

// hold is one candidacy, and the tenure that may follow.
type hold struct {
	cfg      Config
	etcd     *clientv3.Client // the requests of this candidacy, which end with cancel
	cancel   context.CancelFunc
	lease    clientv3.LeaseID
	election *concurrency.Election
	deadline *client.Deadline
	ended    chan struct{} // closed when run has returned
}

func (e *Election) campaign(ctx context.Context) (*hold, error) {
	h := &hold{cfg: e.cfg, deadline: client.NewDeadline(e.cfg.Clock), ended: make(chan struct{})}
	own, cancel := context.WithCancel(context.WithoutCancel(ctx))
	h.cancel = cancel
	h.etcd = clientv3.NewCtxClient(own)
	h.etcd.KV, h.etcd.Lease, h.etcd.Watcher = e.cfg.Client.KV, e.cfg.Client.Lease, e.cfg.Client.Watcher
	granted, err := h.etcd.Grant(ctx, int64(e.cfg.TTL/time.Second))
	if err != nil {
		cancel()
		return nil, err
	}
	h.lease = granted.ID
	revision, err := h.win(ctx)
	if err != nil {
		h.abandon(ctx)
		return nil, err
	}
	go h.run(own, h.etcd.Watch(own, h.election.Key(), clientv3.WithRev(revision+1)))
	return h, nil
}

// win campaigns with the lease. It returns a revision at which this candidate was elected.
func (h *hold) win(ctx context.Context) (revision int64, err error) {
	// The session keeps the lease alive. That proves nothing here: it does not say when a renewal was sent.
	session, err := concurrency.NewSession(h.etcd, concurrency.WithLease(h.lease))
	if err != nil {
		return 0, err
	}
	if err := h.wait(ctx, session); err != nil {
		return 0, err
	}
	return h.prove(ctx)
}

// wait waits in the queue while the lease lives.
func (h *hold) wait(ctx context.Context, session *concurrency.Session) error {
	waiting, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	defer context.AfterFunc(session.Ctx(), func() { giveUp(errLeaseEnded) })()
	// Campaign resigns without a limit if waiting ends.
	limit := context.AfterFunc(waiting, func() { time.AfterFunc(releaseTimeout, h.cancel) })
	h.election = concurrency.NewElection(session, h.cfg.Prefix)
	if err := h.election.Campaign(waiting, h.cfg.Value); err != nil {
		return errors.Join(err, context.Cause(waiting))
	}
	limit()
	return nil
}

// prove renews the lease and asks for the election's key: Campaign and the session do not notice that the key is gone.
// It returns the revision at which the key was there.
func (h *hold) prove(ctx context.Context) (revision int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, h.cfg.TTL)
	defer cancel()
	sent := h.deadline.Now()
	renewed, err := h.etcd.KeepAliveOnce(ctx, h.lease)
	if err != nil {
		return 0, err
	}
	got, err := h.etcd.Get(ctx, h.election.Key())
	if err != nil {
		return 0, err
	}
	if len(got.Kvs) == 0 || got.Kvs[0].CreateRevision != h.election.Rev() {
		return 0, errKeyDeleted
	}
	h.deadline.Extend(sent, time.Duration(renewed.TTL)*time.Second*9/10)
	return got.Header.Revision, nil
}

// run proves the tenure until it is lost or released. While etcd does not respond, the deadline comes nearer.
func (h *hold) run(ctx context.Context, changes clientv3.WatchChan) {
	defer close(h.ended)
	for {
		select {
		case <-ctx.Done():
			return
		case change, ok := <-changes:
			if !ok {
				changes = nil // a proof finds the key deleted
			}
			for _, e := range change.Events {
				if e.Type == clientv3.EventTypeDelete {
					h.deadline.End(errKeyDeleted)
					return
				}
			}
		case <-time.After(h.cfg.TTL / 3):
			_, err := h.prove(ctx)
			switch {
			case errors.Is(err, rpctypes.ErrLeaseNotFound):
				h.deadline.End(errLeaseEnded)
				return
			case errors.Is(err, errKeyDeleted):
				h.deadline.End(err)
				return
			}
		}
	}
}

// release resigns by the end of the lease.
func (h *hold) release(ctx context.Context) error {
	h.deadline.End(errReleased)
	h.cancel()
	<-h.ended // its requests end with cancel
	return h.revoke(ctx)
}

func (h *hold) revoke(ctx context.Context) error {
	_, err := h.cfg.Client.Revoke(ctx, h.lease)
	if err != nil && !errors.Is(err, rpctypes.ErrLeaseNotFound) {
		return fmt.Errorf("resign from %s in etcd: %w", h.cfg.Prefix, err)
	}
	return nil
}

// abandon ends a candidacy that has failed, so that others in the queue do not wait for its lease.
func (h *hold) abandon(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
	defer cancel()
	h.cancel()
	_ = h.revoke(ctx) // the lease ends after its TTL
}
