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
	keepAtOnce   = 400                    // sessions that one message to the leader renews
	keepTogether = 50 * time.Millisecond  // what is due within this is due now
	keepRetry    = 100 * time.Millisecond // when the leader did not answer, unless it changes
	keepLook     = 500 * time.Millisecond // between two looks at whether this node is drained
	silentMost   = 10 * time.Second       // a connection is told nothing
)

// attachments are the connections of this node that hold sessions. One goroutine
// renews all of them, in batches, at the leader; another tells it which have
// ended.
type attachments struct {
	s *Server

	mu    sync.Mutex
	due   dueStreams // all that are open and not in flight
	ended []*attachment
	next  uint64
	boot  string

	wake chan struct{} // capacity 1: due has changed
	drop chan struct{} // capacity 1: ended has changed
}

// attachment is one connection.
type attachment struct {
	cluster.Attachment
	ttl    time.Duration
	since  time.Time // when the request came
	socket net.Conn  // nil: not known
	auth   string    // what the leader believes, where it believes tokens only
	news   chan beat // capacity 1
	holds  bool      // the renewal on its way renews the session; of the goroutine that makes it

	// attachments.mu guards the rest.
	at     time.Time // due
	index  int       // in the heap; -1: not in it
	flying bool      // being renewed
	gone   bool      // the connection has ended
	told   time.Time // when it was last told anything
	lost   time.Time // when it ended
}

func newAttachments(s *Server) *attachments {
	return &attachments{s: s, boot: s.deps.Facts.BootID, wake: make(chan struct{}, 1), drop: make(chan struct{}, 1)}
}

// add makes a connection, which is not renewed yet.
func (h *attachments) add(c *call, grace time.Duration, passive bool) *attachment {
	h.mu.Lock()
	h.next++
	n := h.next
	h.mu.Unlock()
	a := &attachment{
		Attachment: cluster.Attachment{Session: c.param, Stream: streamID(h.boot, n), Grace: grace, Passive: passive},
		since:      time.Now(), socket: socketOf(c.r.Context()), news: make(chan beat, 1), index: -1,
	}
	if h.s.forward.passToken {
		a.auth = c.r.Header.Get("Authorization")
	}
	return a
}

