package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"northstar/cluster"
)

// DefaultReportInterval is the interval of a registration's reports if its configuration has none.
const DefaultReportInterval = 5 * time.Second

// Statuses of an application node. A node is dead when its session has ended.
const (
	NodeJoining  = "joining"
	NodeActive   = "active" // it accepts work
	NodeDraining = "draining"
	NodeDead     = "dead"
)

// RegistrationConfig configures a Registration. Only ID is required.
type RegistrationConfig struct {
	ID string // of the application node
	// Node is what others see of it. Status is the first status, NodeActive if it is empty. SessionID and Load are set
	// by the registration.
	Node NodePut
	// Load, if not nil, returns the load for each report.
	Load func() Load
	// Interval is the time between two reports. 0: DefaultReportInterval.
	Interval time.Duration
	// StatusChanged, if not nil, is called when an operator has changed the status of the node, for example to
	// NodeDraining. It must return soon. A change in the moment of a report can be overwritten by it.
	StatusChanged func(status string)
	Session       SessionConfig
}

// Registration keeps an application node in the registry of the cluster: it renews the session, reports the load, and
// registers the node again after a lost session or a removal. Its methods are safe for concurrent use.
type Registration struct {
	c    *Client
	cfg  RegistrationConfig
	stop context.CancelFunc

	closed atomic.Bool // Close was called: no report begins

	// reporting has capacity 1 and is held during a report; it guards registered and reported.
	reporting  chan struct{}
	registered bool   // a report has succeeded
	reported   string // the status of the last report

	mu      sync.Mutex
	session *Session
	status  string // wanted by this process, or adopted from an operator
}

// Register registers an application node, and keeps it registered until Close.
func (c *Client) Register(ctx context.Context, cfg RegistrationConfig) (*Registration, error) {
	session, err := cfg.Session.check()
	switch {
	case err != nil:
		return nil, fmt.Errorf("session configuration: %w", err)
	case cfg.ID == "":
		return nil, errors.New("registration: ID: empty")
	case cfg.Interval < 0:
		return nil, fmt.Errorf("registration: Interval: must be 0 or more (got %v)", cfg.Interval)
	}
	cfg.Session, cfg.Interval = session, cmp.Or(cfg.Interval, DefaultReportInterval)
	r := &Registration{
		c: c, cfg: cfg, status: cmp.Or(cfg.Node.Status, NodeActive), reporting: make(chan struct{}, 1),
	}
	if err := r.report(ctx); err != nil {
		r.abandon()
		return nil, err
	}
	run, stop := context.WithCancel(c.ctx)
	r.stop = stop
	if !c.spawn(func() { r.run(run) }) {
		stop()
		return nil, ErrClosed
	}
	return r, nil
}

// Session returns the current session of the registration. It is another one after a session was lost.
func (r *Registration) Session() *Session {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.session
}

// Status returns the status of the node, as this process or an operator has set it last.
func (r *Registration) Status() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.status
}

// errNodeTaken is the error of a report while another live session has the node.
var errNodeTaken = errors.New("another session has registered this node")

// errRegistrationClosed is the error of a report after Close.
var errRegistrationClosed = errors.New("the registration is closed")

// SetStatus changes the status, and returns when the registry has it. After an error, later reports try again. It
// returns an error while another process has registered the node: that one's status stays.
func (r *Registration) SetStatus(ctx context.Context, status string) error {
	r.mu.Lock()
	r.status = status
	r.mu.Unlock()
	return r.report(ctx)
}

// Drain sets the status to NodeDraining, so that others give the node no new work. Finish the work in flight after it,
// then call Close.
func (r *Registration) Drain(ctx context.Context) error { return r.SetStatus(ctx, NodeDraining) }

