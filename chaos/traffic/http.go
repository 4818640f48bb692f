package traffic

import (
	"bytes"
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
	"time"

	"northstar/api/apiv1"
	"northstar/chaos/check"
	"northstar/cluster"
	"northstar/state"
)

// Machine is a computer with clients on it, which sends requests to nodes.
type Machine struct {
	Client *http.Client
	Close  func() // closes its connections
}

// Request is one request. In is sent as JSON, or Body without changes. Out receives the JSON of the response; nil means
// that it is not decoded.
type Request struct {
	Method, Path string
	Query        url.Values
	Header       map[string]string
	Body         []byte
	In, Out      any
}

func get(path string, out any) Request { return Request{Method: http.MethodGet, Path: path, Out: out} }

func post(path string, in, out any) Request {
	return Request{Method: http.MethodPost, Path: path, In: in, Out: out}
}

// failure returns the error in a response with a status other than 2xx.
func failure(res *http.Response, body []byte) *cluster.Error {
	var p apiv1.Problem
	if err := json.Unmarshal(body, &p); err != nil || p.Code == 0 {
		return &cluster.Error{
			Code: cluster.CodeInternal, Detail: fmt.Sprintf("status %d: %.100s", res.StatusCode, body),
			Status: res.StatusCode,
		}
	}
	return &cluster.Error{
		Code: cluster.Code(p.Code), Detail: p.Detail, Status: res.StatusCode, NoRetry: !p.Retryable,
		Revision: p.Revision,
	}
}

// Do sends a request to a node, and returns the response with its body. The error is a *cluster.Error. Its code is
// CodeNoLeader if the request was never sent, and CodeOutcomeUnknown if it was sent without a response.
func (m *Machine) Do(ctx context.Context, node Node, q Request) (*http.Response, []byte, error) {
	if q.In != nil {
		b, err := json.Marshal(q.In)
		if err != nil {
			return nil, nil, err
		}
		q.Body, q.Header = b, map[string]string{"Content-Type": apiv1.TypeJSON}
	}
	sent := false
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { sent = true }})
	u := url.URL{Scheme: "http", Host: node.HTTP, Path: q.Path, RawQuery: q.Query.Encode()}
	req, err := http.NewRequestWithContext(ctx, q.Method, u.String(), bytes.NewReader(q.Body))
	if err != nil {
		return nil, nil, err
	}
	for k, v := range q.Header {
		req.Header[apiv1.HeaderKeyNoAutoRetry(k)] = []string{v}
	}
	res, err := m.Client.Do(req)
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
	if q.Out != nil {
		err = json.Unmarshal(body, q.Out)
	}
	return res, body, err
}

// user sends requests from a machine of its own.
type user struct {
	*Traffic
	machine *Machine
	rand    *rand.Rand
}

// newUser returns a user whose random numbers are those of a stream.
func (t *Traffic) newUser(stream uint64) user {
	return user{t, t.newMachine(), rand.New(rand.NewPCG(t.cfg.Seed, stream))}
}

// askNode sends one request to the node with that index.
func (u user) askNode(i int, limit time.Duration, q Request) error {
	ctx, cancel := context.WithTimeout(u.ctx, limit)
	defer cancel()
	_, _, err := u.machine.Do(ctx, u.cluster.Nodes()[i], q)
	return err
}

// anyNode draws the index of a node.
func (u user) anyNode() int { return u.rand.IntN(len(u.cluster.Nodes())) }

// askAny sends one request to any node.
func (u user) askAny(limit time.Duration, q Request) error { return u.askNode(u.anyNode(), limit, q) }

// asProblem returns the *cluster.Error in an error, or nil.
func asProblem(err error) *cluster.Error {
	e, _ := errors.AsType[*cluster.Error](err)
	return e
}

func unanswered(sent bool, err error) *cluster.Error {
	if !sent {
		return cluster.Errorf(cluster.CodeNoLeader, "not sent: %w", err)
	}
	return cluster.Errorf(cluster.CodeOutcomeUnknown, "no answer: %w", err)
}

