package client

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"northstar/api/apiv1"
	"northstar/cluster"
)

// retryClass decides where a call may go and when it may be sent again.
type retryClass int

const (
	leaderRead         retryClass = iota // any node accepts it, the leader answers it
	localRead                            // any node answers it locally
	idempotentWrite                      // has an idempotency key: may be sent again at any time
	nonIdempotentWrite                   // may be sent again only if it certainly did not happen
)

func (k retryClass) write() bool { return k == idempotentWrite || k == nonIdempotentWrite }

// call is one request to the cluster. Each of its attempts sends the same request.
type call struct {
	op              string // for errors: "put app/config"
	retryClass      retryClass
	method, path    string // path is escaped
	query           url.Values
	header          http.Header
	body            []byte
	limit           int64         // maximum bytes of a response; 0: maxSmallResponse
	hasTimeoutParam bool          // the server accepts ?timeout_ms
	attemptTimeout  time.Duration // timeout of one attempt; 0: the default of its class
	internal        bool          // made by the client itself: triggers no refresh
	long            bool          // its response comes late, or is read for long
	numbered        bool          // a write whose idempotency key is the client's next number
	urgent          bool          // waits for no connection behind other calls
	plain           bool          // a successful response is a value, with its revision in a header
}

// Maximum bytes of a response that are read.
const (
	maxSmallResponse = 4 << 20
	maxListResponse  = 64 << 20
)

var errTooLarge = errors.New("response is too large")

// response is the result of one attempt. err is set if no complete response arrived; sent then reports whether the
// request may have reached the node.
type response struct {
	node   string
	status int
	header http.Header
	body   []byte
	err    error
	sent   bool
}

// doAttempt sends one attempt to one node and reads the whole response. It returns when ctx ends, even if the node
// does not respond. sent, if not nil, is set before the first byte can leave and is final when doAttempt returns.
func (c *Client) doAttempt(ctx context.Context, q *call, node string, sent *atomic.Bool) *response {
	if sent != nil {
		trace := &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { sent.Store(true) }}
		ctx = httptrace.WithClientTrace(ctx, trace)
	}
	if !q.long {
		c.attempts.Add(1)
		defer c.attempts.Add(-1)
	}
	res, err := c.send(ctx, q, node, bytes.NewReader(q.body), int64(len(q.body)))
	a := newResponse(node, q.limit, res, err)
	a.sent = sent != nil && sent.Load()
	return a
}

// send makes the HTTP request of q. The caller closes the body of the response.
func (c *Client) send(ctx context.Context, q *call, node string, body io.Reader, length int64) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, q.method, node+q.path, body)
	if err != nil {
		return nil, fmt.Errorf("make request: %w", err)
	}
	req.ContentLength = length
	if length == 0 {
		req.Body, req.GetBody = http.NoBody, nil
	}
	req.URL.RawQuery = q.encodeQuery(ctx)
	for k, v := range q.header {
		req.Header[apiv1.HeaderKeyNoAutoRetry(k)] = v
	}
	if token := c.token.current(); token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	req.Header.Set("User-Agent", c.cfg.UserAgent)
	pool := c.pool
	if q.long || q.urgent && c.attempts.Load() > int64(c.cfg.ConnsPerNode) {
		pool = c.longPool
	}
	return c.roundTrip(pool, req)
}

// maxRefusedConns limits how often a request is sent again after a refusal. A node closes each connection that it
// refuses, so that these end sooner or later.
const maxRefusedConns = 32

// roundTrip sends a request. A connection shows the certificate that it was made with. If a node refuses the request on
// a kept connection, that certificate may have expired, and the client may have another one by now. The request is then
// sent again, until it is refused on a new connection.
func (c *Client) roundTrip(pool *http.Transport, req *http.Request) (*http.Response, error) {
	if c.cfg.TLS == nil || c.cfg.TLS.GetClientCertificate == nil || req.Body != http.NoBody && req.GetBody == nil {
		return pool.RoundTrip(req) // not http.Client: redirects are classified here, not followed
	}
	kept := false
	trace := &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) { kept = i.Reused }}
	req = req.WithContext(httptrace.WithClientTrace(req.Context(), trace))
	for n := 0; ; n++ {
		kept = false
		res, err := pool.RoundTrip(req)
		if err != nil || res.StatusCode != http.StatusUnauthorized || !kept || n == maxRefusedConns {
			return res, err
		}
		_ = res.Body.Close()
		c.closeIdleConnections()
		if req.GetBody != nil {
			if req.Body, err = req.GetBody(); err != nil {
				return nil, fmt.Errorf("make request: %w", err)
			}
		}
	}
}