// Close removes the node from the registry, unless another process has registered it since, and ends its session.
// After an error, the node is dead after the session's TTL at the latest. StatusChanged may call Close.
func (r *Registration) Close(ctx context.Context) error {
	r.closed.Store(true)
	r.stop()
	select {
	case r.reporting <- struct{}{}: // held by no call of StatusChanged
		defer func() { <-r.reporting }()
	case <-ctx.Done():
		r.abandon()
		return fmt.Errorf("remove node %s: %w", r.cfg.ID, context.Cause(ctx))
	}
	known, err := r.c.GetNode(ctx, r.cfg.ID)
	if err == nil && (known.SessionID == "" || known.SessionID == r.Session().ID()) {
		err = r.c.RemoveNode(ctx, r.cfg.ID)
	}
	if errors.Is(err, ErrNotFound) {
		err = nil
	}
	return errors.Join(err, r.Session().Close(ctx))
}

// abandon ends the session of a registration that has failed.
func (r *Registration) abandon() {
	if s := r.Session(); s != nil {
		s.closeAsync()
	}
}

// run reports at each interval, immediately after a lost session, and again soon after a failure that may pass soon.
func (r *Registration) run(ctx context.Context) {
	var err error
	for fails := 0; ctx.Err() == nil; err = r.report(ctx) {
		switch {
		case err == nil, errors.Is(err, errNodeTaken):
			fails = 0
			select {
			case <-time.After(jitter(r.cfg.Interval)):
			case <-r.Session().Done():
			case <-ctx.Done():
			}
		case isPermanent(err), cluster.IsCode(err, cluster.CodeQuotaExceeded): // until an operator changes the cause
			_ = pause(ctx, jitter(min(r.cfg.Interval, DefaultReportInterval)))
		default:
			fails++
			_ = pause(ctx, backoff(fails, 0))
		}
	}
}

// report brings the registry and this registration into agreement, and tells the owner of an operator's change.
func (r *Registration) report(ctx context.Context) error {
	ctx, cancel := r.c.callContext(ctx)
	defer cancel()
	select {
	case r.reporting <- struct{}{}:
	case <-ctx.Done():
		return fmt.Errorf("register node %s: %w", r.cfg.ID, context.Cause(ctx))
	}
	if r.closed.Load() {
		<-r.reporting
		return fmt.Errorf("register node %s: %w", r.cfg.ID, errRegistrationClosed)
	}
	adopted, err := r.reportOnce(ctx)
	if r.closed.Load() { // perhaps Close could not wait
		r.abandon()
	}
	<-r.reporting
	if adopted != "" && r.cfg.StatusChanged != nil {
		r.cfg.StatusChanged(adopted)
	}
	return err
}

// reportOnce makes one report. It returns the status that an operator has set, unless this process has changed it too.
// If another live session has registered the node since, that one stays: it is of a process that was started later.
func (r *Registration) reportOnce(ctx context.Context) (adopted string, err error) {
	s, err := r.liveSession(ctx)
	if err != nil {
		return "", err
	}
	if r.registered {
		known, err := r.c.GetNode(ctx, r.cfg.ID)
		switch {
		case errors.Is(err, ErrNotFound):
		case err != nil:
			return "", err
		case known.SessionID == s.ID():
			adopted = r.adopt(known.Status)
		case known.SessionID != "":
			return "", fmt.Errorf("register node %s: %w", r.cfg.ID, errNodeTaken)
		}
	}
	put := r.cfg.Node
	put.SessionID, put.Status, put.Load = s.ID(), r.Status(), nil
	if r.cfg.Load != nil {
		load := r.cfg.Load()
		put.Load = &load
	}
	if _, err := r.c.PutNode(ctx, r.cfg.ID, put); err != nil {
		return adopted, err
	}
	r.registered, r.reported = true, put.Status
	return adopted, nil
}

// adopt takes over a status that neither this process nor its last report has set, and returns it; otherwise "".
func (r *Registration) adopt(status string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.status != r.reported || status == r.reported {
		return ""
	}
	r.status, r.reported = status, status
	return status
}

// liveSession returns the session, or a new one if that has ended.
func (r *Registration) liveSession(ctx context.Context) (*Session, error) {
	if s := r.Session(); s != nil && s.Err() == nil {
		return s, nil
	}
	s, err := r.c.NewSession(ctx, r.cfg.Session)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.session = s
	return s, nil
}
