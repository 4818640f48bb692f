package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"hash/maphash"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"

	"northstar/api/apiv1"
	"northstar/api/openapi"
	"northstar/api/problem"
	"northstar/api/token"
	"northstar/cluster"
	"northstar/state"
	"northstar/tracing"
)

// CallSpec is what a call of another protocol needs, and how it counts.
type CallSpec struct {
	Name  string // in metrics and the audit log: of a bounded set
	Role  token.Role
	Kind  openapi.ResponseKind
	Write bool // an operator's call is recorded
}

// certRoleKey is the key of the role of clients whose certificate has none, in the context of a call.
type certRoleKey struct{}

// callMark is the key of a value that contexts of calls have, and of requests to this package's own API do not.
type callMark struct{}

// Call is one call of another protocol than this package's, with the same identities, limits, audit records and way to
// the leader. Its methods may be called by any goroutine, but Leave only once.
type Call struct {
	c      *request
	start  time.Time
	unlist func()
	span   tracing.Span
	conn   *conn // not idle until Leave; nil: unknown, or closed as an idle one
	native bool  // made a request to this package's own API, which counts an unknown outcome itself
}

// callWriter takes the place of a call's response: its protocol writes that itself.
type callWriter struct{ header http.Header }

func (w *callWriter) Header() http.Header         { return w.header }
func (w *callWriter) Write(p []byte) (int, error) { return len(p), nil }
func (w *callWriter) WriteHeader(int)             {}

// callConn is what is remembered of a connection with calls of another protocol.
type callConn struct {
	conn  *conn // nil: not of LimitConnections
	trust connTrust
}

// NewCallConn returns what is remembered of a connection that LimitConnections has accepted.
func NewCallConn(c net.Conn) any {
	own, _ := c.(*conn)
	return &callConn{conn: own}
}

// callContext is the context of a call. It has what is remembered of the connection, and the role of certificates.
type callContext struct {
	context.Context
	at       *callConn // nil: nothing is known of the connection
	certRole token.Role
	request  *request // of the call
}

// Value implements context.Context.
func (c *callContext) Value(key any) any {
	switch key.(type) {
	case callMark:
		return c
	case trustKey:
		if c.at != nil {
			return &c.at.trust
		}
	case connKey:
		if c.at != nil && c.at.conn != nil {
			return c.at.conn
		}
	case certRoleKey:
		if c.certRole != "" {
			return c.certRole
		}
	}
	return c.Context.Value(key)
}

// Begin authenticates and admits a call. r has the caller's credentials, address and TLS state; its context does not
// count. conn is what NewCallConn has returned for its connection. Leave must be called.
func (s *Server) Begin(ctx context.Context, r *http.Request, conn any, spec CallSpec) (*Call, error) {
	at, _ := conn.(*callConn)
	marked := &callContext{Context: ctx, at: at, certRole: s.deps.CertRole}
	ctx, r = marked, r.WithContext(marked)
	k := &Call{start: time.Now(), unlist: func() {}}
	k.c = &request{
		ResponseWriter: &callWriter{header: http.Header{}}, s: s, r: r, ctx: ctx, status: http.StatusOK,
		from: r.RemoteAddr, write: spec.Write,
		route: &route{
			Method: r.Method, Pattern: spec.Name, Role: spec.Role, Kind: spec.Kind,
			SkipAudit: spec.Role != token.Operator,
		},
	}
	marked.request = k.c
	s.deps.Metrics.HTTPStarted()
	k.trace()
	err := k.hold(at)
	if err == nil {
		err = k.c.authorize()
	}
	if err == nil {
		err = k.c.admit()
	}
	if err == nil && k.c.isLong() {
		k.unlist = s.auth.follow(k.c)
	}
	if err != nil {
		k.Leave(err)
		return nil, err
	}
	return k, nil
}

// hold keeps the connection from being closed as an idle one, until Leave.
func (k *Call) hold(at *callConn) error {
	if at == nil || at.conn == nil {
		return nil
	}
	if !at.conn.hold() {
		return problem.Busy("the connection was closed: it was idle, or its certificate has ended")
	}
	k.conn = at.conn
	return nil
}

// Context ends with the call, and with its cause when the credentials of a stream are no longer valid.
func (k *Call) Context() context.Context { return k.c.ctx }

