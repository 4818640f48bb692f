package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strconv"
	"sync/atomic"
	"time"

	"northstar/api/apiv1"
)

// retryClass says where a call may go and when it may be sent again.
type retryClass int

const (
	leaderRead         retryClass = iota // any node takes it, the leader answers it
	localRead                            // any node answers it by itself
	idempotentWrite                      // bears an idempotency key: may be sent again at any time
	nonIdempotentWrite                   // may be sent again only when it is known not to have happened
)

func (k retryClass) write() bool { return k == idempotentWrite || k == nonIdempotentWrite }

// call is one request to the cluster; each of its tries sends the same.
type call struct {
	op              string // for errors: "put app/config"
	retryClass      retryClass
	method, path    string // path is escaped
	query           url.Values
	header          http.Header
	body            []byte
	limit           int64         // most bytes of an answer; 0: maxSmallResponse
	hasTimeoutParam bool          // the server takes ?timeout_ms
	attemptTimeout  time.Duration // how long one try may take; 0: as for other calls
	internal        bool          // the client's own: starts no other
}

// Most bytes of an answer that are read.
const (
	maxSmallResponse = 4 << 20
	maxListResponse  = 64 << 20
)

var errTooLarge = errors.New("answer is too large")

// response is what came of one try. err is set when no whole answer came; sent
// then says whether the request may have reached the node.
type response struct {
	node   string
	status int
	header http.Header
	body   []byte
	err    error
	sent   bool
}

// doAttempt sends one try to one node and reads the whole answer. It returns
// when ctx ends, whatever the node does. sent, when not nil, is set before the
// first byte can leave: what it says after attempt has returned is final.
func (c *Client) doAttempt(ctx context.Context, q *call, node string, sent *atomic.Bool) *response {
	a := &response{node: node}
	if sent != nil {
		ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { sent.Store(true) }})
	}
	res, err := c.send(ctx, q, node, bytes.NewReader(q.body), int64(len(q.body)))
	if err == nil {
		a.status, a.header = res.StatusCode, res.Header
		a.body, err = readAll(res, q.limit)
	}
	a.err = err
	a.sent = sent != nil && sent.Load()
	return a
}

// send makes the HTTP request of q. The caller closes the answer's body.
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
	if c.cfg.Token != "" {
		req.Header.Set("Authorization", "Bearer "+c.cfg.Token)
	}
	req.Header.Set("User-Agent", c.cfg.UserAgent)
	return c.pool.RoundTrip(req) // not through http.Client: a redirect is a verdict here, not a step
}

// encodeQuery adds how long the server may take: a little less than this side
// waits, so that the server's own verdict arrives before the deadline.
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

func readAll(res *http.Response, limit int64) ([]byte, error) {
	defer res.Body.Close()
	if limit == 0 {
		limit = maxSmallResponse
	}
	body, err := io.ReadAll(io.LimitReader(res.Body, limit+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("read answer: %w", err)
	case int64(len(body)) > limit:
		return nil, fmt.Errorf("%w: more than %d bytes", errTooLarge, limit)
	}
	return body, nil
}