// httpNode is a node that a client reaches over HTTP.
type httpNode struct {
	*Machine
	node    Node
	traffic *Traffic
}

// answerGrace is how much longer a client waits for a response than the timeout that it sends to the node.
const answerGrace = 300 * time.Millisecond

// overHTTP returns attempts from one machine.
func (t *Traffic) overHTTP(m *Machine) Attempt {
	return func(i int, f func(ctx context.Context, n KV) error) error {
		ctx, cancel := context.WithTimeout(t.ctx, t.cfg.Timeout+answerGrace)
		defer cancel()
		return f(ctx, httpNode{m, t.cluster.Nodes()[i], t})
	}
}

// check reports an error that is not documented.
func (n httpNode) check(q Request, err error) error {
	e := asProblem(err)
	if e == nil || e.Status == 0 || notProposed(err) || refused(e) {
		return err
	}
	switch e.Code {
	case cluster.CodeOutcomeUnknown, cluster.CodeFenced, cluster.CodeSessionEnded, cluster.CodeSplitBrain:
		return err
	}
	n.traffic.violated(check.OnlyDocumentedErrors, "%s %s at %s: %v", q.Method, q.Path, n.node.ID, err)
	return err
}

// timeoutQuery limits a request on the node's side as well.
func (n httpNode) timeoutQuery() url.Values {
	return url.Values{"timeout_ms": {strconv.FormatInt(n.traffic.cfg.Timeout.Milliseconds(), 10)}}
}

// Propose sends a write of a key. If its condition did not hold, the result has an Err, as the result of a command has.
func (n httpNode) Propose(ctx context.Context, c state.Command) (state.Result, error) {
	q := Request{Header: map[string]string{}, Query: n.timeoutQuery()}
	key, revision := "", (*uint64)(nil)
	switch c.Kind {
	case state.KindPut:
		q.Method, q.Body, key, revision = http.MethodPut, c.Put.Value, c.Put.Key, c.Put.IfRevision
		if c.Put.IfAbsent {
			q.Header["If-None-Match"] = "*"
		}
	case state.KindDelete:
		q.Method, key, revision = http.MethodDelete, c.Delete.Key, c.Delete.IfRevision
	}
	q.Path = apiv1.PathKVPrefix + key
	if revision != nil {
		q.Header["If-Match"] = fmt.Sprintf("%q", strconv.FormatUint(*revision, 10))
	}
	if c.Idempotency != nil {
		q.Header[apiv1.HeaderIdempotencyKey] = c.Idempotency.Key
	}
	if c.Fence != nil {
		q.Header[apiv1.HeaderFence] = fmt.Sprintf("%s=%d", c.Fence.Role, c.Fence.Token)
	}
	_, body, err := n.Do(ctx, n.node, q)
	if refusal := asProblem(err); refusal != nil && (refused(refusal) || refusal.Code == cluster.CodeFenced) {
		return state.Result{Err: refusal, Revision: refusal.Revision}, nil
	}
	if err != nil {
		return state.Result{}, n.check(q, err)
	}
	var res apiv1.PutResult // a DeleteResult has some of its fields
	if err := json.Unmarshal(body, &res); err != nil {
		return state.Result{}, cluster.Errorf(cluster.CodeOutcomeUnknown, "an answer that cannot be read: %w", err)
	}
	return state.Result{Revision: res.Revision, Created: res.Created}, nil
}

// Read reads a key. Over HTTP no response names the revision of the state.
func (n httpNode) Read(ctx context.Context, key, consistency string) (Reading, error) {
	q := Request{Method: http.MethodGet, Path: apiv1.PathKVPrefix + key, Query: n.timeoutQuery()}
	q.Query.Set("consistency", consistency)
	res, body, err := n.Do(ctx, n.node, q)
	if e := asProblem(err); e != nil && e.HTTPStatus() == http.StatusNotFound {
		return Reading{}, nil
	}
	if err != nil {
		return Reading{}, n.check(q, err)
	}
	revision, err := strconv.ParseUint(strings.Trim(res.Header.Get("ETag"), `"`), 10, 64)
	return Reading{Value: string(body), Revision: revision}, err
}
