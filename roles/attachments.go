package roles

import (
	"context"
	"sync"
	"time"

	"northstar/cluster"
	"northstar/state"
)

const (
	renewCoalesceWindow  = 50 * time.Millisecond  // a renewal due within this window is made now
	renewRetryDelay      = 100 * time.Millisecond // after a failed report, unless the leader changes
	drainPollInterval    = 500 * time.Millisecond // between two checks of whether this node is drained
	maxKeepAliveInterval = 10 * time.Second       // maximum time between events of a connection
)

// Reporter reports this node's connections to the leader. Methods may be called by any goroutine.
type Reporter interface {
	// Leader returns a context that ends when the leader or its term changes. Until then it returns the same context.
	Leader() context.Context
	// Renew reports connections, whose sessions the leader renews. It returns one result for each connection.
	// CodeNoLeader: nothing was renewed.
	Renew(ctx context.Context, credential string, list []cluster.Attachment) ([]cluster.AttachResult, error)
	// Detach reports closed connections. After an error it must be repeated.
	Detach(ctx context.Context, credential string, list []cluster.Attachment) error
	// LeaveThisNode reports whether clients must attach to another node.
	LeaveThisNode() bool
}

// Attachments are the attached connections of this node, with any leader. One goroutine renews all their sessions at
// the leader, in batches; another one reports closed connections.
type Attachments struct {
	leader  Reporter
	timeout time.Duration // of one report
	start   time.Time     // origin of the heap's keys

	mu     sync.Mutex
	due    dueHeap[*connection] // all attached connections without a renewal in flight
	closed []*connection        // to be reported

	wake   chan struct{} // capacity 1: the heap has changed
	detach chan struct{} // capacity 1: closed has changed
}

// connection is one of Attachments.
type connection struct {
	cluster.Connection
	slot
	ttl           time.Duration
	events        chan cluster.KeepAlive // capacity 1
	renewsSession bool                   // in the renewal in flight; used by renewLoop only

	// Attachments.mu guards the fields below.
	renewing    bool
	ended       bool      // so has the session: the leader need not know of the connection's end
	closedAt    time.Time // zero: it is attached
	sentAway    bool      // the client is not gone, and may be attached again
	lastEventAt time.Time
}

// NewAttachments returns Attachments without connections. A report may take as long as a partitioned leader keeps
// leading; timeoutMax is election.timeout-max.
func NewAttachments(r Reporter, timeoutMax time.Duration) *Attachments {
	return &Attachments{
		leader: r, timeout: 2*timeoutMax + time.Second, start: time.Now(),
		wake: make(chan struct{}, 1), detach: make(chan struct{}, 1),
	}
}

// Attach renews the session of c for the first time. Without an error, Run renews it until it is detached, and each
// renewal is an event. The first renewal continues when ctx ends: the leader may then have recorded the connection,
// whose end must be reported. CodeNoLeader: nothing happened, unless the leader has not answered.
func (h *Attachments) Attach(ctx context.Context, c cluster.Connection) (cluster.AttachedSession, error) {
	a := &connection{Connection: c, slot: slot{index: -1}, events: make(chan cluster.KeepAlive, 1)}
	leader, began := h.leader.Leader(), time.Now()
	results, err := h.renew(context.WithoutCancel(ctx), []*connection{a})
	if err != nil {
		return cluster.AttachedSession{}, err
	}
	if r := results[0]; r.Err != nil {
		return cluster.AttachedSession{}, r.Err
	}
	a.ttl = results[0].TTL
	a.events <- cluster.KeepAlive{RenewedAt: began, CommentOnly: a.Passive}
	h.mu.Lock()
	defer h.mu.Unlock()
	a.lastEventAt = began
	due := began.Add(cluster.KeepEvery(a.ttl))
	if h.leader.Leader() != leader { // the new leader got a report without this connection
		due = began
	}
	h.schedule(a, due)
	return cluster.AttachedSession{TTL: a.ttl, Events: a.events, Detach: func(lost bool) { h.remove(a, lost) }}, nil
}

// GiveUp reports the end of a connection that Attach has failed for, if the leader may have recorded it. The session
// keeps its TTL: its client was never told that it depends on the connection.
func (h *Attachments) GiveUp(c cluster.Connection) {
	const counted = 2 * maxKeepAliveInterval // for longer, no leader counts a connection that is not renewed
	h.remove(&connection{Connection: c, slot: slot{index: -1}, ttl: counted}, false)
}

// remove removes a connection, and reports its end.
func (h *Attachments) remove(a *connection, lost bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if a.index >= 0 {
		h.due.remove(a)
	}
	a.closedAt, a.sentAway = time.Now(), !lost
	if !a.renewing { // otherwise after the response to the renewal in flight, which must not overtake the end
		h.reportEnd(a)
	}
}

// reportEnd queues the report that a connection has closed. The session of a client that was sent away keeps its TTL,
// but the leader must forget the connection: it would take the next one for one of two. The caller holds mu.
func (h *Attachments) reportEnd(a *connection) {
	if a.ended {
		return
	}
	if a.sentAway {
		a.Grace = state.MaxSessionTTL
	}
	h.closed = append(h.closed, a)
	notify(h.detach)
}

// schedule plans the next renewal. The caller holds mu.
func (h *Attachments) schedule(a *connection, at time.Time) {
	a.key = at.Sub(h.start)
	h.due.push(a)
	notify(h.wake)
}

// Run renews and ends sessions until ctx ends.
func (h *Attachments) Run(ctx context.Context) error {
	var loops sync.WaitGroup
	loops.Go(func() { h.renewLoop(ctx) })
	loops.Go(func() { h.detachLoop(ctx) })
	loops.Wait()
	return nil
}

