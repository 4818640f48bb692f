// Package forward brings a client's request to the leader: this node or one other node, never further. Without a
// leader it queues the request, so that clients see a failover as a delay and not as an error. It also sends requests
// to single nodes for data that only they have.
package forward

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"sync"
	"sync/atomic"
	"time"

	"northstar/api/apiv1"
	"northstar/api/problem"
	"northstar/api/stream"
	"northstar/cluster"
	"northstar/tracing"
)

// Config are the dependencies of a Forwarder. Only ClientTLS may be nil.
type Config struct {
	Self   cluster.NodeID
	Leader *LeaderTracker
	// Dial connects to another node's HTTP address.
	Dial func(ctx context.Context, addr string) (net.Conn, error)
	// ClientTLS returns the configuration of one connection; nil: plain HTTP.
	ClientTLS func(addr string) *tls.Config
	// ForwardToken forwards bearer tokens: without TLS the other nodes accept no asserted identities.
	ForwardToken bool
	TimeoutMax   time.Duration // election.timeout-max
	Hold         time.Duration // how long a request is queued for a leader; 0: twice TimeoutMax
	// EnterQueue takes a place for a request that waits for a leader, until leave is called. c is its client, nil for
	// what is no request of the HTTP API. CodeBusy: there is none left.
	EnterQueue func(ctx context.Context, c Client) (leave func(), err error)
	// AddressOf returns a node's HTTP address, "" if unknown.
	AddressOf func(cluster.NodeID) string
	// LeaderProcessDead reports whether the leader's process was found dead. Nothing is sent to a dead leader.
	LeaderProcessDead func(leader cluster.NodeID, term uint64) bool
	// Refusing returns why this node must not serve, "" if it may. It must be cheap.
	Refusing func() string
	// Stopping ends when this node is stopping: it then serves no write as leader.
	Stopping context.Context
}

// Forwarder brings requests to the leader. Its methods may be called by any goroutine.
type Forwarder struct {
	Config
	transport atomic.Pointer[http.Transport]
	breakers  *circuitBreakers

	queuedWrites atomic.Int64 // unanswered writes that have been queued
}

// New returns a Forwarder.
func New(c Config) *Forwarder {
	c.Hold = cmp.Or(c.Hold, 2*c.TimeoutMax)
	f := &Forwarder{Config: c, breakers: newCircuitBreakers()}
	f.transport.Store(newTransport(c))
	return f
}

// Close ends the background probes.
func (f *Forwarder) Close() {
	f.breakers.close()
	f.transport.Load().CloseIdleConnections()
}

// Reconnect makes the following requests use new connections, after a change of this node's certificate or of the
// trusted authorities: other nodes refuse the connections of an expired certificate.
func (f *Forwarder) Reconnect() { f.transport.Swap(newTransport(f.Config)).CloseIdleConnections() }

// Scheme returns the URL scheme between nodes.
func (f *Forwarder) Scheme() string {
	if f.ClientTLS != nil {
		return "https"
	}
	return "http"
}

// Client is the client of a Request.
type Client interface {
	http.ResponseWriter
	// Caller returns the identity that other nodes receive.
	Caller() Caller
	// AnsweredElsewhere is called before the response of another node, which made the audit record, is copied. code is
	// that of its problem, 0 without one.
	AnsweredElsewhere(code cluster.Code)
}

// Request is a client's request for the leader.
type Request struct {
	Client    Client
	HTTP      *http.Request
	Redirect  bool // answer 307 instead of forwarding
	Forwarded bool // another node has forwarded it: it is not forwarded again

	Write bool
	// may be sent more than once: a read, or a write with an idempotency key or a number
	Idempotent     bool
	Number         string                          // value of apiv1.HeaderNumber; "": none
	Body           []byte                          // for the leader
	Stream         *stream.Body                    // used instead of Body if the body is too large to keep
	OldLeaderGrace time.Duration                   // extra time for a deposed leader to answer
	Local          func(ctx context.Context) error // serves the request here; CodeNoLeader if this node does not lead
	// Remote, if not nil, has the leader serve the request by other means than HTTP. Client and HTTP are not used then,
	// and a nil error means that Local or Remote succeeded. CodeOutcomeUnknown: the leader may have served it. ctx
	// ends when that node no longer leads.
	Remote func(ctx context.Context, leader cluster.NodeID) error
	// EndsWithLeader: Remote ends by itself when that node no longer leads. Its context is then that of the client.
	EndsWithLeader bool
	// Limit bounds what follows the first attempt; 0: only the context does.
	Limit time.Duration

	// FinalCode is final even after an attempt with unknown outcome; 0: only refusals of the state are.
	FinalCode cluster.Code
	// toLeader: the next attempt is made at the leader, and its response names that.
	toLeader bool
	// mayHaveApplied: an earlier attempt may have been applied. A later refusal proves nothing then: the request is
	// retried, or its outcome is unknown.
	mayHaveApplied bool
}

