package sim

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strconv"
	"strings"

	"northstar/api/apiv1"
	"northstar/cluster"
	"northstar/state"
)

// httpClient is a machine of its own from which somebody asks the nodes over HTTP.
// Its ways to them are never cut: what is cut off is the nodes.
type httpClient struct {
	proc *Proc
	http *http.Client
}

func (sim *Simulation) newRemote(name string) *httpClient {
	proc := sim.net.Host(name).Boot()
	return &httpClient{proc: proc, http: &http.Client{Transport: &http.Transport{
		DialContext:        func(ctx context.Context, _, addr string) (net.Conn, error) { return proc.Dial(ctx, addr) },
		DisableCompression: true,
	}}}
}

// close ends the machine's connections.
func (r *httpClient) close() { r.proc.Kill(false) }

// request is one request to one node.
type request struct {
	method, path string
	query        url.Values
	header       map[string]string
	body         []byte // JSON, but for a key's value
}

// failure is what the API answered with another status than 2xx.
func failure(res *http.Response, body []byte) *cluster.Error {
	var p apiv1.Problem
	if err := json.Unmarshal(body, &p); err != nil || p.Code == 0 {
		return &cluster.Error{Code: cluster.CodeInternal, Detail: fmt.Sprintf("status %d: %.100s", res.StatusCode, body), Status: res.StatusCode}
	}
	return &cluster.Error{Code: cluster.Code(p.Code), Detail: p.Detail, Status: res.StatusCode, NoRetry: !p.Retryable, Revision: p.Revision}
}

// do sends a request and returns the answer with its body. The error is a
// *cluster.Error: with CodeNoLeader when the request was never sent, with
// CodeOutcomeUnknown when it was and no answer came.
func (r *httpClient) do(ctx context.Context, node cluster.NodeID, q request) (*http.Response, []byte, error) {
	sent := false
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { sent = true }})
	u := url.URL{Scheme: "http", Host: httpAddress(node), Path: q.path, RawQuery: q.query.Encode()}
	req, err := http.NewRequestWithContext(ctx, q.method, u.String(), bytes.NewReader(q.body))
	if err != nil {
		return nil, nil, err
	}
	for k, v := range q.header {
		req.Header[apiv1.HeaderKeyNoAutoRetry(k)] = []string{v}
	}
	res, err := r.http.Do(req)
	if err != nil {
		return nil, nil, unanswered(sent, err)
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		return nil, nil, unanswered(true, err)
	}
	if res.StatusCode/100 != 2 {
		return res, body, failure(res, body)
	}
	return res, body, nil
}

func unanswered(sent bool, err error) *cluster.Error {
	if !sent {
		return cluster.Errorf(cluster.CodeNoLeader, "not sent: %w", err)
	}
	return cluster.Errorf(cluster.CodeOutcomeUnknown, "no answer: %w", err)
}

// call sends JSON and decodes the JSON that is answered; each of both may be nil.
func (r *httpClient) call(ctx context.Context, node cluster.NodeID, method, path string, query url.Values, in, out any) error {
	q := request{method: method, path: path, query: query}
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return err
		}
		q.body, q.header = b, map[string]string{"Content-Type": apiv1.TypeJSON}
	}
	_, body, err := r.do(ctx, node, q)
	if err != nil || out == nil {
		return err
	}
	return json.Unmarshal(body, out)
}

// httpNode is a node as a client over HTTP reaches it.
type httpNode struct {
	r  *httpClient
	id cluster.NodeID
}

// timeoutQuery bounds a request on the node's side as well.
func timeoutQuery(limit int64) url.Values {
	return url.Values{"timeout_ms": {strconv.FormatInt(limit, 10)}}
}

// Propose sends a write of a key. The result of one that was refused for its
// condition has an Err, as that of a command has.
func (n httpNode) Propose(ctx context.Context, c state.Command) (state.Result, error) {
	q := request{header: map[string]string{}, query: timeoutQuery(1000)}
	key, revision := "", (*uint64)(nil)
	switch c.Kind {
	case state.KindPut:
		q.method, q.body, key, revision = http.MethodPut, c.Put.Value, c.Put.Key, c.Put.IfRevision
		if c.Put.IfAbsent {
			q.header["If-None-Match"] = "*"
		}
	case state.KindDelete:
		q.method, key, revision = http.MethodDelete, c.Delete.Key, c.Delete.IfRevision
	}
	q.path = apiv1.PathKVPrefix + key
	if revision != nil {
		q.header["If-Match"] = fmt.Sprintf("%q", strconv.FormatUint(*revision, 10))
	}
	if c.Idempotency != nil {
		q.header[apiv1.HeaderIdempotencyKey] = c.Idempotency.Key
	}
	if c.Fence != nil {
		q.header[apiv1.HeaderFence] = fmt.Sprintf("%s=%d", c.Fence.Role, c.Fence.Token)
	}
	_, body, err := n.r.do(ctx, n.id, q)
	var refusal *cluster.Error
	if errors.As(err, &refusal) && (refused(refusal) || refusal.Code == cluster.CodeFenced) {
		return state.Result{Err: refusal, Revision: refusal.Revision}, nil
	}
	if err != nil {
		return state.Result{}, err
	}
	var res apiv1.PutResult // a DeleteResult has a part of its fields
	if err := json.Unmarshal(body, &res); err != nil {
		return state.Result{}, cluster.Errorf(cluster.CodeOutcomeUnknown, "an answer that cannot be read: %w", err)
	}
	return state.Result{Revision: res.Revision, Created: res.Created}, nil
}

// Read reads a key. Over HTTP nothing reports the revision of the state.
func (n httpNode) Read(ctx context.Context, key, consistency string) (reading, error) {
	query := timeoutQuery(1000)
	query.Set("consistency", consistency)
	res, body, err := n.r.do(ctx, n.id, request{method: http.MethodGet, path: apiv1.PathKVPrefix + key, query: query})
	var gone *cluster.Error
	if errors.As(err, &gone) && gone.HTTPStatus() == http.StatusNotFound {
		return reading{}, nil
	}
	if err != nil {
		return reading{}, err
	}
	revision, err := strconv.ParseUint(strings.Trim(res.Header.Get("ETag"), `"`), 10, 64)
	return reading{value: string(body), revision: revision}, err
}
