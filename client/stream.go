package client

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"math/rand/v2"
	"net/http"
	"sync/atomic"
	"time"

	"northstar/api/apiv1"
	"northstar/cluster"
)

const (
	minOpenTimeout  = 500 * time.Millisecond // for a node to start its response; doubled after each timeout
	maxOpenTimeout  = 10 * time.Second
	checkInterval   = 2 * time.Second // period of checks on the node of a silent stream
	checkTimeout    = time.Second     // timeout of such a check
	maxFailedChecks = 2               // in a row; then the stream resumes at another node
)

var errNodeUnresponsive = errors.New("node unresponsive or disconnected from the cluster")

// stream is a response that is read as it arrives. The caller must call close, or cancel.
type stream struct {
	res    *http.Response
	node   string
	ctx    context.Context
	cancel context.CancelCauseFunc
}

// close ends the stream.
func (s *stream) close() {
	s.cancel(nil)
	s.res.Body.Close()
}

// open sends a read with a streamed response to one node after the other, until one starts to respond or ctx ends.
// The stream lasts until ctx ends, the client is closed or cancel is called. avoid, if not "", is a node to try
// last. openTimeout bounds only the opening; the error is that of the last attempt.
func (c *Client) open(ctx context.Context, q *call, avoid string, openTimeout time.Duration) (*stream, error) {
	deadline := time.Now().Add(openTimeout)
	tried := map[string]int{avoid: 1}
	limit := minOpenTimeout
	noneBusy := func(string) bool { return false }
	for round := 0; ; {
		node := c.pick(q, tried, noneBusy)
		tried[node]++
		s, v := c.openAt(ctx, q, node, limit)
		if v.err == nil {
			return s, nil
		}
		if ctx.Err() != nil {
			return nil, interrupted(q.op, context.Cause(ctx), v.err)
		}
		elsewhere := v.notNorthStar && c.nodes.hasUntried(time.Now(), tried, noneBusy)
		if (!v.retryable && !elsewhere) || time.Now().After(deadline) {
			return nil, v.err
		}
		if v.noResponse {
			limit = min(2*limit, maxOpenTimeout)
		}
		if v.wait == 0 && c.nodes.hasUntried(time.Now(), tried, noneBusy) {
			continue
		}
		if err := pause(ctx, backoff(round, v.wait)); err != nil {
			return nil, interrupted(q.op, err, v.err)
		}
		round++
	}
}

// openAt opens the stream at one node, which must start to respond within limit.
func (c *Client) openAt(ctx context.Context, q *call, node string, limit time.Duration) (*stream, classification) {
	ctx, cancel := c.closeContext(ctx)
	slow := time.AfterFunc(limit, func() { cancel(context.DeadlineExceeded) })
	res, err := c.send(ctx, q, node, nil, 0)
	if err == nil && res.StatusCode == http.StatusOK && slow.Stop() {
		c.nodes.markUp(node)
		return &stream{res: res, node: node, ctx: ctx, cancel: cancel}, classification{}
	}
	defer cancel(nil)
	defer slow.Stop() // it bounds the answer, too
	a := newResponse(node, 0, res, err)
	v := c.classify(q, a)
	if a.err == nil && a.status/100 == 2 { // not a stream, or just too late
		v = classification{err: context.DeadlineExceeded, retryable: true, noResponse: true}
	}
	if c.ctx.Err() != nil {
		return nil, classification{err: ErrClosed}
	}
	if v.noResponse {
		c.nodes.markDown(node, time.Now())
		v.err = fmt.Errorf("%s: %s: %w", q.op, node, v.err)
	}
	return nil, v
}