// open renews the session for the first time, which shows that it lives, and has
// it renewed from then on. Without a leader it waits as other requests do. A client
// that hangs up meanwhile does not break that off: should the leader have taken the
// connection for one that stands, it is to be told that it has ended.
func (h *attachments) open(ctx context.Context, a *attachment) error {
	hold := holding{s: h.s}
	for {
		if h.moving() {
			return errMoving(h.s.deps.Facts.ID)
		}
		hold.v = h.s.leader.known()
		began := time.Now()
		kept, err := h.keep(context.WithoutCancel(ctx), []*attachment{a})
		switch {
		case err == nil && a.holds && kept.parted[a.Session].Role != "":
			return partedError(kept.parted[a.Session])
		case err == nil && kept.ttl[a.Session] == 0:
			return sessionGone(a.Session)
		case err == nil:
			a.ttl = kept.ttl[a.Session]
			a.news <- beat{renewed: began, silent: a.Passive}
			limitSilence(a.socket, a.ttl)
			h.mu.Lock()
			defer h.mu.Unlock()
			a.told = began
			due := began.Add(cluster.KeepEvery(a.ttl))
			if h.s.leader.known() != hold.v { // and the new leader was told of others only
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
	a.gone = true
	if !lost {
		return
	}
	a.lost = time.Now()
	if !a.flying { // else when the renewal on its way is answered: it must not come after the end
		h.tell(a)
	}
}

// tell has the leader told of the end of a connection. The caller holds mu.
func (h *attachments) tell(a *attachment) {
	h.ended = append(h.ended, a)
	notify(h.drop)
}

func (h *attachments) schedule(a *attachment, at time.Time) {
	a.at = at
	heap.Push(&h.due, a)
	notify(h.wake)
}

// moving says whether clients are to attach to another node.
func (h *attachments) moving() bool {
	if h.s.draining.Load() {
		return true
	}
	m, ok := h.s.cluster.View().Member(h.s.deps.Facts.ID)
	return ok && m.Lifecycle == cluster.Draining
}

// run renews and ends sessions until ctx ends.
func (h *attachments) run(ctx context.Context) {
	var loops sync.WaitGroup
	loops.Go(func() { h.keepAll(ctx) })
	loops.Go(func() { h.dropAll(ctx) })
	loops.Wait()
}

// keepAll renews what is due. When the leader changes, everything is: the new one
// knows of no connection.
func (h *attachments) keepAll(ctx context.Context) {
	leader := h.s.leader.known()
	for ctx.Err() == nil {
		if v := h.s.leader.known(); v != leader {
			leader = v
			h.allDue()
		}
		batch, wait := h.takeDue(time.Now())
		if batch == nil {
			h.pause(ctx, leader, h.wake, wait)
			continue
		}
		began := time.Now()
		kept, err := h.keep(ctx, batch)
		h.settle(batch, began, kept, err)
		if err != nil {
			h.pause(ctx, leader, nil, keepRetry)
		}
	}
}

// pause waits for d, or for news.
func (h *attachments) pause(ctx context.Context, leader *leaderView, wake <-chan struct{}, d time.Duration) {
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
		a.at = now // all alike: it stays a heap
	}
}

// takeDue takes connections whose sessions are to be renewed now, all with the
// same credentials; nil when there are none for the time that it gives.
func (h *attachments) takeDue(now time.Time) (batch []*attachment, wait time.Duration) {
	moving := h.moving()
	h.mu.Lock()
	defer h.mu.Unlock()
	for len(h.due) > 0 && len(batch) < keepAtOnce {
		a := h.due[0]
		if moving {
			heap.Pop(&h.due)
			a.say(beat{moving: true})
			continue
		}
		if a.at.After(now.Add(keepTogether)) || len(batch) > 0 && a.auth != batch[0].auth {
			break
		}
		heap.Pop(&h.due)
		a.flying = true
		batch = append(batch, a)
	}
	wait = keepLook
	if len(h.due) == 0 {
		wait = time.Hour // until one comes
	} else if batch == nil {
		wait = min(wait, max(0, h.due[0].at.Sub(now)))
	}
	return batch, wait
}

// say tells a connection something, in the place of what it has not read yet: the
// newest counts, and the last one is the last.
func (a *attachment) say(b beat) {
	for {
		select {
		case a.news <- b:
			return
		default:
		}
		select {
		case old := <-a.news:
			if old.end() {
				b = old
			}
		default:
		}
	}
}

// settle tells the connections what came of a renewal, and plans the next.
func (h *attachments) settle(batch []*attachment, began time.Time, kept keptSessions, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, a := range batch {
		a.flying = false
		switch {
		case a.gone:
			if !a.lost.IsZero() {
				h.tell(a)
			}
		case err != nil:
			if began.Sub(a.told) > silentMost {
				a.told = began
				a.say(beat{silent: true})
			}
			h.schedule(a, began)
		case a.holds && kept.parted[a.Session].Role != "":
			a.say(beat{parted: kept.parted[a.Session]})
		case kept.ttl[a.Session] == 0:
			a.say(beat{ended: true})
		default:
			if a.holds || a.Passive {
				a.told = began
				a.say(beat{renewed: began, silent: a.Passive})
			}
			h.schedule(a, began.Add(cluster.KeepEvery(a.ttl)))
		}
	}
}

// keptSessions is what became of the renewal of a batch.
type keptSessions struct {
	ttl    map[string]time.Duration    // of those that live, but for parted ones
	parted map[string]state.Revocation // a role was taken from it: connections that hold it did not renew it
}

// keep renews the sessions of connections, here or at the leader.
func (h *attachments) keep(ctx context.Context, batch []*attachment) (keptSessions, error) {
	list := make([]cluster.Attachment, len(batch))
	for i, a := range batch {
		list[i] = a.Attachment
		// A client that has not acknowledged the last keep-alive may be gone: its
		// session gets no more time until it has.
		a.holds = !a.Passive && !unacknowledged(a.socket)
		list[i].Passive = !a.holds
	}
	leader := h.s.leader.known()
	ctx, cancel := h.bound(ctx, leader)
	defer cancel()
	kept := keptSessions{ttl: make(map[string]time.Duration, len(batch)), parted: map[string]state.Revocation{}}
	var err error
	if leader.id == h.s.deps.Facts.ID {
		var got state.Renewed
		got, err = h.s.deps.Sessions.Keep(ctx, list)
		for _, s := range got.Alive {
			kept.ttl[s.ID] = s.TTL
		}
		for _, p := range got.Revoked {
			kept.parted[p.Session] = p
		}
	} else {
		var out apiv1.AttachedResult
		out, err = h.ask(ctx, leader, batch[0].auth, apiv1.Attached{Keep: wireAttachments(list)})
		for _, s := range out.Kept {
			kept.ttl[s.SessionID] = time.Duration(s.TTLMS) * time.Millisecond
		}
		for _, p := range out.Parted {
			kept.parted[p.SessionID] = state.Revocation{Session: p.SessionID, Role: p.Role, Token: p.Token}
		}
	}
	return kept, err
}

// bound gives a call to the leader as long as a leader that is cut off leads on,
// and ends it when the leader changes.
func (h *attachments) bound(ctx context.Context, leader *leaderView) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, 2*h.s.deps.TimeoutMax+time.Second)
	ctx, cancel2 := endSoonAfter(ctx, leader.changed, 0)
	return ctx, func() { cancel2(); cancel() }
}

