package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"sync/atomic"
	"time"

	"northstar/api/apiv1"
	"northstar/cluster"
)

const (
	minOpenTimeout  = 500 * time.Millisecond // for a node to begin its answer; doubled as it runs out
	maxOpenTimeout  = 10 * time.Second
	checkInterval   = 2 * time.Second // how often the node of a silent stream is looked after
	checkTimeout    = time.Second     // for its answer
	maxFailedChecks = 2               // in a row: resume elsewhere
)

var errNodeUnresponsive = errors.New("the node is silent or has lost the cluster")

// stream is an answer that is read as it comes. Cancel ends it, and must be
// called.
type stream struct {
	res    *http.Response
	node   string
	ctx    context.Context
	cancel context.CancelCauseFunc
}

// outstanding sends a read whose answer is streamed, to one node after the other,
// until one begins to answer or ctx ends. The stream lasts until ctx ends, the
// client is closed or its cancel is called. avoid, when not "", is a node to
// ask last. establish bounds the opening alone; the error then is that of the
// last try.
func (c *Client) open(ctx context.Context, q *call, avoid string, establish time.Duration) (*stream, error) {
	deadline := time.Now().Add(establish)
	tried := map[string]int{}
	if avoid != "" {
		tried[avoid] = 1
	}
	limit := minOpenTimeout
	none := func(string) bool { return false }
	for round := 0; ; {
		leader := ""
		if q.retryClass != localRead {
			leader, _ = c.finder.leader()
		}
		node := c.nodes.pick(time.Now(), leader, tried, none)
		tried[node]++
		s, v := c.openAt(ctx, q, node, limit)
		if v.err == nil {
			return s, nil
		}
		if ctx.Err() != nil {
			return nil, &interruptedError{op: q.op, ctx: context.Cause(ctx), last: v.err}
		}
		elsewhere := v.notNorthStar && c.nodes.hasUntried(time.Now(), tried, none)
		if (!v.retryable && !elsewhere) || time.Now().After(deadline) {
			return nil, v.err
		}
		if v.noResponse {
			limit = min(2*limit, maxOpenTimeout)
		}
		if v.wait == 0 && c.nodes.hasUntried(time.Now(), tried, none) {
			continue
		}
		if err := pause(ctx, backoff(round, v.wait)); err != nil {
			return nil, &interruptedError{op: q.op, ctx: err, last: v.err}
		}
		round++
	}
}