// follow reads a stream of server-sent events. When the stream breaks, follow resumes it at another node, after the
// last event received. It passes each event to handle. It ends when handle returns true, on an error that is not
// worth retrying, or with ctx. The client's Timeout bounds only the first opening.
//
// If a node ends the stream because its credentials are no longer valid, follow resumes it with those that the client
// has by then. It returns the error when these are refused, or end the next stream as well soon after its start.
func (c *Client) follow(ctx context.Context, q *call, resume func(*call), handle func(event) (bool, error)) error {
	q.header, q.long = http.Header{"Accept": {apiv1.TypeEventStream}}, true
	openTimeout := c.cfg.Timeout
	avoid, refused := "", false
	for failures := 0; ; {
		attempt := *q
		attempt.header, attempt.query = maps.Clone(q.header), maps.Clone(q.query)
		resume(&attempt)
		s, err := c.open(ctx, &attempt, avoid, openTimeout)
		if err != nil {
			return err
		}
		openTimeout, avoid = time.Duration(1<<62), s.node
		began, again := time.Now(), refused
		received, done, err := c.followStream(s, q, handle)
		if refused = cluster.IsCode(err, cluster.CodeUnauthenticated); refused {
			done = again && time.Since(began) < stableAfter
			c.closeIdleConnections() // they have shown the old certificate
		}
		if done {
			return err
		}
		if ctx.Err() != nil || c.ctx.Err() != nil {
			return interrupted(q.op, cmp.Or(context.Cause(ctx), context.Cause(c.ctx)), err)
		}
		if received {
			failures = 0
		}
		if err := pause(ctx, backoff(failures, 0)); err != nil {
			return interrupted(q.op, err, nil)
		}
		failures++
	}
}

// followStream is readEvents for a stream whose node is watched: an open connection does not show that the node is
// hung or has lost its leader.
func (c *Client) followStream(s *stream, q *call, handle func(event) (bool, error)) (received, done bool, err error) {
	defer s.close()
	var lastEvent atomicTime
	lastEvent.set(time.Now())
	if !c.spawn(func() {
		if c.pollNode(s.ctx, s.node, &lastEvent) {
			c.nodes.markDown(s.node, time.Now())
			s.cancel(errNodeUnresponsive)
		}
	}) {
		return false, true, ErrClosed
	}
	return c.readEvents(s, q.op, s.res.Body, func(e event) (bool, error) {
		lastEvent.set(time.Now())
		return handle(e)
	})
}

// readEvents passes the events of one stream to handle. done reports that the stream must not be resumed; received,
// that at least one event arrived.
func (c *Client) readEvents(
	s *stream, op string, from io.Reader, handle func(event) (bool, error),
) (received, done bool, err error) {
	events := newEventReader(from)
	for {
		e, err := events.next()
		if err != nil {
			if !errors.Is(err, io.EOF) && s.ctx.Err() == nil {
				c.nodes.markDown(s.node, time.Now())
			}
			return received, errors.Is(err, errEventTooLarge), fmt.Errorf("%s: %s: %w", op, s.node, err)
		}
		switch e.name {
		case apiv1.EventDraining:
			return received, false, nil
		case apiv1.EventError:
			err, retry := streamError(op, s.node, e.data)
			return received, !retry, err
		}
		received = true
		if stop, err := handle(e); stop || err != nil {
			return received, true, err
		}
	}
}

// streamError reads the problem document that ends a stream.
func streamError(op, node string, data []byte) (err error, retry bool) {
	var p apiv1.Problem
	if json.Unmarshal(data, &p) != nil || p.Code == 0 {
		return fmt.Errorf("%s: %s closed the stream with an unreadable error", op, node), true
	}
	e := &Error{Op: op, Endpoint: node, Retry: p.Retryable, Problem: problemError(p, nil)}
	return e, p.Retryable && e.Problem.Code != cluster.CodeHistoryCompacted
}

// pollNode polls a node while it is silent. It returns true after maxFailedChecks polls in a row without a response
// or a leader; false when ctx ends.
func (c *Client) pollNode(ctx context.Context, node string, lastActivity *atomicTime) bool {
	for fails := 0; fails < maxFailedChecks; {
		if pause(ctx, checkInterval*3/4+rand.N(checkInterval/2)) != nil {
			return false
		}
		if lastActivity.since(time.Now()) < checkInterval {
			fails = 0
			continue
		}
		if c.knowsLeader(ctx, node) {
			fails = 0
		} else {
			fails++
		}
	}
	return ctx.Err() == nil
}

// watchNode sends t to changes whenever pollNode finds its node lost, and when that node knows a leader again. It
// returns when ctx ends.
func (c *Client) watchNode(ctx context.Context, t *attempt, changes chan<- *attempt) {
	send := func() bool {
		select {
		case changes <- t:
			return true
		case <-ctx.Done():
			return false
		}
	}
	for c.pollNode(ctx, t.node, new(atomicTime)) && send() && c.awaitLeader(ctx, t.node) && send() {
	}
}