// ErrResponseWritten means that the response has already been written.
var ErrResponseWritten = errors.New("answered")

// forwardedHeaders are forwarded to the leader, in addition to the identity.
var forwardedHeaders = []string{
	"Accept", "Content-Type", "If-Match", "If-None-Match",
	apiv1.HeaderIdempotencyKey, apiv1.HeaderFence,
}

// outgoing returns r as the other node receives it, with the same path, byte by byte, and the same query.
func (f *Forwarder) outgoing(ctx context.Context, addr string, r *Request) *http.Request {
	u := *r.HTTP.URL
	u.Scheme, u.Host = f.Scheme(), addr
	req := &http.Request{Method: r.HTTP.Method, URL: &u, Host: addr, Header: make(http.Header, 8)}
	for _, name := range forwardedHeaders {
		if v := r.HTTP.Header.Values(name); len(v) > 0 {
			req.Header[apiv1.HeaderKeyNoAutoRetry(name)] = v
		}
	}
	if r.Number != "" {
		req.Header[apiv1.HeaderNumber] = []string{r.Number}
	}
	f.setIdentityHeaders(req.Header, r.Client.Caller())
	setTimeoutHeader(ctx, req.Header)
	tracing.Inject(ctx, req.Header)
	switch {
	case r.Stream != nil:
		req.ContentLength = r.HTTP.ContentLength
		req.Body = io.NopCloser(r.Stream)
	case len(r.Body) > 0:
		req.ContentLength = int64(len(r.Body))
		req.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(r.Body)), nil }
		req.Body, _ = req.GetBody()
		if req.Header.Get("Content-Type") == "" { // this node made the body
			req.Header.Set("Content-Type", apiv1.TypeJSON)
		}
	}
	return req.WithContext(ctx)
}

// Send makes one attempt at another node and copies the response. When leader.Changed ends, an idempotent request
// gives up immediately, another one after the old leader's grace. The error says why there is no response. r records
// whether the attempt may have been applied.
func (f *Forwarder) Send(ctx context.Context, leader *Leader, addr string, r *Request) (err error) {
	grace := time.Duration(0)
	if !r.Idempotent {
		grace = 2*f.TimeoutMax + r.OldLeaderGrace
	}
	ctx, cancel := stream.WithGraceAfter(ctx, leader.Changed, grace)
	defer cancel()
	ctx, span := tracing.Start(ctx, "forward")
	defer func() {
		if errors.Is(err, ErrResponseWritten) {
			span.End(nil)
		} else {
			span.End(err)
		}
	}()
	span.Set("northstar.leader_id", string(leader.ID))
	sent := false
	trace := &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { sent = true }}
	resp, err := f.transport.Load().RoundTrip(f.outgoing(httptrace.WithClientTrace(ctx, trace), addr, r))
	if err != nil {
		// net/http retries such a write only if it wrote nothing (apiv1.HeaderKeyNoAutoRetry). An error from before
		// the connection therefore holds for all its attempts.
		var dial *dialError
		if !sent || !r.Idempotent && errors.As(err, &dial) {
			return problem.NoLeader("node %s at %s cannot be reached: %w", leader.ID, addr, err)
		}
		return r.noResponseError("node %s at %s did not answer: %w", leader.ID, addr, err)
	}
	defer discardBody(resp.Body)
	return r.copyResponse(resp, leader, addr)
}

func (r *Request) noResponseError(format string, args ...any) error {
	if r.Write {
		r.mayHaveApplied = true
		return cluster.Errorf(cluster.CodeOutcomeUnknown, format, args...)
	}
	return problem.NoLeader(format, args...)
}

// smallResponse is read completely before it is copied: if the leader dies in it, only the attempt fails.
const smallResponse = 64 << 10

var copyBuffers = sync.Pool{New: func() any { return new([smallResponse]byte) }}

