package api

import (
	"bytes"
	"container/heap"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"northstar/api/apiv1"
	"northstar/cluster"
	"northstar/state"
)

const (
	maxRenewBatch        = 400                    // sessions that one message to the leader renews
	renewCoalesceWindow  = 50 * time.Millisecond  // what is due within this is due now
	renewRetryDelay      = 100 * time.Millisecond // when the leader did not answer, unless it changes
	drainPollInterval    = 500 * time.Millisecond // between two looks at whether this node is drained
	maxKeepAliveInterval = 10 * time.Second       // a connection is told nothing
)

// attachments are the connections of this node that hold sessions. One goroutine
// renews all of them, in batches, at the leader; another tells it which have
// ended.
type attachments struct {
	s *Server

	mu          sync.Mutex
	due         dueStreams // all that are open and not in flight
	detachQueue []*attachment
	next        uint64
	bootID      string

	wakeRenew  chan struct{} // capacity 1: due has changed
	wakeDetach chan struct{} // capacity 1: ended has changed
}

// attachment is one connection.
type attachment struct {
	cluster.Attachment
	ttl           time.Duration
	requestedAt   time.Time           // when the request came
	socket        net.Conn            // nil: not known
	auth          string              // what the leader believes, where it believes tokens only
	events        chan keepAliveEvent // capacity 1
	renewsSession bool                // the renewal on its way renews the session; of the goroutine that makes it

	// attachments.mu guards the rest.
	dueAt          time.Time // due
	index          int       // in the heap; -1: not in it
	renewing       bool      // being renewed
	closed         bool      // the connection has ended
	lastEventAt    time.Time // when it was last told anything
	disconnectedAt time.Time // when it ended
}

func newAttachments(s *Server) *attachments {
	return &attachments{s: s, bootID: s.deps.Node.BootID, wakeRenew: make(chan struct{}, 1), wakeDetach: make(chan struct{}, 1)}
}

// add makes a connection, which is not renewed yet.
func (h *attachments) add(c *request, grace time.Duration, passive bool) *attachment {
	h.mu.Lock()
	h.next++
	n := h.next
	h.mu.Unlock()
	a := &attachment{
		Attachment:  cluster.Attachment{Session: c.param, Stream: streamID(h.bootID, n), Grace: grace, Passive: passive},
		requestedAt: time.Now(), socket: socketOf(c.r.Context()), events: make(chan keepAliveEvent, 1), index: -1,
	}
	if h.s.forward.forwardToken {
		a.auth = c.r.Header.Get("Authorization")
	}
	return a
}

// open renews the session for the first time, which shows that it lives, and has
// it renewed from then on. Without a leader it waits as other requests do. A client
// that hangs up meanwhile does not break that off: should the leader have taken the
// connection for one that stands, it is to be told that it has ended.
func (h *attachments) open(ctx context.Context, a *attachment) error {
	hold := leaderWait{s: h.s}
	for {
		if h.draining() {
			return errNodeDraining(h.s.deps.Node.ID)
		}
		hold.v = h.s.leader.snapshot()
		began := time.Now()
		kept, err := h.renewBatch(context.WithoutCancel(ctx), []*attachment{a})
		switch {
		case err == nil && a.renewsSession && kept.revoked[a.Session].Role != "":
			return roleRevokedError(kept.revoked[a.Session])
		case err == nil && kept.ttl[a.Session] == 0:
			return sessionNotFound(a.Session)
		case err == nil:
			a.ttl = kept.ttl[a.Session]
			a.events <- keepAliveEvent{renewed: began, commentOnly: a.Passive}
			setTCPUserTimeout(a.socket, a.ttl)
			h.mu.Lock()
			defer h.mu.Unlock()
			a.lastEventAt = began
			due := began.Add(cluster.KeepEvery(a.ttl))
			if h.s.leader.snapshot() != hold.v { // and the new leader was told of others only
				due = began
			}
			h.schedule(a, due)
			return nil
		case !cluster.IsCode(err, cluster.CodeNoLeader):
			return err
		}
		if held := hold.wait(ctx, err); held != nil {
			return held
		}
	}
}

// close ends a connection. The leader is told when lost: its client is gone.
func (h *attachments) close(a *attachment, lost bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if a.index >= 0 {
		heap.Remove(&h.due, a.index)
	}
	a.closed = true
	if !lost {
		return
	}
	a.disconnectedAt = time.Now()
	if !a.renewing { // else when the renewal on its way is answered: it must not come after the end
		h.queueDetach(a)
	}
}

// queueDetach has the leader told of the end of a connection. The caller holds mu.
func (h *attachments) queueDetach(a *attachment) {
	h.detachQueue = append(h.detachQueue, a)
	notify(h.wakeDetach)
}

func (h *attachments) schedule(a *attachment, at time.Time) {
	a.dueAt = at
	heap.Push(&h.due, a)
	notify(h.wakeRenew)
}

// draining says whether clients are to attach to another node.
func (h *attachments) draining() bool {
	if h.s.draining.Load() {
		return true
	}
	m, ok := h.s.cluster.View().Member(h.s.deps.Node.ID)
	return ok && m.Lifecycle == cluster.Draining
}