// awaitLeader polls a node until it knows a leader. It returns false when ctx ends.
func (c *Client) awaitLeader(ctx context.Context, node string) bool {
	for pause(ctx, checkInterval*3/4+rand.N(checkInterval/2)) == nil {
		if c.knowsLeader(ctx, node) {
			return true
		}
	}
	return false
}

// knowsLeader reports whether a node responds within checkTimeout and knows a leader.
func (c *Client) knowsLeader(ctx context.Context, node string) bool {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	a := c.askLeader(ctx, node)
	return a.err == nil && a.status == http.StatusOK
}

// pause waits for d. If ctx ends first, it returns the cause.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// progressReader reads from r and resets the stall timer at each read.
type progressReader struct {
	r        io.Reader
	idle     *time.Timer
	afterEnd time.Duration // how long the timer runs after the last byte, if longer
	read     atomic.Bool   // some bytes may have been read
}

func (p *progressReader) Read(b []byte) (int, error) {
	p.read.Store(true)
	n, err := p.r.Read(b)
	switch {
	case errors.Is(err, io.EOF):
		p.idle.Reset(max(stallTimeout, p.afterEnd))
	case n > 0:
		p.idle.Reset(stallTimeout)
	}
	return n, err
}

// maxEventBytes is the maximum size of one server-sent event: a value of 1 MiB in base64, its key, and some margin.
const maxEventBytes = 4 << 20

var errEventTooLarge = errors.New("event is too large")

// event is one server-sent event. id is that of the latest event that had one.
type event struct {
	id, name string
	data     []byte
	onlyID   bool // a browser would show no event: it only tells the id after which the stream continues
}

// eventReader decodes a stream of server-sent events in bounded memory. It keeps no memory of a large event.
type eventReader struct {
	r  *bufio.Reader
	id string
}

func newEventReader(r io.Reader) *eventReader { return &eventReader{r: bufio.NewReaderSize(r, 32<<10)} }

// line returns the next complete line without its end. It is valid until the next call.
func (s *eventReader) line() ([]byte, error) {
	line, err := s.r.ReadSlice('\n')
	if errors.Is(err, bufio.ErrBufferFull) {
		long := bytes.Clone(line)
		for errors.Is(err, bufio.ErrBufferFull) {
			if len(long) > maxEventBytes {
				return nil, errEventTooLarge
			}
			line, err = s.r.ReadSlice('\n')
			long = append(long, line...)
		}
		line = long
	}
	return bytes.TrimSuffix(bytes.TrimSuffix(line, []byte("\n")), []byte("\r")), err
}

// next returns the next event that has data or an id. It skips comments and empty events, and drops an incomplete last
// event.
func (s *eventReader) next() (event, error) {
	e := event{}
	size := 0
	hasData, hasID := false, false
	for {
		line, err := s.line()
		if err != nil {
			return event{}, err
		}
		if size += len(line); size > maxEventBytes {
			return event{}, errEventTooLarge
		}
		if len(line) == 0 {
			if hasData || hasID {
				e.id, e.onlyID = s.id, !hasData
				return e, nil
			}
			e, size = event{}, 0
			continue
		}
		field, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimPrefix(value, []byte(" "))
		switch string(field) {
		case "id":
			s.id, hasID = string(value), true
		case "event":
			e.name = string(value)
		case "data":
			if hasData {
				e.data = append(e.data, '\n')
			}
			e.data = append(e.data, value...)
			hasData = true
		}
	}
}

// atomicTime is a point in time that goroutines share. It keeps the monotonic reading, so changes of the wall clock
// have no effect.
type atomicTime struct{ at atomic.Pointer[time.Time] }

func (m *atomicTime) set(t time.Time) { m.at.Store(&t) }

// since returns how long the stored time is before t; the maximum if it was never set.
func (m *atomicTime) since(t time.Time) time.Duration {
	if at := m.at.Load(); at != nil {
		return t.Sub(*at)
	}
	return math.MaxInt64
}
