package transport

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"northstar/cluster"
)

// A connection for calls carries many requests of the dialling side at a time, and their responses in any order:
//
//	request and response: length [4] · number of the request [8] · bytes
//
// The number counts for the length. A node of an older build refuses such a connection. A response with the number
// stillWorking belongs to no request. One with the bit notHandled says that the request was not handled.

const (
	stillWorking = uint64(0)
	notHandled   = uint64(1) << 63
)

const (
	maxCall         = 4 << 20  // bytes of a request
	maxCallResponse = 64 << 20 // bytes of a response
	maxCalls        = 1024     // requests of one connection in progress; then it is not read
	maxCallsBytes   = 16 << 20 // of the requests of one connection in progress; the same
)

// NotSentError means that the other node has not received a call.
type NotSentError struct{ Err error }

func (e *NotSentError) Error() string { return e.Err.Error() }

func (e *NotSentError) Unwrap() error { return e.Err }

// calls are this node's connections for calls, by peer.
type calls struct {
	opening singleflight.Group // by peer: callers that wait for a connection share it

	mu    sync.Mutex
	conns map[cluster.NodeID]*callConn
}

var errNotHandled = errors.New("the other node has another identity since the connection was opened")

// callConn is one connection for calls. Its reader goroutine ends with the connection.
type callConn struct {
	conn    net.Conn
	hello   completedHello
	trust   *peerTrust
	writing chan struct{} // capacity 1: held while a request is written

	mu       sync.Mutex
	next     uint64
	waiting  map[uint64]chan callAnswer // capacity 1
	expected int                        // responses, also those to callers that no longer wait
	retired  bool                       // it takes no more requests, and is closed with the last response
	gone     chan struct{}              // closed when the connection has ended
	err      error                      // set before gone is closed
}

// callAnswer is the response to a request.
type callAnswer struct {
	body    []byte
	handled bool
}

// Call sends a request to another node's Config.Called, and returns the response. *NotSentError: the other node has
// not received the request. After another error it may have.
func (t *Transport) Call(ctx context.Context, to cluster.NodeID, request []byte) ([]byte, error) {
	if len(request) > maxCall {
		return nil, &NotSentError{fmt.Errorf("a call of %d bytes is over %d", len(request), maxCall)}
	}
	c, err := t.callConn(ctx, to)
	if err != nil {
		return nil, &NotSentError{err}
	}
	select {
	case c.writing <- struct{}{}:
	case <-c.gone:
		return nil, &NotSentError{c.err}
	case <-ctx.Done():
		return nil, &NotSentError{context.Cause(ctx)}
	}
	number, answer, first, ok := c.register()
	if !ok {
		<-c.writing
		return nil, &NotSentError{errNotHandled}
	}
	defer c.forget(number)
	_ = c.conn.SetWriteDeadline(time.Now().Add(t.params.stall)) // an error shows at the write
	_, err = c.conn.Write(callFrame(number, request))
	if first {
		c.expect(0, t.params.stall) // from now on: the writing of a large request takes time
	}
	<-c.writing
	if err != nil {
		_ = closeNow(c.conn)
		return nil, fmt.Errorf("call to node %s: %w", to, err)
	}
	response, err := c.await(ctx, answer)
	switch {
	case err != nil:
		return nil, fmt.Errorf("call to node %s: %w", to, err)
	case !response.handled:
		t.calls.drop(to, c)
		c.retire()
		return nil, &NotSentError{errNotHandled}
	}
	return response.body, nil
}

// await returns the response to a request. A retired connection ends with its last response, so a response counts that
// has come before the end.
func (c *callConn) await(ctx context.Context, answer <-chan callAnswer) (callAnswer, error) {
	select {
	case response := <-answer:
		return response, nil
	case <-c.gone:
	case <-ctx.Done():
	}
	select {
	case response := <-answer:
		return response, nil
	default:
	}
	if ctx.Err() != nil {
		return callAnswer{}, context.Cause(ctx)
	}
	return callAnswer{}, c.err
}

func callFrame(number uint64, body []byte) []byte {
	b := make([]byte, 0, 12+len(body))
	b = binary.BigEndian.AppendUint32(b, uint32(8+len(body)))
	b = binary.BigEndian.AppendUint64(b, number)
	return append(b, body...)
}

// register registers a request, and reports whether no other one is unanswered. ok is false if c is retired.
func (c *callConn) register() (number uint64, response <-chan callAnswer, first, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.retired {
		return 0, nil, false, false
	}
	c.expected++
	c.next++
	answer := make(chan callAnswer, 1)
	c.waiting[c.next] = answer
	return c.next, answer, c.expected == 1, true
}

// retire closes the connection when the last response has come.
func (c *callConn) retire() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.retired = true
	c.closeIfDone()
}

// closeIfDone closes a retired connection without unanswered requests. The lock must be held.
func (c *callConn) closeIfDone() {
	if c.retired && c.expected == 0 {
		_ = closeNow(c.conn)
	}
}

