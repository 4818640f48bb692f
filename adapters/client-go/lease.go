package clientgo

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"northstar/client"
)

// LeaseConfig configures a Lease. All fields but Clock are required.
type LeaseConfig struct {
	// Lock is that of the processes of today, usually a resourcelock.LeaseLock. Its identity must be unique.
	Lock resourcelock.Interface
	// The durations of their LeaderElectionConfig.
	LeaseDuration, RenewDeadline, RetryPeriod time.Duration
	// Clock is the clock of the holder's deadline, as in client.SessionConfig.
	Clock func() time.Duration
}

// Lease is one candidate for a lock of client-go, such as a Lease object. It implements bridge.Lock, for a fleet that
// moves from client-go's leader election to a role.
type Lease struct {
	cfg     LeaseConfig
	running chan struct{} // capacity 1: held while a loop uses the lock
}

var (
	errLeaseLost  = errors.New("the lease was lost")
	errStillHeld  = errors.New("the work under the lease has not stopped")
	errNoLeader   = errors.New("the election has ended")
	errUnanswered = errors.New("the API server does not respond")
)

// NewLease checks the configuration. It sends nothing; Acquire does.
func NewLease(cfg LeaseConfig) (*Lease, error) {
	if cfg.Lock == nil {
		return nil, errors.New("lease configuration: Lock: missing")
	}
	if cfg.LeaseDuration < time.Second {
		return nil, fmt.Errorf("lease configuration: LeaseDuration: must be at least 1s (got %v)", cfg.LeaseDuration)
	}
	l := &Lease{cfg: cfg, running: make(chan struct{}, 1)}
	if _, err := leaderelection.NewLeaderElector(l.newHold().config()); err != nil {
		return nil, fmt.Errorf("lease configuration: %w", err)
	}
	return l, nil
}

func (l *Lease) newHold() *leaseHold {
	return &leaseHold{
		Interface: l.cfg.Lock, cfg: l.cfg, running: l.running, deadline: client.NewDeadline(l.cfg.Clock),
		started: make(chan struct{}), failed: make(chan error, 1), ended: make(chan struct{}),
	}
}

// Acquire implements bridge.Lock with client-go's own loop. It returns an error if the API server has not responded
// for RenewDeadline.
func (l *Lease) Acquire(ctx context.Context) (*client.Deadline, func(context.Context) error, error) {
	h := l.newHold()
	elector, err := leaderelection.NewLeaderElector(h.config())
	if err != nil {
		return nil, nil, err
	}
	select {
	case l.running <- struct{}{}: // a release that was not waited for has ended
	case <-ctx.Done():
		return nil, nil, fmt.Errorf("acquire %s: %w", l.cfg.Lock.Describe(), context.Cause(ctx))
	}
	var loop context.Context
	loop, h.cancel = context.WithCancel(context.WithoutCancel(ctx))
	go func() {
		defer close(h.ended)
		defer func() { <-l.running }()
		elector.Run(loop)
	}()
	select {
	case <-h.started:
		return h.deadline, h.release, nil
	case err = <-h.failed:
	case <-ctx.Done():
		err = context.Cause(ctx)
	case <-h.ended:
		err = errNoLeader
	}
	h.allowRelease()
	h.cancel()
	<-h.ended // its requests end with its context
	return nil, nil, fmt.Errorf("acquire %s: %w", l.cfg.Lock.Describe(), err)
}

// leaseHold is one campaign and the tenure that may follow. It is the lock of client-go's loop: it learns when each
// renewal was sent, and prevents the loop from releasing the lease before the work has stopped.
type leaseHold struct {
	resourcelock.Interface
	cfg      LeaseConfig
	running  chan struct{} // of the Lease
	deadline *client.Deadline
	cancel   context.CancelFunc
	started  chan struct{} // closed when the loop leads
	failed   chan error    // capacity 1
	ended    chan struct{} // closed when the loop has ended

	mu           sync.Mutex
	held         bool // a record with this identity was written
	free         bool // the last answer was a record without this identity, and none with it was sent since
	mayRelease   bool
	failingSince time.Time // zero: the last request was answered
}

func (h *leaseHold) config() leaderelection.LeaderElectionConfig {
	return leaderelection.LeaderElectionConfig{
		Lock: h, LeaseDuration: h.cfg.LeaseDuration, RenewDeadline: h.cfg.RenewDeadline, RetryPeriod: h.cfg.RetryPeriod,
		ReleaseOnCancel: true,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) { close(h.started) },
			OnStoppedLeading: func() { h.deadline.End(errLeaseLost) },
		},
	}
}

// Get implements resourcelock.Interface.
func (h *leaseHold) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	r, raw, err := h.Interface.Get(ctx)
	h.note(err)
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case apierrors.IsNotFound(err):
		h.free = true
	case err == nil:
		h.free = r.HolderIdentity != h.Identity()
		if h.free && h.held {
			h.deadline.End(errLeaseLost) // the loop would lead on until RenewDeadline
		}
	}
	return r, raw, err
}

// Create implements resourcelock.Interface.
func (h *leaseHold) Create(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	return h.write(r, func() error { return h.Interface.Create(ctx, r) })
}

// Update implements resourcelock.Interface.
func (h *leaseHold) Update(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	h.mu.Lock()
	mayRelease := h.mayRelease
	h.mu.Unlock()
	if r.HolderIdentity == "" && !mayRelease {
		return errStillHeld
	}
	return h.write(r, func() error { return h.Interface.Update(ctx, r) })
}

// write writes a record. The others wait for its whole seconds from when they have seen it, so from later than sent.
func (h *leaseHold) write(r resourcelock.LeaderElectionRecord, send func() error) error {
	h.mu.Lock()
	h.free = false
	h.mu.Unlock()
	sent := h.deadline.Now()
	err := send()
	h.note(err)
	if err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.free = r.HolderIdentity == ""; !h.free {
		h.held = true
		h.deadline.Extend(sent, time.Duration(r.LeaseDurationSeconds)*time.Second*9/10)
	}
	return nil
}

// note records whether the API server responds.
func (h *leaseHold) note(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	answered := err == nil || apierrors.IsNotFound(err) || apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err)
	switch {
	case answered:
		h.failingSince = time.Time{}
	case h.failingSince.IsZero():
		h.failingSince = time.Now()
	case time.Since(h.failingSince) >= h.cfg.RenewDeadline:
		select {
		case h.failed <- fmt.Errorf("%w: %w", errUnanswered, err):
		default: // it is known
		}
	}
}

func (h *leaseHold) allowRelease() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.mayRelease = true
}

// release ends the loop, which frees the lease, and returns when that is known.
func (h *leaseHold) release(ctx context.Context) error {
	h.allowRelease()
	h.cancel()
	var err error
	select {
	case <-h.ended:
		err = h.giveUp(ctx)
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	if err != nil {
		return fmt.Errorf("release %s: %w", h.Describe(), err)
	}
	return nil
}

// giveUp frees the lease if the loop has ended without that: it could not renew while the work still ran, or its own
// request has failed.
func (h *leaseHold) giveUp(ctx context.Context) error {
	select {
	case h.running <- struct{}{}:
		defer func() { <-h.running }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if h.isFree() {
		return nil
	}
	r, _, err := h.Get(ctx)
	switch {
	case h.isFree():
		return nil
	case err != nil:
		return err
	}
	now := metav1.Now()
	return h.Update(ctx, resourcelock.LeaderElectionRecord{
		LeaseDurationSeconds: 1, AcquireTime: now, RenewTime: now, LeaderTransitions: r.LeaderTransitions,
	})
}

func (h *leaseHold) isFree() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.free
}