// stream renews and ends sessions until ctx ends.
func (h *attachments) run(ctx context.Context) {
	var loops sync.WaitGroup
	loops.Go(func() { h.renewLoop(ctx) })
	loops.Go(func() { h.detachLoop(ctx) })
	loops.Wait()
}

// renewLoop renews what is due. When the leader changes, everything is: the new one
// knows of no connection.
func (h *attachments) renewLoop(ctx context.Context) {
	leader := h.s.leader.snapshot()
	for ctx.Err() == nil {
		if v := h.s.leader.snapshot(); v != leader {
			leader = v
			h.allDue()
		}
		batch, wait := h.nextRenewBatch(time.Now())
		if batch == nil {
			h.wait(ctx, leader, h.wakeRenew, wait)
			continue
		}
		began := time.Now()
		kept, err := h.renewBatch(ctx, batch)
		h.finishRenewal(batch, began, kept, err)
		if err != nil {
			h.wait(ctx, leader, nil, renewRetryDelay)
		}
	}
}

// wait waits for d, or for news.
func (h *attachments) wait(ctx context.Context, leader *leaderSnapshot, wake <-chan struct{}, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-wake:
	case <-leader.changed.Done():
	case <-ctx.Done():
	}
}

func (h *attachments) allDue() {
	now := time.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, a := range h.due {
		a.dueAt = now // all alike: it stays a heap
	}
}

// nextRenewBatch takes connections whose sessions are to be renewed now, all with the
// same credentials; nil when there are none for the time that it gives.
func (h *attachments) nextRenewBatch(now time.Time) (batch []*attachment, wait time.Duration) {
	moving := h.draining()
	h.mu.Lock()
	defer h.mu.Unlock()
	for len(h.due) > 0 && len(batch) < maxRenewBatch {
		a := h.due[0]
		if moving {
			heap.Pop(&h.due)
			a.notify(keepAliveEvent{draining: true})
			continue
		}
		if a.dueAt.After(now.Add(renewCoalesceWindow)) || len(batch) > 0 && a.auth != batch[0].auth {
			break
		}
		heap.Pop(&h.due)
		a.renewing = true
		batch = append(batch, a)
	}
	wait = drainPollInterval
	if len(h.due) == 0 {
		wait = time.Hour // until one comes
	} else if batch == nil {
		wait = min(wait, max(0, h.due[0].dueAt.Sub(now)))
	}
	return batch, wait
}

// notify tells a connection something, in the place of what it has not read yet: the
// newest counts, and the last one is the last.
func (a *attachment) notify(b keepAliveEvent) {
	for {
		select {
		case a.events <- b:
			return
		default:
		}
		select {
		case old := <-a.events:
			if old.isFinal() {
				b = old
			}
		default:
		}
	}
}

// verifyPlan tells the connections what came of a renewal, and plans the next.
func (h *attachments) finishRenewal(batch []*attachment, began time.Time, kept renewResult, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, a := range batch {
		a.renewing = false
		switch {
		case a.closed:
			if !a.disconnectedAt.IsZero() {
				h.queueDetach(a)
			}
		case err != nil:
			if began.Sub(a.lastEventAt) > maxKeepAliveInterval {
				a.lastEventAt = began
				a.notify(keepAliveEvent{commentOnly: true})
			}
			h.schedule(a, began)
		case a.renewsSession && kept.revoked[a.Session].Role != "":
			a.notify(keepAliveEvent{revoked: kept.revoked[a.Session]})
		case kept.ttl[a.Session] == 0:
			a.notify(keepAliveEvent{ended: true})
		default:
			if a.renewsSession || a.Passive {
				a.lastEventAt = began
				a.notify(keepAliveEvent{renewed: began, commentOnly: a.Passive})
			}
			h.schedule(a, began.Add(cluster.KeepEvery(a.ttl)))
		}
	}
}

// renewResult is what became of the renewal of a batch.
type renewResult struct {
	ttl     map[string]time.Duration    // of those that live, but for parted ones
	revoked map[string]state.Revocation // a role was taken from it: connections that hold it did not renew it
}

// renewBatch renews the sessions of connections, here or at the leader.
func (h *attachments) renewBatch(ctx context.Context, batch []*attachment) (renewResult, error) {
	list := make([]cluster.Attachment, len(batch))
	for i, a := range batch {
		list[i] = a.Attachment
		// A client that has not acknowledged the last keep-alive may be gone: its
		// session gets no more time until it has.
		a.renewsSession = !a.Passive && !hasUnacknowledgedData(a.socket)
		list[i].Passive = !a.renewsSession
	}
	leader := h.s.leader.snapshot()
	ctx, cancel := h.leaderContext(ctx, leader)
	defer cancel()
	kept := renewResult{ttl: make(map[string]time.Duration, len(batch)), revoked: map[string]state.Revocation{}}
	var err error
	if leader.id == h.s.deps.Node.ID {
		var got state.Renewed
		got, err = h.s.deps.Sessions.RenewAttached(ctx, list)
		for _, s := range got.Alive {
			kept.ttl[s.ID] = s.TTL
		}
		for _, p := range got.Revoked {
			kept.revoked[p.Session] = p
		}
	} else {
		var out apiv1.AttachReportResult
		out, err = h.callLeader(ctx, leader, batch[0].auth, apiv1.AttachReport{Live: wireAttachments(list)})
		for _, s := range out.Renewed {
			kept.ttl[s.SessionID] = time.Duration(s.TTLMS) * time.Millisecond
		}
		for _, p := range out.Revoked {
			kept.revoked[p.SessionID] = state.Revocation{Session: p.SessionID, Role: p.Role, Token: p.Token}
		}
	}
	return kept, err
}

