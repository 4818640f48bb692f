package client

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"sync/atomic"
	"time"

	"northstar/api/apiv1"
	"northstar/cluster"
)

const (
	attachHedge       = 250 * time.Millisecond // how long an attempt may be silent before another node is tried as well
	maxAttachAttempts = 3                      // in progress at the same time
	stableAfter       = time.Second            // a connection that lasted this long resets the back-off
)

// attach keeps a connection that the session depends on, until ctx or the session ends. It sends the result of the
// first attempt to first.
//
// The connection does not renew the session (hold=false): a process that is stopped while its machine runs must
// lose the session. attach closes no connection before it has a new one. It also keeps silent attempts open: if the
// node counts one as attached, closing it would end the session.
func (s *Session) attach(ctx context.Context, first chan<- error) {
	avoid, closeOld := "", func() {}
	defer func() { closeOld() }()
	for n := 0; ; n++ {
		opened, err := s.openAttached(ctx, avoid)
		if errors.Is(err, ErrSessionEnded) {
			s.markEnded(err)
		}
		if err == nil || isPermanent(err) {
			select {
			case first <- err:
			default: // only the first one counts
			}
		}
		if err == nil {
			closeOld()
			s.deadline.prove()
			replaced := new(atomic.Bool)
			avoid, closeOld = opened.node, func() { replaced.Store(true); opened.close() }
			began := time.Now()
			s.waitDisconnect(ctx, opened, replaced)
			if time.Since(began) > stableAfter {
				n = 0
			}
		}
		if ctx.Err() != nil || pause(ctx, 4*backoff(n, 0)) != nil {
			return
		}
	}
}

// waitDisconnect returns when the connection breaks, or when the node has been silent for too long to keep the
// session attached. It marks the session as ended if the node reports that. A connection that breaks without a word
// of the node may have ended the session, unless the session has a grace. Gates are then shut until it is attached
// again.
//
// The connection is watched until replaced is set, also after a silence.
func (s *Session) waitDisconnect(ctx context.Context, st *stream, replaced *atomic.Bool) {
	ended := make(chan struct{})
	var lastRead atomicTime
	lastRead.set(time.Now())
	// Comments count: an attached client receives one each time its node confirms the connection to the leader.
	reader := readerFunc(func(b []byte) (int, error) {
		n, err := st.res.Body.Read(b)
		lastRead.set(time.Now())
		return n, err
	})
	if !s.c.spawn(func() {
		_, _, err := s.c.readEvents(st, "attach session "+s.id, reader,
			func(event) (bool, error) { return false, nil })
		if errors.Is(err, ErrSessionEnded) {
			s.markEnded(err)
		} else if err != nil && s.cfg.Grace == 0 {
			s.deadline.doubt(replaced)
		}
		close(ended)
	}) {
		return
	}
	maxSilence := cluster.KeepEvery(s.ttl) * 3 / 2
	for left := maxSilence; left > 0; left = maxSilence - lastRead.since(time.Now()) {
		select {
		case <-ended:
			return
		case <-time.After(left):
		case <-ctx.Done():
			return
		}
	}
	s.c.nodes.markDown(st.node, time.Now())
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(b []byte) (int, error) { return f(b) }

type attachAttempt struct {
	node   string
	stream *stream
	v      classification
}

// openAttached opens the connection at a node. It tries up to maxAttachAttempts nodes at the same time if the first
// ones are silent. It closes the connections that it does not need.
func (s *Session) openAttached(ctx context.Context, avoid string) (*stream, error) {
	q := &call{
		op: "attach session " + s.id, retryClass: localRead, method: http.MethodGet,
		path:   sessionPath(s.id) + "/attach",
		query:  url.Values{"hold": {"false"}, "grace_ms": {strconv.FormatInt(s.cfg.Grace.Milliseconds(), 10)}},
		header: http.Header{"Accept": {apiv1.TypeEventStream}}, long: true,
	}
	results := make(chan attachAttempt, maxAttachAttempts)
	tried, inUse := map[string]int{avoid: 1}, map[string]bool{}
	busy := func(node string) bool { return inUse[node] }
	launch := func() {
		node := s.c.pick(q, tried, busy)
		if node == "" || len(inUse) == maxAttachAttempts {
			return
		}
		if s.c.spawn(func() {
			st, v := s.c.openAt(ctx, q, node, s.ttl)
			results <- attachAttempt{node, st, v}
		}) {
			tried[node]++
			inUse[node] = true
		}
	}
	defer func() {
		s.c.spawn(func() {
			for range len(inUse) {
				if o := <-results; o.v.err == nil {
					o.stream.close()
				}
			}
		})
	}()
	hedge := time.NewTicker(attachHedge)
	defer hedge.Stop()
	launch()
	last := ErrClosed
	for len(inUse) > 0 {
		select {
		case o := <-results:
			delete(inUse, o.node)
			if o.v.err == nil {
				return o.stream, nil
			}
			if last = o.v.err; !o.v.retryable {
				return nil, last
			}
			if len(inUse) == 0 && s.c.nodes.hasUntried(time.Now(), tried, busy) {
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