// encodeQuery adds the time that the server may take. It is slightly shorter than the client's own deadline, so
// that the server's response arrives before it.
func (q *call) encodeQuery(ctx context.Context) string {
	if !q.hasTimeoutParam {
		return q.query.Encode()
	}
	left := apiv1.MaxTimeoutMS * time.Millisecond
	if d, ok := ctx.Deadline(); ok {
		left = min(left, time.Until(d))
	}
	left -= min(left/10, 50*time.Millisecond)
	with := url.Values{"timeout_ms": {strconv.FormatInt(max(left.Milliseconds(), 1), 10)}}
	for k, v := range q.query {
		with[k] = v
	}
	return with.Encode()
}

// newResponse reads the whole response of node, at most limit bytes (0: maxSmallResponse). err is the error of
// send.
func newResponse(node string, limit int64, res *http.Response, err error) *response {
	if err != nil {
		return &response{node: node, err: err}
	}
	defer res.Body.Close()
	a := &response{node: node, status: res.StatusCode, header: res.Header}
	limit = cmp.Or(limit, maxSmallResponse)
	body, err := io.ReadAll(io.LimitReader(res.Body, limit+1))
	switch {
	case err != nil:
		a.err = fmt.Errorf("read response: %w", err)
	case int64(len(body)) > limit:
		a.err = fmt.Errorf("%w: more than %d bytes", errTooLarge, limit)
	default:
		a.body = body
	}
	return a
}

// isAnswer reports whether a success is one of a node: a value with its revision, or JSON. It reads the body only if
// the header does not say so.
func (a *response) isAnswer(q *call) bool {
	if q.plain {
		_, err := a.revision()
		return err == nil
	}
	return strings.HasPrefix(a.header.Get("Content-Type"), apiv1.TypeJSON) || json.Valid(a.body)
}

// revision returns the revision of a value.
func (a *response) revision() (uint64, error) {
	return strconv.ParseUint(a.header.Get(apiv1.HeaderRevision), 10, 64)
}

// askLeader sends GET /leader to one node.
func (c *Client) askLeader(ctx context.Context, node string) *response {
	// Late behind other calls, it would make a node that works on them look hung.
	return c.doAttempt(ctx, &call{op: "leader", method: http.MethodGet, path: apiv1.PathLeader, urgent: true}, node, nil)
}

// get sends a read and decodes the JSON response.
func get[T any](ctx context.Context, c *Client, q *call) (T, error) {
	q.method = http.MethodGet
	return decode[T](c.do(ctx, q))
}

// sendJSON sends q with a JSON body and decodes the JSON response.
func sendJSON[T any](ctx context.Context, c *Client, q *call, body any) (T, error) {
	if err := q.setJSON(body); err != nil {
		var none T
		return none, err
	}
	return decode[T](c.do(ctx, q))
}

// admin sends a change of the cluster itself. It is sent again only if the previous attempt certainly did nothing.
func admin[T any](ctx context.Context, c *Client, op, method, path string, body any) (T, error) {
	return sendJSON[T](ctx, c, &call{op: op, retryClass: nonIdempotentWrite, method: method, path: path}, body)
}

func (q *call) setJSON(body any) error {
	data, err := json.Marshal(body)
	if err != nil {
		return fmt.Errorf("%s: encode: %w", q.op, err)
	}
	q.body = data
	q.header = http.Header{"Content-Type": {apiv1.TypeJSON}}
	return nil
}

// decode reads the JSON of a successful response.
func decode[T any](a *response, err error) (T, error) {
	var v T
	if err != nil {
		return v, err
	}
	if err := json.Unmarshal(a.body, &v); err != nil {
		return v, fmt.Errorf("decode response of %s: %w", a.node, err)
	}
	return v, nil
}