// expect limits how long the connection may be silent while responses are expected, after answered of them have come.
// A broken network shows only so: TCP waits longer and longer before it tries again, also when the network works
// again. That the callers have given up changes nothing.
func (c *callConn) expect(answered int, stall time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.expected = max(0, c.expected-answered)
	c.closeIfDone()
	var until time.Time
	if c.expected > 0 {
		until = time.Now().Add(stall)
	}
	_ = c.conn.SetReadDeadline(until) // an error shows at the read
}

// callReader reads the responses of a connection. Each byte is a sign of life.
type callReader struct {
	*callConn
	stall time.Duration
}

func (r callReader) Read(p []byte) (int, error) {
	n, err := r.conn.Read(p)
	if n > 0 {
		r.expect(0, r.stall)
	}
	return n, err
}

func (c *callConn) forget(number uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.waiting, number)
}

// callConn returns the connection to a node, or opens one.
func (t *Transport) callConn(ctx context.Context, to cluster.NodeID) (*callConn, error) {
	if c := t.openCallConn(to); c != nil {
		return c, nil
	}
	opened := t.calls.opening.DoChan(string(to), func() (any, error) {
		if c := t.openCallConn(to); c != nil { // opened for another caller after this one has looked
			return c, nil
		}
		return t.openCalls(to)
	})
	select {
	case r := <-opened:
		if r.Err != nil {
			return nil, r.Err
		}
		return r.Val.(*callConn), nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// openCallConn returns the connection to a node, nil if there is none with this node's present identity, or none that
// is trusted.
func (t *Transport) openCallConn(to cluster.NodeID) *callConn {
	c := t.calls.get(to)
	switch {
	case c == nil, t.identityChanged(c.hello):
		return nil
	case !c.trust.hasAuthority():
		c.retire() // the next dial may fail, and not replace it
		return nil
	}
	return c
}

func (t *Transport) openCalls(to cluster.NodeID) (*callConn, error) {
	server, ok := cluster.FindServer(t.cfg.Membership.Servers(), to)
	if !ok {
		return nil, fmt.Errorf("node %s is not a member", to)
	}
	ctx, cancel := context.WithTimeout(context.Background(), t.params.rpc)
	defer cancel()
	conn, x, err := t.open(ctx, server.Address, purposeCalls, to)
	if err == nil {
		err = x.refused()
	}
	if err != nil {
		if conn != nil {
			_ = closeNow(conn)
		}
		return nil, err
	}
	_ = conn.SetDeadline(time.Time{}) // that of the hello
	c := &callConn{
		conn: conn, hello: x, trust: t.trustOfServer(conn), writing: make(chan struct{}, 1),
		waiting: map[uint64]chan callAnswer{}, gone: make(chan struct{}),
	}
	if before := t.calls.set(to, c); before != nil {
		before.retire()
	}
	if !t.spawn(func(ctx context.Context) { t.readResponses(ctx, to, c) }) {
		t.calls.drop(to, c)
		_ = closeNow(conn)
		return nil, errClosed
	}
	return c, nil
}

func (k *calls) get(id cluster.NodeID) *callConn {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.conns[id]
}

// set makes c the connection to a node and returns its predecessor, nil if there was none.
func (k *calls) set(id cluster.NodeID, c *callConn) *callConn {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.conns == nil {
		k.conns = map[cluster.NodeID]*callConn{}
	}
	before := k.conns[id]
	k.conns[id] = c
	return before
}

func (k *calls) drop(id cluster.NodeID, c *callConn) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.conns[id] == c {
		delete(k.conns, id)
	}
}

// readResponses passes on responses until the connection ends.
func (t *Transport) readResponses(ctx context.Context, to cluster.NodeID, c *callConn) {
	stop := context.AfterFunc(ctx, func() { _ = closeNow(c.conn) })
	defer stop()
	in := bufio.NewReader(callReader{c, t.params.stall}) // as where calls are served
	var err error
	for err == nil {
		var number uint64
		var body []byte
		if number, body, err = readCall(in, maxCallResponse); err != nil {
			break
		}
		if number != stillWorking {
			c.answer(number&^notHandled, callAnswer{body, number&notHandled == 0})
			c.expect(1, t.params.stall)
		}
	}
	t.calls.drop(to, c)
	_ = closeNow(c.conn)
	c.err = err
	close(c.gone)
}

// answer passes a response on, if its caller still waits.
func (c *callConn) answer(number uint64, response callAnswer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if answer := c.waiting[number]; answer != nil {
		answer <- response
		delete(c.waiting, number)
	}
}

func readCall(conn io.Reader, limit uint32) (number uint64, body []byte, err error) {
	frame, err := readSized(conn, limit+8, errMalformed)
	if err != nil {
		return 0, nil, err
	}
	if len(frame) < 8 {
		return 0, nil, errMalformed
	}
	return binary.BigEndian.Uint64(frame), frame[8:], nil
}