// Leave ends the call with its error, nil if it succeeded.
func (k *Call) Leave(err error) {
	k.unlist()
	k.c.release()
	if k.conn != nil {
		k.conn.letGo()
	}
	status := http.StatusOK
	if e := (*cluster.Error)(nil); errors.As(err, &e) {
		k.c.failed, status = e, e.HTTPStatus()
		if e.Code == cluster.CodeOutcomeUnknown && !k.native {
			k.c.s.deps.Metrics.OutcomeUnknown()
		}
	} else if err != nil {
		status = http.StatusBadRequest
	}
	if !k.c.audited {
		k.c.audit(status)
	}
	k.endTrace(status, err)
	k.c.s.deps.Metrics.HTTPDone(k.c.route.Pattern, k.c.r.Method, status, time.Since(k.start))
	k.c.s.history.observeCall(k)
}

// callTimeout limits what a call waits for if its client has set no shorter limit.
const callTimeout = apiv1.DefaultTimeoutMS * time.Millisecond

// Propose has the leader apply a command, once, also if a leader dies meanwhile. A lease gets the caller as its owner.
// Only that and operators may use it.
func (k *Call) Propose(ctx context.Context, cmd state.Command) (state.Result, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	k.sign(&cmd)
	if k.c.isAudited(http.StatusOK, 0) {
		r := k.c.record()
		cmd.Audit = &r
	}
	result, err := k.c.s.calls.Propose(ctx, cmd)
	if err != nil {
		return result, err
	}
	k.c.audited = k.c.audited || cmd.Audit != nil
	if result.Err != nil {
		return result, result.Err
	}
	return result, nil
}

// sign puts the caller into a command that makes or uses leases.
func (k *Call) sign(cmd *state.Command) {
	if cmd.LeaseGrant != nil {
		cmd.LeaseGrant.Owner = k.c.caller.header()
	}
	if k.c.caller.role == token.Operator {
		k.recordRevoke(cmd)
		return
	}
	caller := k.userOf(cmd)
	if cmd.LeaseRevoke != nil {
		cmd.LeaseRevoke.Caller = caller
	}
	if cmd.Txn != nil {
		cmd.Txn.Caller = caller
	}
}

// ReadIndex returns once this node's view has every write that was acknowledged before the call.
func (k *Call) ReadIndex(ctx context.Context) error {
	return k.c.s.calls.ReadIndex(ctx, callTimeout)
}

// TakeAnswer takes bytes of the budget of all answers, until give is called, once. CodeBusy: there are not so many
// left.
func (k *Call) TakeAnswer(size int) (give func(), err error) {
	by, answers := k.c.holder(), k.c.s.answers // give refers to neither the call nor its context, which hold the answer
	if err := answers.take(by, int64(size)); err != nil {
		return nil, err
	}
	return func() { answers.give(by, int64(size)) }, nil
}

// Share is the share of one caller, or of one connection, in two budgets. Methods may be called by any goroutine.
type Share struct {
	places, bytes *budget
	by            shareholder
}

// NewShare returns the share of a connection of another protocol in what it holds before its callers are known: places
// of calls, and bytes of messages that are received or executed. It counts for the connection's address.
func (s *Server) NewShare(address string) *Share {
	group := countersOf(maphash.Comparable(shareSeed, addressGroup(address)))
	return &Share{places: s.calling, bytes: s.received, by: shareholder{identity: group, address: group}}
}

// Watches returns the caller's share of the watches of another protocol, and of the bytes of their keys.
func (k *Call) Watches() *Share {
	return &Share{places: k.c.s.watching, bytes: k.c.s.watchKeys, by: k.c.holder()}
}

// Take takes places and bytes. CodeBusy: there are not so many left, and it has taken nothing.
func (h *Share) Take(places, bytes int) error {
	if places > 0 {
		if err := h.places.take(h.by, int64(places)); err != nil {
			return err
		}
	}
	if bytes == 0 {
		return nil
	}
	err := h.bytes.take(h.by, int64(bytes))
	if err != nil && places > 0 {
		h.places.give(h.by, int64(places))
	}
	return err
}

// Give returns what Take has taken.
func (h *Share) Give(places, bytes int) {
	h.places.give(h.by, int64(places))
	h.bytes.give(h.by, int64(bytes))
}

// RenewLeases renews leases of the caller and returns how long each has left, counted from the call: its TTL, less if a
// role was revoked from it, 0 if it has ended. With one of another caller, it returns those before, and the error.
func (k *Call) RenewLeases(ctx context.Context, leases []*state.Session) (left []time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	ids := make([]string, 0, len(leases))
	var refused error
	for _, lease := range leases {
		if !k.c.caller.mayUse(lease) {
			refused = notOwner(lease)
			break
		}
		ids = append(ids, lease.ID)
	}
	if len(ids) == 0 {
		return nil, refused
	}
	live, err := k.c.s.calls.RenewSessions(ctx, ids)
	if err != nil {
		return nil, err
	}
	for i, id := range ids {
		left = append(left, min(live[id], leases[i].TTL))
	}
	return left, refused
}

