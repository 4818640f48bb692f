package api

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net"
	"net/http"
	"net/http/httptrace"
	"strconv"
	"sync"
	"time"

	"northstar/api/apiv1"
	"northstar/cluster"
)

// forwarder is the HTTP client towards other nodes.
type forwarder struct {
	scheme       string
	transport    *http.Transport
	self         cluster.NodeID
	forwardToken bool // the other nodes believe tokens only: there is no TLS to know this node by

	breakers    *circuitBreakers
	retryBudget time.Duration // with a node that is tried again
}

// dialError marks an error from before there was a connection: whatever the
// request was, the other side has not seen it.
type dialError struct{ err error }

func (e *dialError) Error() string { return e.err.Error() }
func (e *dialError) Unwrap() error { return e.err }

func newForwarder(d Deps) *forwarder {
	dial := d.Dial
	if dial == nil {
		dial = func(ctx context.Context, addr string) (net.Conn, error) {
			return (&net.Dialer{KeepAlive: 15 * time.Second}).DialContext(ctx, "tcp", addr)
		}
	}
	limit := 2 * d.TimeoutMax // as long as a request is held
	connect := func(ctx context.Context, _, addr string) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		conn, err := dial(ctx, addr)
		if err != nil {
			return nil, &dialError{err}
		}
		return conn, nil
	}
	f := &forwarder{scheme: "http", self: d.Node.ID, forwardToken: d.Tokens != nil && d.ClientTLS == nil && !d.Insecure, breakers: newCircuitBreakers(), retryBudget: limit}
	f.transport = &http.Transport{
		DialContext:            connect,
		MaxIdleConns:           1024,
		MaxIdleConnsPerHost:    512,
		IdleConnTimeout:        90 * time.Second, // below the server's, so that this side closes first
		DisableCompression:     true,
		MaxResponseHeaderBytes: 64 << 10,
	}
	if d.ClientTLS == nil {
		return f
	}
	f.scheme = "https"
	f.transport.DialTLSContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		conn, err := connect(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		secured := tls.Client(conn, d.ClientTLS(addr))
		if err := secured.HandshakeContext(ctx); err != nil {
			_ = conn.Close() // the handshake's error says more
			return nil, &dialError{err}
		}
		return secured, nil
	}
	return f
}

// close ends what is under way without anybody waiting for it.
func (f *forwarder) close() {
	f.breakers.close()
	f.transport.CloseIdleConnections()
}

// setIdentityHeaders says in a request's header who asks: this node, for the caller of c
// if there is one. Who that is goes as identity, as token only where that is
// not believed.
func (f *forwarder) setIdentityHeaders(h http.Header, c *request) {
	h.Set(apiv1.HeaderForwardedBy, string(f.self))
	switch {
	case c == nil:
	case f.forwardToken:
		h["Authorization"] = c.r.Header["Authorization"]
	case c.caller.name != "":
		h.Set(apiv1.HeaderIdentity, c.caller.header())
		h.Set(apiv1.HeaderCaller, c.from)
	}
}

// forwardedHeaders go with a request to the leader, beside who asks.
var forwardedHeaders = []string{
	"Accept", "Content-Type", "If-Match", "If-None-Match",
	apiv1.HeaderIdempotencyKey, apiv1.HeaderFence,
}

// forwardOverhead is what a forwarding node keeps of a request's time for itself.
const forwardOverhead = 100 * time.Millisecond

// request makes the request as another node will see it: the same path, byte by
// byte, and query.
func (f *forwarder) request(ctx context.Context, c *request, addr string, work leaderRequest) *http.Request {
	u := *c.r.URL
	u.Scheme, u.Host = f.scheme, addr
	req := &http.Request{Method: c.r.Method, URL: &u, Host: addr, Header: make(http.Header, 8)}
	for _, name := range forwardedHeaders {
		if v := c.r.Header.Values(name); len(v) > 0 {
			req.Header[apiv1.HeaderKeyNoAutoRetry(name)] = v
		}
	}
	f.setIdentityHeaders(req.Header, c)
	if deadline, ok := ctx.Deadline(); ok {
		// The other side's answer, also that it ran out of time, must get back
		// before this side gives up.
		left := time.Until(deadline)
		left -= min(left/10, forwardOverhead)
		req.Header.Set(apiv1.HeaderTimeout, strconv.FormatInt(max(1, (left+time.Millisecond-1).Milliseconds()), 10))
	}
	switch {
	case work.stream != nil:
		req.ContentLength = c.r.ContentLength
		req.Body = io.NopCloser(work.stream)
	case len(work.body) > 0:
		req.ContentLength = int64(len(work.body))
		req.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(work.body)), nil }
		req.Body, _ = req.GetBody()
		if req.Header.Get("Content-Type") == "" { // the body is this node's own
			req.Header.Set("Content-Type", apiv1.TypeJSON)
		}
	}
	return req.WithContext(ctx)
}

// forwardResult is how one try at another node ended.
type forwardResult int

const (
	forwardAnswered forwardResult = iota // its answer was passed on
	forwardRefused                       // nothing happened there
	forwardUnknown                       // the request was sent, and no answer came
)