// openAt opens the stream at one node, which must begin to answer within limit.
func (c *Client) openAt(ctx context.Context, q *call, node string, limit time.Duration) (*stream, classification) {
	ctx, cancel := context.WithCancelCause(ctx)
	unhook := context.AfterFunc(c.ctx, func() { cancel(ErrClosed) })
	end := func(err error) { unhook(); cancel(err) }
	slow := time.AfterFunc(limit, func() { cancel(context.DeadlineExceeded) })
	res, err := c.send(ctx, q, node, nil, 0)
	if err == nil && slow.Stop() && res.StatusCode == http.StatusOK {
		c.nodes.markUp(node)
		return &stream{res: res, node: node, ctx: ctx, cancel: end}, classification{}
	}
	defer end(nil)
	slow.Stop()
	a := &response{node: node, err: err}
	if err == nil {
		a.status, a.header = res.StatusCode, res.Header
		a.body, a.err = readAll(res, 0)
	}
	v := classify(q, a)
	if v.err == nil { // an answer that is no stream, or came just too late
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

// follow reads a stream of server-sent events, and resumes it at another node,
// after the last event seen, whenever it breaks. It hands each event to take
// and ends when that says so, with a refusal that is not worth repeating, or
// with ctx. The first opening fails after the client's Timeout; once that has
// worked, it goes on for as long as ctx does.
func (c *Client) follow(ctx context.Context, q *call, resume func(*call), take func(event) (bool, error)) error {
	q.header = http.Header{"Accept": {apiv1.TypeEventStream}}
	establish := c.cfg.Timeout
	avoid := ""
	for failures := 0; ; {
		try := *q
		try.header, try.query = maps.Clone(q.header), maps.Clone(q.query)
		resume(&try)
		s, err := c.open(ctx, &try, avoid, establish)
		if err != nil {
			return err
		}
		establish, avoid = time.Duration(1<<62), s.node
		took, done, err := c.readEvents(s, q, take)
		if done {
			return err
		}
		if ctx.Err() != nil || c.ctx.Err() != nil {
			return &interruptedError{op: q.op, ctx: firstCause(ctx, c.ctx), last: err}
		}
		if took {
			failures = 0
		}
		if err := pause(ctx, backoff(failures, 0)); err != nil {
			return &interruptedError{op: q.op, ctx: err}
		}
		failures++
	}
}

// readEvents hands the events of one stream to take. done says that there is
// nothing to resume; took, that at least one event came.
func (c *Client) readEvents(s *stream, q *call, take func(event) (bool, error)) (took, done bool, err error) {
	var heard atomicTime
	heard.set(time.Now())
	defer s.res.Body.Close()
	defer s.cancel(nil)
	if !c.spawn(func() { c.monitorStream(s, &heard) }) {
		return false, true, ErrClosed
	}
	events := newEventReader(s.res.Body)
	for {
		e, err := events.next()
		if err != nil {
			if !errors.Is(err, io.EOF) && s.ctx.Err() == nil {
				c.nodes.markDown(s.node, time.Now())
			}
			return took, errors.Is(err, errEventTooLarge), fmt.Errorf("%s: %s: %w", q.op, s.node, err)
		}
		heard.set(time.Now())
		switch e.name {
		case apiv1.EventDraining:
			return took, false, nil
		case apiv1.EventError:
			err, again := streamError(q.op, s.node, e.data)
			return took, !again, err
		}
		took = true
		if stop, err := take(e); stop || err != nil {
			return took, true, err
		}
	}
}

// streamError reads the problem that ends a stream.
func streamError(op, node string, data []byte) (err error, again bool) {
	var p apiv1.Problem
	if json.Unmarshal(data, &p) != nil || p.Code == 0 {
		return fmt.Errorf("%s: %s ended the stream with an error that is no problem document", op, node), true
	}
	e := &Error{Op: op, Endpoint: node, Retry: p.Retryable, Problem: problemError(p, &response{})}
	return e, p.Retryable && e.Problem.Code != cluster.CodeHistoryCompacted
}

// monitorNode ends a stream whose node is hung, or has lost its leader, which an
// open connection does not show: it asks the node now and then while no event
// comes.
func (c *Client) monitorStream(s *stream, heard *atomicTime) {
	if !c.pollNode(s.ctx, s.node, heard) {
		return
	}
	if s.ctx.Err() == nil {
		c.nodes.markDown(s.node, time.Now())
	}
	s.cancel(errNodeUnresponsive)
}

// pollNode asks a node now and then whether it knows a leader, unless it was heard
// lately, and returns true when it has said no, or nothing, several
// times in a row; false when ctx ends.
func (c *Client) pollNode(ctx context.Context, node string, heard *atomicTime) bool {
	for fails := 0; fails < maxFailedChecks; {
		if pause(ctx, checkInterval*3/4+rand.N(checkInterval/2)) != nil {
			return false
		}
		if heard.since(time.Now()) < checkInterval {
			fails = 0
			continue
		}
		limit, cancel := context.WithTimeout(ctx, checkTimeout)
		a := c.doAttempt(limit, &call{op: "leader", method: http.MethodGet, path: apiv1.PathLeader}, node, nil)
		cancel()
		if a.err == nil && a.status == http.StatusOK {
			fails = 0
		} else {
			fails++
		}
	}
	return ctx.Err() == nil
}

func firstCause(ctxs ...context.Context) error {
	for _, ctx := range ctxs {
		if err := context.Cause(ctx); err != nil {
			return err
		}
	}
	return nil
}

// pause waits for d, or for ctx to end, whose cause it then gives.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// progressReader passes a stream on and puts its stall timer off at each read.
type progressReader struct {
	r    io.Reader
	idle *time.Timer
	read atomic.Bool // something was read
}

func (p *progressReader) Read(b []byte) (int, error) {
	p.read.Store(true)
	n, err := p.r.Read(b)
	if n > 0 {
		p.idle.Reset(stallTimeout)
	}
	return n, err
}