// HoldLease makes the end of a connection that of a lease. detach must be called once, with whether the client is gone:
// the lease then ends after grace, unless another connection holds it. Until then it has a place among the attached
// sessions. CodeBusy: there is none left.
func (k *Call) HoldLease(ctx context.Context, lease string, grace time.Duration) (detach func(lost bool), err error) {
	by, places := k.c.holder(), k.c.s.attaching
	if err := places.take(by, 1); err != nil {
		return nil, err
	}
	c := cluster.Connection{Attachment: cluster.Attachment{Session: lease, Grace: grace}}
	if k.c.s.forward.ForwardToken {
		c.Credential = k.c.r.Header.Get("Authorization")
	}
	end, err := k.c.s.attached.Hold(ctx, c)
	if err != nil {
		places.give(by, 1)
		return nil, err
	}
	k.recordHold(lease)
	return func(lost bool) { end(lost); places.give(by, 1) }, nil
}

// Remaining returns how long a session has left, as the leader knows it, and reports whether it lives.
func (k *Call) Remaining(ctx context.Context, session string) (left time.Duration, lives bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return k.c.s.calls.Remaining(ctx, session)
}

// Native executes a POST of this package's own API for the caller, with in as JSON. Its audit record is made there.
func (k *Call) Native(ctx context.Context, path string, in any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	r := k.c.r.Clone(ctx)
	r.Method, r.URL, r.Body = http.MethodPost, &url.URL{Path: path}, io.NopCloser(bytes.NewReader(body))
	r.ContentLength = int64(len(body))
	r.Header.Set("Content-Type", apiv1.TypeJSON)
	k.native = true
	w := &recorder{callWriter: callWriter{header: http.Header{}}, status: http.StatusOK}
	k.c.s.ServeHTTP(w, r)
	if p, ok := problem.Decode(w.status, w.header, w.body); ok {
		return &cluster.Error{Code: cluster.Code(p.Code), Status: w.status, Detail: p.Detail}
	}
	return nil
}

// recorder keeps a response.
type recorder struct {
	callWriter
	status int
	body   []byte
}

func (w *recorder) WriteHeader(status int) { w.status = status }

func (w *recorder) Write(p []byte) (int, error) {
	w.body = append(w.body, p...)
	return len(p), nil
}

// AuthEnabled reports whether callers need a token or a certificate.
func (s *Server) AuthEnabled() bool { return s.auth.tokens.Load() != nil && !s.deps.Insecure }

// CheckToken checks a token and its name for a caller at an address. CodeUnauthenticated: they do not fit. CodeBusy:
// there were too many bad ones from there.
func (s *Server) CheckToken(name, tok, address string) error {
	if set := s.auth.tokens.Load(); set != nil {
		if e, ok := set.Find(tok); ok && e.Name == name {
			return nil
		}
	}
	s.deps.Metrics.AuthFailure()
	if ok, _ := s.auth.authFailures.allow(addressGroup(address), time.Now()); !ok {
		return problem.Busy("too many failed authentication attempts from this address")
	}
	return cluster.Errorf(cluster.CodeUnauthenticated, "unknown token, or a token of another name")
}

// CheckCaughtUp is for a read of this node's state without the leader. It returns an error until this node has applied
// what was committed when it started.
func (s *Server) CheckCaughtUp() error {
	s.calls.NoteLocalRead()
	return s.reads.Status().CheckCaughtUp()
}

// LimitConnections counts the connections of a listener of another protocol with those of this package, and limits
// what the kernel holds of their unsent responses. A connection without a call is idle, also during its TLS handshake.
func (s *Server) LimitConnections(l net.Listener) net.Listener { return &limitedListener{l, s.conns} }

type limitedListener struct {
	net.Listener
	conns *connTable
}

// Accept waits for a connection for which there is room.
func (l *limitedListener) Accept() (net.Conn, error) {
	c, err := l.conns.accept(l.Listener)
	if err != nil {
		return nil, err
	}
	c.phase.Store(connServing) // what net/http writes there itself stays as it is
	limitUnsent(c.socket)
	return c, nil
}