// params builds a query from pairs of a name and a value. It leaves out empty values.
func params(pairs ...string) url.Values {
	query := url.Values{}
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			query.Set(pairs[i], pairs[i+1])
		}
	}
	return query
}

// limitParam returns the value of ?limit; "" for 0, which leaves the number to the server.
func limitParam(n int) string {
	if n <= 0 {
		return ""
	}
	return strconv.Itoa(n)
}

// classification is the meaning of one response for its call.
type classification struct {
	err            error // nil: success
	retryable      bool  // may be sent again, perhaps to another node
	mayHaveApplied bool  // this attempt may have been applied
	// rejected by the replicated state: no other attempt of this call can have another outcome
	final bool
	// the response is not from a NorthStar node: an untried node is worth an attempt
	notNorthStar bool
	noResponse   bool          // no response, or an incomplete one
	leader       string        // address of the leader according to the response; "" if none
	wait         time.Duration // minimum time before the next attempt
}

// classify returns what a response means.
func (c *Client) classify(q *call, a *response) classification { return classify(q, a, c.nodes.known) }

// classify depends only on its arguments. known reports whether an address is that of a node. A redirect to any other
// one, such as the login page of a proxy, must not get the token.
func classify(q *call, a *response, known func(address string) bool) classification {
	switch {
	case errors.Is(a.err, errTooLarge):
		return classification{err: a.err, mayHaveApplied: true}
	case a.err != nil:
		return classification{err: a.err, noResponse: true, mayHaveApplied: a.sent, retryable: mayResend(q, a.sent)}
	case a.status/100 == 2 && a.isAnswer(q):
		return classification{}
	case a.status/100 == 2: // such as the login page of a proxy: what has become of the request is not known
		e, _ := problemOf(q.op, a)
		e.Problem.Detail += " without an answer of the API: is it a NorthStar node?"
		return classification{err: e, notNorthStar: true, mayHaveApplied: true}
	case a.status == http.StatusTemporaryRedirect || a.status == http.StatusPermanentRedirect:
		e, _ := problemOf(q.op, a)
		if u, err := url.Parse(a.header.Get("Location")); err == nil && known(u.Host) {
			return classification{err: e, retryable: true, leader: u.Host}
		}
		return classification{err: e, notNorthStar: true}
	}
	e, ours := problemOf(q.op, a)
	v := classification{err: e, leader: e.LeaderAddress}
	code := e.Problem.Code
	switch {
	case !ours && a.status >= 500: // a proxy in between, or a broken node
		v.mayHaveApplied = true
		v.retryable = mayResend(q, true)
	case code == cluster.CodeOutcomeUnknown:
		v.mayHaveApplied = true
		v.retryable = mayResend(q, true)
	case e.Retry && (a.status == http.StatusServiceUnavailable || a.status == http.StatusTooManyRequests):
		v.retryable = true
		if code == cluster.CodeBusy {
			v.wait = e.Problem.RetryAfter
		}
	case !ours:
		v.notNorthStar = true
	case code == cluster.CodeInternal: // the request may have been applied before the error
		v.mayHaveApplied = true
	default:
		v.final = e.Problem.DecidedByState()
	}
	return v
}

// mayResend reports whether a call may be sent again after an attempt that may have reached a node (sent) or did
// not.
func mayResend(q *call, sent bool) bool { return !sent || q.retryClass != nonIdempotentWrite }

// Pauses between two rounds of attempts. They start at a few milliseconds, because a failover is short, and are
// bounded.
const (
	minBackoff    = 3 * time.Millisecond
	maxBackoff    = 250 * time.Millisecond
	maxRetryAfter = 2 * time.Second // longest Retry-After that the client honours
)

// backoff returns the jittered pause after the n-th failed round (from 0), and at least what a node asked for.
func backoff(n int, asked time.Duration) time.Duration {
	d := min(minBackoff<<min(n, 10), maxBackoff)
	d = d/2 + rand.N(d/2+1)
	return max(d, min(asked, maxRetryAfter)+d/4)
}