// dropAll tells the leader of connections that have ended. It gives up on those
// whose TTL has passed meanwhile: their sessions have ended by that.
func (h *attachments) dropAll(ctx context.Context) {
	for ctx.Err() == nil {
		leader := h.s.leader.known()
		batch := h.takeEnded()
		if batch == nil {
			h.pause(ctx, leader, h.drop, time.Hour)
			continue
		}
		if err := h.dropSome(ctx, leader, batch); err != nil {
			h.again(batch)
			h.pause(ctx, leader, nil, keepRetry)
		}
	}
}

func (h *attachments) takeEnded() (batch []*attachment) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for len(h.ended) > 0 && len(batch) < keepAtOnce {
		a := h.ended[0]
		if len(batch) > 0 && a.auth != batch[0].auth {
			break
		}
		h.ended = h.ended[1:]
		if time.Since(a.lost) <= a.ttl {
			batch = append(batch, a)
		}
	}
	if len(h.ended) == 0 {
		h.ended = nil
	}
	return batch
}

func (h *attachments) again(batch []*attachment) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ended = append(h.ended, batch...)
}

func (h *attachments) dropSome(ctx context.Context, leader *leaderView, batch []*attachment) error {
	list := make([]cluster.Attachment, len(batch))
	for i, a := range batch {
		// The whole grace, however late the leader learns of it: the client counts
		// on it from its last renewal, which may have come since.
		list[i] = a.Attachment
	}
	ctx, cancel := h.bound(ctx, leader)
	defer cancel()
	if leader.id == h.s.deps.Facts.ID {
		return h.s.deps.Sessions.Drop(ctx, list)
	}
	_, err := h.ask(ctx, leader, batch[0].auth, apiv1.Attached{Drop: wireAttachments(list)})
	return err
}

// ask sends a message about connections to the leader.
func (h *attachments) ask(ctx context.Context, leader *leaderView, auth string, in apiv1.Attached) (out apiv1.AttachedResult, err error) {
	addr := h.s.httpAddress(leader.id)
	if leader.id == "" || addr == "" {
		return out, noLeader("node %s knows no leader", h.s.deps.Facts.ID)
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
	defer drain(resp.Body)
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
func (h dueStreams) Less(i, j int) bool { return h[i].at.Before(h[j].at) }
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