// renewLoop renews due sessions. After a leader change all are due: the new leader knows no connections.
func (h *Attachments) renewLoop(ctx context.Context) {
	leader := h.leader.Leader()
	for ctx.Err() == nil {
		if l := h.leader.Leader(); l != leader {
			leader = l
			h.allDue()
		}
		batch, wait := h.takeDue(time.Now())
		if batch == nil {
			pause(ctx, leader, h.wake, wait)
			continue
		}
		began := time.Now()
		results, err := h.renew(ctx, batch)
		h.finishRenewal(batch, began, results, err)
		if err != nil {
			pause(ctx, leader, nil, renewRetryDelay)
		}
	}
}

// pause waits for d, for wake, or for another leader.
func pause(ctx, leader context.Context, wake <-chan struct{}, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-wake:
	case <-leader.Done():
	case <-ctx.Done():
	}
}

func (h *Attachments) allDue() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, a := range h.due {
		a.key = 0 // equal keys keep the heap valid
	}
}

// takeDue removes due connections with the same credential. Without any it returns the time until the next one.
func (h *Attachments) takeDue(now time.Time) (batch []*connection, wait time.Duration) {
	draining := h.leader.LeaveThisNode()
	h.mu.Lock()
	defer h.mu.Unlock()
	limit := now.Sub(h.start) + renewCoalesceWindow
	for len(h.due) > 0 && len(batch) < cluster.MaxAttachBatch {
		a := h.due[0]
		if draining {
			h.due.remove(a)
			a.notify(cluster.KeepAlive{Draining: true})
			continue
		}
		if a.key > limit || len(batch) > 0 && a.Credential != batch[0].Credential {
			break
		}
		h.due.remove(a)
		a.renewing = true
		batch = append(batch, a)
	}
	wait = drainPollInterval
	if len(h.due) == 0 {
		wait = time.Hour // until a connection is added
	} else if batch == nil {
		wait = min(wait, max(0, h.due[0].key-now.Sub(h.start)))
	}
	return batch, wait
}

// notify replaces the event that the client has not received yet. The last event is never replaced.
func (a *connection) notify(k cluster.KeepAlive) {
	for {
		select {
		case a.events <- k:
			return
		default:
		}
		select {
		case old := <-a.events:
			if old.Last() {
				k = old
			}
		default:
		}
	}
}

// renew reports connections. A client that has not acknowledged the last event may be gone: it renews nothing.
func (h *Attachments) renew(ctx context.Context, batch []*connection) ([]cluster.AttachResult, error) {
	list := attachmentsOf(batch)
	for i, a := range batch {
		a.renewsSession = !a.Passive && !a.Unacknowledged()
		list[i].Passive = !a.renewsSession
	}
	ctx, cancel := h.bound(ctx)
	defer cancel()
	return h.leader.Renew(ctx, batch[0].Credential, list)
}

// bound returns the context of a call to the current leader.
func (h *Attachments) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, h.timeout)
	stop := context.AfterFunc(h.leader.Leader(), cancel)
	return ctx, func() { stop(); cancel() }
}

// finishRenewal notifies the clients of the results and schedules the next renewals.
func (h *Attachments) finishRenewal(batch []*connection, began time.Time, results []cluster.AttachResult, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for i, a := range batch {
		a.renewing = false
		switch {
		case !a.closedAt.IsZero():
			h.reportEnd(a)
		case err != nil:
			if began.Sub(a.lastEventAt) > maxKeepAliveInterval {
				a.lastEventAt = began
				a.notify(cluster.KeepAlive{CommentOnly: true})
			}
			h.schedule(a, began)
		case results[i].Err != nil:
			a.ended = results[i].Err.Code == cluster.CodeSessionEnded
			a.notify(cluster.KeepAlive{Err: results[i].Err})
		default:
			if a.renewsSession || a.Passive {
				a.lastEventAt = began
				a.notify(cluster.KeepAlive{RenewedAt: began, CommentOnly: a.Passive})
			}
			h.schedule(a, began.Add(cluster.KeepEvery(a.ttl)))
		}
	}
}

// detachLoop reports closed connections until the leader has confirmed them.
func (h *Attachments) detachLoop(ctx context.Context) {
	for ctx.Err() == nil {
		leader := h.leader.Leader()
		batch := h.takeClosed()
		if batch == nil {
			pause(ctx, leader, h.detach, time.Hour)
			continue
		}
		// The grace is complete even if the report is late: the client counts its grace from the last renewal, which
		// may be newer than this node's record.
		detaching, cancel := h.bound(ctx)
		err := h.leader.Detach(detaching, batch[0].Credential, attachmentsOf(batch))
		cancel()
		if err != nil {
			h.mu.Lock()
			h.closed = append(h.closed, batch...)
			h.mu.Unlock()
			pause(ctx, leader, nil, renewRetryDelay)
		}
	}
}

// takeClosed removes closed connections with one credential, and drops those whose session has expired.
func (h *Attachments) takeClosed() (batch []*connection) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for len(h.closed) > 0 && len(batch) < cluster.MaxAttachBatch {
		a := h.closed[0]
		if len(batch) > 0 && a.Credential != batch[0].Credential {
			break
		}
		h.closed = h.closed[1:]
		if time.Since(a.closedAt) <= a.ttl {
			batch = append(batch, a)
		}
	}
	if len(h.closed) == 0 {
		h.closed = nil
	}
	return batch
}

func attachmentsOf(batch []*connection) []cluster.Attachment {
	list := make([]cluster.Attachment, len(batch))
	for i, a := range batch {
		list[i] = a.Attachment
	}
	return list
}