// forwardTo sends the call to the leader of v and passes its answer on. A read
// is given up as soon as v is no longer true; a write that cannot be sent again
// gets some time for the old leader to answer what it still can. The error
// says why there is no answer.
func (c *request) forwardTo(ctx context.Context, v *leaderSnapshot, addr string, work leaderRequest) (forwardResult, error) {
	patience := time.Duration(0)
	if !work.idempotent {
		patience = 2*c.s.deps.TimeoutMax + work.oldLeaderGrace
	}
	ctx, cancel := withGraceAfter(ctx, v.changed, patience)
	defer cancel()
	sent := false
	trace := &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { sent = true }}
	req := c.s.forward.request(httptrace.WithClientTrace(ctx, trace), c, addr, work)
	resp, err := c.s.forward.transport.RoundTrip(req)
	if err != nil {
		// net/http tries a write again by itself only where it wrote nothing
		// (apiv1.Unrepeated). So for one that may not be sent twice an error from
		// before the connection is the truth about all its tries.
		var dial *dialError
		if !sent || !work.idempotent && errors.As(err, &dial) {
			return forwardRefused, noLeader("node %s at %s cannot be reached: %w", v.id, addr, err)
		}
		return forwardUnknown, c.noResponseError(work, "node %s at %s did not answer: %w", v.id, addr, err)
	}
	defer discardBody(resp.Body)
	return c.copyResponse(resp, v, addr, work)
}

// noResponseError is the error for a request that was sent and not answered.
func (c *request) noResponseError(work leaderRequest, format string, args ...any) error {
	if work.write {
		return cluster.Errorf(cluster.CodeOutcomeUnknown, format, args...)
	}
	return noLeader(format, args...)
}

// withGraceAfter derives a context that also ends some time after other has.
func withGraceAfter(ctx, other context.Context, patience time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(other, func() {
		if patience == 0 {
			cancel()
			return
		}
		late := time.AfterFunc(patience, cancel)
		context.AfterFunc(ctx, func() { late.Stop() })
	})
	return ctx, func() { stop(); cancel() }
}

// maxSmallResponse is read whole before a byte is passed on, so that a leader that
// dies while it answers costs a try and not the request.
const maxSmallResponse = 64 << 10

var copyBuffers = sync.Pool{New: func() any { return new([maxSmallResponse]byte) }}

// copyResponse copies the leader's answer to the client, unless it is that it does
// not lead, and says where the leader is: a client may go there next time.
func (c *request) copyResponse(resp *http.Response, v *leaderSnapshot, addr string, work leaderRequest) (forwardResult, error) {
	buf := copyBuffers.Get().(*[maxSmallResponse]byte)
	defer copyBuffers.Put(buf)
	n, whole, err := readUpTo(resp.Body, buf[:])
	if err != nil {
		return forwardUnknown, c.noResponseError(work, "node %s broke off its answer: %w", v.id, err)
	}
	if p, ok := parseProblem(resp, buf[:n]); ok && p.Code == int(cluster.CodeNoLeader) {
		return forwardRefused, noLeader("node %s, which was taken for the leader, answered: %s", v.id, p.Detail)
	} else if work.mayHaveApplied && resp.StatusCode >= 400 {
		refusal := &cluster.Error{Code: cluster.Code(p.Code), Status: resp.StatusCode, Detail: p.Detail}
		if !refusal.DecidedByState() && refusal.Code != work.finalCode {
			return forwardUnknown, cluster.Errorf(cluster.CodeOutcomeUnknown, "leader %s answered %d: %s", v.id, resp.StatusCode, p.Detail)
		}
	}
	h := c.Header()
	for name, values := range resp.Header {
		switch name {
		case "Connection", "Keep-Alive", "Transfer-Encoding", "Date":
		default:
			h[name] = values
		}
	}
	h[apiv1.HeaderLeader] = []string{addr}
	c.audited = true // by that node
	for name := range resp.Trailer {
		h.Add("Trailer", name)
	}
	c.WriteHeader(resp.StatusCode)
	if _, err := c.Write(buf[:n]); err != nil {
		return forwardAnswered, c.ignoreWriteError(err)
	}
	if !whole {
		if _, err := io.CopyBuffer(c.slowWriter(), resp.Body, buf[:]); err != nil {
			// The status has been sent: only a broken connection can tell the
			// client that this is not all.
			panic(http.ErrAbortHandler)
		}
	}
	for name, values := range resp.Trailer {
		h[name] = values
	}
	return forwardAnswered, nil
}

// readUpTo reads until buf is full or r ends; whole says that it ended. io.ReadFull
// would not tell an end from a broken connection.
func readUpTo(r io.Reader, buf []byte) (n int, whole bool, err error) {
	for n < len(buf) {
		m, err := r.Read(buf[n:])
		n += m
		if err == io.EOF {
			return n, true, nil
		}
		if err != nil {
			return n, false, err
		}
	}
	return n, false, nil
}

// parseProblem is the problem in an answer. ok is false when there is none.
func parseProblem(resp *http.Response, body []byte) (p apiv1.Problem, ok bool) {
	if resp.StatusCode < 400 {
		return p, false
	}
	media, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	return p, err == nil && media == apiv1.TypeProblem && json.Unmarshal(body, &p) == nil
}

// discardBody reads what little may be left, so that the connection can be used
// again.
func discardBody(body io.ReadCloser) {
	_, _ = io.CopyN(io.Discard, body, maxSmallResponse)
	_ = body.Close() // nothing to do about it
}
