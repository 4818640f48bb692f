package roles

import (
	"context"
	"sync"
	"time"

	"northstar/cluster"
)

const (
	renewCoalesceWindow  = 50 * time.Millisecond  // a renewal that is due within this is due now
	renewRetryDelay      = 100 * time.Millisecond // when the leader did not answer, unless it changes
	drainPollInterval    = 500 * time.Millisecond // between two looks at whether this node is drained
	maxKeepAliveInterval = 10 * time.Second       // in which a connection gets no event
)

// Reporter reports this node's connections to the leader. Methods may be called by any
// goroutine.
type Reporter interface {
	// Leader returns a context that ends when the leader or its term changes. While
	// neither does, it is the same one.
	Leader() context.Context
	// Renew reports connections, whose sessions the leader renews. It returns one
	// result for each. CodeNoLeader: nothing was renewed.
	Renew(ctx context.Context, credential string, list []cluster.Attachment) ([]cluster.AttachResult, error)
	// Detach reports connections that have ended. With an error it is to be repeated.
	Detach(ctx context.Context, credential string, list []cluster.Attachment) error
	// LeaveThisNode reports whether clients have to attach to another node.
	LeaveThisNode() bool
}

// Attachments are the connections of this node that hold sessions, whichever node
// leads. One goroutine renews the sessions of all of them, in batches, at the leader;
// another one reports the connections that have ended.
type Attachments struct {
	leader  Reporter
	timeout time.Duration // of one report
	start   time.Time     // keys of the heap count from it

	mu     sync.Mutex
	due    dueHeap[*connection] // all that are attached and not being renewed
	closed []*connection        // to be reported

	wake   chan struct{} // capacity 1: due has changed
	detach chan struct{} // capacity 1: closed has changed
}

// connection is one of Attachments.
type connection struct {
	cluster.Connection
	slot
	ttl           time.Duration
	events        chan cluster.KeepAlive // capacity 1
	renewsSession bool                   // in the renewal on its way; of the goroutine that makes it

	// Attachments.mu guards the rest.
	renewing    bool
	detached    bool
	lastEventAt time.Time
	lostAt      time.Time // zero: the leader need not know
}

// NewAttachments returns Attachments without a connection. A report lasts as long as a
// leader that is cut off leads on; timeoutMax is election.timeout-max.
func NewAttachments(r Reporter, timeoutMax time.Duration) *Attachments {
	return &Attachments{
		leader: r, timeout: 2*timeoutMax + time.Second, start: time.Now(),
		wake: make(chan struct{}, 1), detach: make(chan struct{}, 1),
	}
}

// Attach renews the session of c for the first time. Without an error it is renewed from
// then on, and each renewal is an event, until it is detached. The first renewal goes on
// when ctx ends: the leader may count on a connection, and then its end has to be
// reported. CodeNoLeader: nothing happened.
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
	if h.leader.Leader() != leader { // and the new leader was told of others only
		due = began
	}
	h.schedule(a, due)
	return cluster.AttachedSession{TTL: a.ttl, Events: a.events, Detach: func(lost bool) { h.remove(a, lost) }}, nil
}

// remove ends a connection. The end of one whose client is gone is reported.
func (h *Attachments) remove(a *connection, lost bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if a.index >= 0 {
		h.due.remove(a)
	}
	a.detached = true
	if !lost {
		return
	}
	a.lostAt = time.Now()
	if !a.renewing { // otherwise when the renewal on its way is answered: it must not come after the end
		h.reportEnd(a)
	}
}

// reportEnd has the leader told of the end of a connection. The caller holds mu.
func (h *Attachments) reportEnd(a *connection) {
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

// renewLoop renews what is due. When the leader changes, everything is: the new one
// knows of no connection.
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
		a.key = 0 // all alike: it stays a heap
	}
}

// takeDue takes connections whose sessions are to be renewed now, all with the same
// credential. Without any it returns how long there is none.
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
		wait = time.Hour // until one comes
	} else if batch == nil {
		wait = min(wait, max(0, h.due[0].key-now.Sub(h.start)))
	}
	return batch, wait
}

// notify replaces the event that the client has not got yet. The last event stays.
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

// renew reports connections to the leader. The session of a client that has not
// acknowledged the last event is not renewed until it has: the client may be gone.
func (h *Attachments) renew(ctx context.Context, batch []*connection) ([]cluster.AttachResult, error) {
	list := make([]cluster.Attachment, len(batch))
	for i, a := range batch {
		list[i] = a.Attachment
		a.renewsSession = !a.Passive && !a.Unacknowledged()
		list[i].Passive = !a.renewsSession
	}
	ctx, cancel := h.bound(ctx)
	defer cancel()
	return h.leader.Renew(ctx, batch[0].Credential, list)
}

// bound returns the context of a call to the present leader.
func (h *Attachments) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, h.timeout)
	stop := context.AfterFunc(h.leader.Leader(), cancel)
	return ctx, func() { stop(); cancel() }
}

// finishRenewal tells the clients what became of a renewal, and plans the next.
func (h *Attachments) finishRenewal(batch []*connection, began time.Time, results []cluster.AttachResult, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for i, a := range batch {
		a.renewing = false
		switch {
		case a.detached:
			if !a.lostAt.IsZero() {
				h.reportEnd(a)
			}
		case err != nil:
			if began.Sub(a.lastEventAt) > maxKeepAliveInterval {
				a.lastEventAt = began
				a.notify(cluster.KeepAlive{CommentOnly: true})
			}
			h.schedule(a, began)
		case results[i].Err != nil:
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

// detachLoop reports connections that have ended until the leader has heard it.
func (h *Attachments) detachLoop(ctx context.Context) {
	for ctx.Err() == nil {
		leader := h.leader.Leader()
		batch := h.takeClosed()
		if batch == nil {
			pause(ctx, leader, h.detach, time.Hour)
			continue
		}
		if err := h.detachBatch(ctx, batch); err != nil {
			h.mu.Lock()
			h.closed = append(h.closed, batch...)
			h.mu.Unlock()
			pause(ctx, leader, nil, renewRetryDelay)
		}
	}
}

// takeClosed takes connections to be reported, all with the same credential. It leaves
// out those whose TTL has passed: their sessions have ended by that.
func (h *Attachments) takeClosed() (batch []*connection) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for len(h.closed) > 0 && len(batch) < cluster.MaxAttachBatch {
		a := h.closed[0]
		if len(batch) > 0 && a.Credential != batch[0].Credential {
			break
		}
		h.closed = h.closed[1:]
		if time.Since(a.lostAt) <= a.ttl {
			batch = append(batch, a)
		}
	}
	if len(h.closed) == 0 {
		h.closed = nil
	}
	return batch
}

// detachBatch reports with the whole grace, however late the leader learns of the end: the
// client counts on the grace from its last renewal, which may have come since.
func (h *Attachments) detachBatch(ctx context.Context, batch []*connection) error {
	list := make([]cluster.Attachment, len(batch))
	for i, a := range batch {
		list[i] = a.Attachment
	}
	ctx, cancel := h.bound(ctx)
	defer cancel()
	return h.leader.Detach(ctx, batch[0].Credential, list)
}
