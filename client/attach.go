package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"northstar/api/apiv1"
	"northstar/cluster"
)

const (
	attachHedge       = 250 * time.Millisecond // how long an opening may be silent before another node is tried besides
	maxAttachAttempts = 3                      // openings under way
	stableAfter       = time.Second            // a connection that stood for this long was none of a series that fails
)

// attach keeps a connection on which the session depends, until ctx ends or the
// session does. It says on first what became of the first opening.
//
// The connection does not renew the session (hold=false): a process that is stopped
// while its machine goes on must lose it. No connection is given up before another
// one stands, nor an opening that is silent: should the node have taken it for
// attached, its end would be that of the session.
func (s *Session) attach(ctx context.Context, first chan<- error) {
	var old *stream
	drop := func(x *stream) {
		if x != nil {
			x.cancel(nil)
			x.res.Body.Close()
		}
	}
	defer func() { drop(old) }()
	for n := 0; ; n++ {
		avoid := ""
		if old != nil {
			avoid = old.node
		}
		opened, err := s.openAttached(ctx, avoid)
		if errors.Is(err, ErrSessionEnded) {
			s.markEnded(err)
		}
		if err == nil || isPermanent(err) {
			trySend(first, err)
		}
		if err == nil {
			drop(old)
			old = opened
			began := time.Now()
			s.waitDisconnect(ctx, opened)
			if time.Since(began) > stableAfter {
				n = 0
			}
		}
		if ctx.Err() != nil || pause(ctx, 4*backoff(n, 0)) != nil {
			return
		}
	}
}

// trySend sends the first error only.
func trySend(c chan<- error, err error) {
	select {
	case c <- err:
	default:
	}
}

// waitDisconnect returns when the connection stands no more, or is silent for longer than
// nodes are while they can assure the leader of it. It ends the session when the
// node says that it has ended.
func (s *Session) waitDisconnect(ctx context.Context, st *stream) {
	over := make(chan error, 1)
	heard := &activityReader{r: st.res.Body}
	heard.lastRead.set(time.Now())
	if !s.c.spawn(func() { over <- s.readAttached(st, heard) }) {
		return
	}
	quiet := cluster.KeepEvery(s.ttl) * 3 / 2
	timer := time.NewTimer(quiet)
	defer timer.Stop()
	for {
		select {
		case err := <-over:
			if errors.Is(err, ErrSessionEnded) {
				s.markEnded(err)
			}
			return
		case <-timer.C:
			left := quiet - heard.lastRead.since(time.Now())
			if left <= 0 {
				s.c.nodes.markDown(st.node, time.Now())
				return
			}
			timer.Reset(left)
		case <-ctx.Done():
			return
		}
	}
}

// readAttached reads until the node says something that ends the connection, or
// that breaks.
func (s *Session) readAttached(st *stream, from io.Reader) error {
	events := newEventReader(from)
	for {
		e, err := events.next()
		switch {
		case err != nil:
			if !errors.Is(err, io.EOF) && st.ctx.Err() == nil {
				s.c.nodes.markDown(st.node, time.Now())
			}
			return err
		case e.name == apiv1.EventDraining:
			return nil
		case e.name == apiv1.EventError:
			err, _ := streamError("attach session "+s.id, st.node, e.data)
			return err
		}
	}
}

// activityReader notes when something was last read, comments too: a node tells them to an
// attached client as often as it assures the leader that the connection stands.
type activityReader struct {
	r        io.Reader
	lastRead atomicTime
}

func (h *activityReader) Read(b []byte) (int, error) {
	n, err := h.r.Read(b)
	h.lastRead.set(time.Now())
	return n, err
}

type attachAttempt struct {
	node   string
	stream *stream
	v      classification
}

// openAttached opens the connection at some node, a second and a third one besides
// when the first are silent. Those that are not needed are ended when one stands.
func (s *Session) openAttached(ctx context.Context, avoid string) (*stream, error) {
	q := &call{
		op: "attach session " + s.id, retryClass: localRead, method: http.MethodGet, path: sessionPath(s.id) + "/attach",
		query:  url.Values{"hold": {"false"}, "grace_ms": {strconv.FormatInt(s.cfg.Grace.Milliseconds(), 10)}},
		header: http.Header{"Accept": {apiv1.TypeEventStream}},
	}
	results := make(chan attachAttempt, maxAttachAttempts)
	flying, tried, busy := 0, map[string]int{}, map[string]bool{}
	if avoid != "" {
		tried[avoid] = 1
	}
	launch := func() {
		node := s.c.nodes.pick(time.Now(), "", tried, func(n string) bool { return busy[n] })
		if node == "" || flying == maxAttachAttempts {
			return
		}
		ok := s.c.spawn(func() {
			st, v := s.c.openAt(ctx, q, node, s.ttl)
			results <- attachAttempt{node, st, v}
		})
		if ok {
			tried[node]++
			busy[node] = true
			flying++
		}
	}
	defer func() { s.c.spawn(func() { cancelOthers(results, flying) }) }()
	hedge := time.NewTicker(attachHedge)
	defer hedge.Stop()
	launch()
	last := ErrClosed
	for flying > 0 {
		select {
		case o := <-results:
			flying--
			busy[o.node] = false
			if o.v.err == nil {
				return o.stream, nil
			}
			if last = o.v.err; !o.v.retryable {
				return nil, last
			}
			if flying == 0 && s.c.nodes.hasUntried(time.Now(), tried, func(n string) bool { return busy[n] }) {
				launch()
			}
		case <-hedge.C:
			launch()
		case <-ctx.Done():
			return nil, fmt.Errorf("%s: %w", q.op, context.Cause(ctx))
		}
	}
	return nil, last
}

// cancelOthers ends the connections that n openings still give.
func cancelOthers(results <-chan attachAttempt, n int) {
	for range n {
		if o := <-results; o.v.err == nil {
			o.stream.cancel(nil)
			o.stream.res.Body.Close()
		}
	}
}