// copyResponse copies a response. It adds the leader's address for next time, if the leader made the response. A
// not-leader response is an error.
func (r *Request) copyResponse(resp *http.Response, leader *Leader, addr string) error {
	buf := copyBuffers.Get().(*[smallResponse]byte)
	defer copyBuffers.Put(buf)
	n, complete, err := readUpTo(resp.Body, buf[:])
	if err != nil {
		return r.noResponseError("node %s closed the connection during the response: %w", leader.ID, err)
	}
	p, ok := problem.Decode(resp.StatusCode, resp.Header, buf[:n])
	decided := resp.Header.Get(apiv1.HeaderDecided) != ""
	switch {
	case ok && decided: // every attempt would have this answer
	case ok && p.Code == int(cluster.CodeNoLeader):
		return problem.NoLeader("node %s is not the leader: %s", leader.ID, p.Detail)
	case ok && p.Code == int(cluster.CodeOutcomeUnknown) && r.Write && r.Idempotent:
		return r.noResponseError("leader %s answered: %s", leader.ID, p.Detail)
	case r.mayHaveApplied && resp.StatusCode >= 400:
		refusal := &cluster.Error{Code: cluster.Code(p.Code), Status: resp.StatusCode, Detail: p.Detail}
		if !refusal.DecidedByState() && refusal.Code != r.FinalCode {
			return cluster.Errorf(cluster.CodeOutcomeUnknown, "leader %s answered %d: %s", leader.ID, resp.StatusCode,
				p.Detail)
		}
	}
	r.Client.AnsweredElsewhere(cluster.Code(p.Code))
	h := r.Client.Header()
	for name, values := range resp.Header {
		switch name {
		case "Connection", "Keep-Alive", "Transfer-Encoding", "Date", apiv1.HeaderDecided:
		default:
			h[name] = values
		}
	}
	if r.toLeader {
		h[apiv1.HeaderLeader] = []string{addr}
	}
	for name := range resp.Trailer {
		h.Add("Trailer", name)
	}
	r.Client.WriteHeader(resp.StatusCode)
	if _, err := r.Client.Write(buf[:n]); err != nil {
		return nil // the client is gone
	}
	if !complete {
		if _, err := io.CopyBuffer(stream.Writer(r.Client), resp.Body, buf[:]); err != nil {
			// The status has been sent: only a broken connection shows the client that the body is incomplete.
			panic(http.ErrAbortHandler)
		}
	}
	for name, values := range resp.Trailer {
		h[name] = values
	}
	return nil
}

// readUpTo reads until buf is full or r ends, which complete reports: io.ReadFull does not tell a broken connection.
func readUpTo(r io.Reader, buf []byte) (n int, complete bool, err error) {
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

// Leader is a snapshot of the leader, valid until Changed ends.
type Leader struct {
	ID      cluster.NodeID // "" if unknown
	Term    uint64
	Changed context.Context // ends when the leader or the term changes
	end     context.CancelFunc
}

func newLeader(id cluster.NodeID, term uint64) *Leader {
	l := &Leader{ID: id, Term: term}
	l.Changed, l.end = context.WithCancel(context.Background())
	return l
}

// LeaderSource reports leader changes to a LeaderTracker.
type LeaderSource interface {
	Status() cluster.NodeStatus
	// LeaderChanged returns a channel that is closed at the next change of the leader or the term.
	LeaderChanged() <-chan struct{}
}

// LeaderTracker caches the leader, so that a request need not ask consensus.
type LeaderTracker struct {
	source  LeaderSource
	current atomic.Pointer[Leader]
}

// NewLeaderTracker returns a tracker that knows no leader until it runs.
func NewLeaderTracker(source LeaderSource) *LeaderTracker {
	t := &LeaderTracker{source: source}
	t.current.Store(newLeader("", 0))
	return t
}

// Current returns the current leader. It may be called by any goroutine.
func (t *LeaderTracker) Current() *Leader { return t.current.Load() }

// Run follows the leader until ctx ends; after that Current returns no leader.
func (t *LeaderTracker) Run(ctx context.Context) {
	replace := func(id cluster.NodeID, term uint64) { t.current.Swap(newLeader(id, term)).end() }
	defer replace("", 0)
	for ctx.Err() == nil {
		changed := t.source.LeaderChanged() // before Status, so that no change is missed
		st := t.source.Status()
		if l := t.Current(); l.ID != st.LeaderID || l.Term != st.Term {
			replace(st.LeaderID, st.Term)
		}
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}
}