// leaderContext gives a call to the leader as long as a leader that is cut off leads on,
// and ends it when the leader changes.
func (h *attachments) leaderContext(ctx context.Context, leader *leaderSnapshot) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, 2*h.s.deps.TimeoutMax+time.Second)
	ctx, cancel2 := withGraceAfter(ctx, leader.changed, 0)
	return ctx, func() { cancel2(); cancel() }
}

// detachLoop tells the leader of connections that have ended. It gives up on those
// whose TTL has passed meanwhile: their sessions have ended by that.
func (h *attachments) detachLoop(ctx context.Context) {
	for ctx.Err() == nil {
		leader := h.s.leader.snapshot()
		batch := h.nextDetachBatch()
		if batch == nil {
			h.wait(ctx, leader, h.wakeDetach, time.Hour)
			continue
		}
		if err := h.detachBatch(ctx, leader, batch); err != nil {
			h.requeueDetach(batch)
			h.wait(ctx, leader, nil, renewRetryDelay)
		}
	}
}

func (h *attachments) nextDetachBatch() (batch []*attachment) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for len(h.detachQueue) > 0 && len(batch) < maxRenewBatch {
		a := h.detachQueue[0]
		if len(batch) > 0 && a.auth != batch[0].auth {
			break
		}
		h.detachQueue = h.detachQueue[1:]
		if time.Since(a.disconnectedAt) <= a.ttl {
			batch = append(batch, a)
		}
	}
	if len(h.detachQueue) == 0 {
		h.detachQueue = nil
	}
	return batch
}

func (h *attachments) requeueDetach(batch []*attachment) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.detachQueue = append(h.detachQueue, batch...)
}

func (h *attachments) detachBatch(ctx context.Context, leader *leaderSnapshot, batch []*attachment) error {
	list := make([]cluster.Attachment, len(batch))
	for i, a := range batch {
		// The whole grace, however late the leader learns of it: the client counts
		// on it from its last renewal, which may have come since.
		list[i] = a.Attachment
	}
	ctx, cancel := h.leaderContext(ctx, leader)
	defer cancel()
	if leader.id == h.s.deps.Node.ID {
		return h.s.deps.Sessions.Detach(ctx, list)
	}
	_, err := h.callLeader(ctx, leader, batch[0].auth, apiv1.AttachReport{Closed: wireAttachments(list)})
	return err
}

// callLeader sends a message about connections to the leader.
func (h *attachments) callLeader(ctx context.Context, leader *leaderSnapshot, auth string, in apiv1.AttachReport) (out apiv1.AttachReportResult, err error) {
	addr := h.s.httpAddress(leader.id)
	if leader.id == "" || addr == "" {
		return out, noLeader("node %s knows no leader", h.s.deps.Node.ID)
	}
	body, err := json.Marshal(in)
	if err != nil {
		return out, err
	}
	f := h.s.forward
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, f.scheme+"://"+addr+apiv1.PathAttached, bytes.NewReader(body))
	if err != nil {
		return out, err
	}
	req.Header.Set("Content-Type", apiv1.TypeJSON)
	req.Header.Set(apiv1.HeaderForwardedBy, string(f.self))
	if auth != "" {
		req.Header.Set("Authorization", auth)
	}
	resp, err := f.transport.RoundTrip(req)
	if err != nil {
		return out, noLeader("leader %s at %s did not answer: %w", leader.id, addr, err)
	}
	defer discardBody(resp.Body)
	data, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	switch {
	case err != nil:
		return out, noLeader("leader %s broke off its answer: %w", leader.id, err)
	case resp.StatusCode != http.StatusOK:
		return out, noLeader("node %s, which was taken for the leader, answered %s", leader.id, resp.Status)
	}
	if err := json.Unmarshal(data, &out); err != nil {
		return out, fmt.Errorf("answer of leader %s: %w", leader.id, err)
	}
	return out, nil
}

// dueStreams is a heap of connections by when they are due.
type dueStreams []*attachment

func (h dueStreams) Len() int           { return len(h) }
func (h dueStreams) Less(i, j int) bool { return h[i].dueAt.Before(h[j].dueAt) }
func (h dueStreams) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

// Push is for container/heap.
func (h *dueStreams) Push(x any) {
	a := x.(*attachment)
	a.index = len(*h)
	*h = append(*h, a)
}

// Pop is for container/heap.
func (h *dueStreams) Pop() any {
	old := *h
	a := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	a.index = -1
	return a
}

func notify(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
