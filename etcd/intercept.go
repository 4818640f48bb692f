package etcd

import (
	"context"
	"net/http"
	"net/url"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"northstar/api/openapi"
	"northstar/api/token"
	"northstar/state"
)

type (
	connKey struct{} // of what NewConn returned for the connection of an HTTP request
	callKey struct{} // of the Call
	sentKey struct{} // of the metadata of a gRPC call
)

// callOf returns the call that ctx belongs to, nil for a method without authentication.
func callOf(ctx context.Context) Call {
	c, _ := ctx.Value(callKey{}).(Call)
	return c
}

// interceptUnary authenticates and admits a call with one answer.
func (s *Server) interceptUnary(
	ctx context.Context, in any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler,
) (out any, err error) {
	linkOf(ctx).took()
	if err := answerPlain(ctx); err != nil {
		return nil, err
	}
	s.answering.Add(1)
	defer s.answering.Add(-1)
	ctx, leave, err := s.begin(ctx, info.FullMethod)
	if err != nil {
		return nil, statusOf(err)
	}
	return s.answer(ctx, leave, in, info, handle)
}

// answer handles a call with one answer that has begun.
func (s *Server) answer(
	ctx context.Context, leave func(error), in any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler,
) (out any, err error) {
	defer func() {
		err = s.recovered(recover(), info.FullMethod, err)
		leave(err)
		err = statusOf(err)
	}()
	give, err := holdRequest(ctx, in, s.freeOf(info.FullMethod))
	if err != nil {
		return nil, err
	}
	defer give()
	held := &heldAnswer{}
	defer func() {
		if out == nil || err != nil {
			held.give()
		}
	}()
	out, err = handle(context.WithValue(ctx, answerKey{}, held), in)
	if m, ok := out.(proto.Message); ok && err == nil && held.taken > 0 {
		s.answering.Add(1)
		sent := func() { held.give(); s.answering.Add(-1) }
		out = newCounted(m, sent, s.lifetime, closeConn(ctx))
	}
	return out, err
}

// interceptStream authenticates and admits a stream.
func (s *Server) interceptStream(
	service any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handle grpc.StreamHandler,
) (err error) {
	if err := answerPlain(stream.Context()); err != nil {
		return err
	}
	ctx, leave, err := s.begin(stream.Context(), info.FullMethod)
	if err != nil {
		return statusOf(err)
	}
	defer func() {
		err = s.recovered(recover(), info.FullMethod, err)
		leave(err)
		err = statusOf(err)
	}()
	if requiresLeader(ctx) {
		var cancel context.CancelCauseFunc
		ctx, cancel = context.WithCancelCause(ctx)
		defer cancel(nil)
		stop := s.endWithoutLeader(ctx, cancel)
		defer stop()
	}
	if slices.Contains(libraryStreams, info.FullMethod) {
		var release func()
		ctx, release = s.untilStopped(ctx)
		defer release()
		stream = &libraryStream{stream, ctx, s, linkOf(ctx)}
	}
	err = handle(service, &callStream{ServerStream: stream, s: s, ctx: ctx, link: linkOf(ctx)})
	if cause := context.Cause(ctx); err != nil && cause != nil && stream.Context().Err() == nil {
		err = cause // the call was ended here, not by the client
	}
	return err
}

// refuseMethod answers calls of services that are not registered, such as etcd's Lock and Election.
func refuseMethod(_ any, stream grpc.ServerStream) error {
	name, _ := grpc.MethodFromServerStream(stream)
	return unsupported(unsupportedReason(name))
}

// recovered returns the error of a call that panicked: one call must not end the node.
func (s *Server) recovered(p any, method string, err error) error {
	if p == nil {
		return err
	}
	s.logger.Error("panic while serving a call", "method", method, "panic", p, "stack", string(debug.Stack()))
	return status.Error(codes.Internal, "etcdserver: internal error; see the node's log for the stack trace")
}

// receive receives the messages of a stream, for a handler that has other things to wait for as well. The error that
// ends them comes when the last one is in the channel, which has room for ahead messages. It starts a goroutine that
// may outlive the handler, and then only receives.
func receive[T any](
	ctx context.Context, s *Server, method string, ahead int, next func() (T, error),
) (<-chan T, <-chan error) {
	messages, failed := make(chan T, ahead), make(chan error, 1)
	go func() {
		var err error
		defer func() { // the interceptors recover only in their own goroutine
			failed <- s.recovered(recover(), method, err)
		}()
		for {
			var m T
			if m, err = next(); err != nil {
				return
			}
			select {
			case messages <- m:
			case <-ctx.Done():
				err = context.Cause(ctx)
				return
			}
		}
	}()
	return messages, failed
}

// begin authenticates and admits a call. leave must be called with the call's error.
func (s *Server) begin(ctx context.Context, name string) (_ context.Context, leave func(error), err error) {
	kind := CallKind{Name: name}
	switch m := s.methods[name]; {
	case m != nil:
		kind.Role, kind.Kind, kind.Write = m.role, m.kind, m.write
	case name == grpc_health_v1.Health_Check_FullMethodName, name == grpc_health_v1.Health_List_FullMethodName:
		kind.Role = token.None
	case slices.Contains(libraryStreams, name): // and no other name: calls are counted by names
		kind.Role, kind.Kind = token.Observer, openapi.Stream // a stream without a caller is not limited
	default:
		return nil, nil, unsupported(unsupportedReason(name))
	}
	if kind.Role == token.None {
		return ctx, func(error) {}, nil
	}
	r, conn := incoming(ctx, name)
	call, err := s.deps.Begin(ctx, r, conn, kind)
	if err != nil {
		return nil, nil, err
	}
	leave = func(err error) { call.Leave(callError(err)) }
	if kind.Kind != openapi.Unary && requiresLeader(ctx) {
		err = s.awaitLeader(call.Context())
	}
	if err == nil {
		err = s.takeFirstRevision(call, name)
	}
	if err != nil {
		leave(err)
		return nil, nil, err
	}
	return context.WithValue(call.Context(), callKey{}, call), leave, nil
}

// takeFirstRevision proposes the first revision in an empty state: etcd's clients take revision 0 for no answer. Where
// only native clients have written, it begins to keep what changes replace.
func (s *Server) takeFirstRevision(call Call, name string) error {
	v, m := s.deps.Node.View(), s.methods[name]
	switch {
	case v.Revision() > 0 && v.KeepsReplaced(), m == nil, m.desc == &pb.Cluster_ServiceDesc,
		m.desc == &pb.Maintenance_ServiceDesc, m.desc == &pb.Auth_ServiceDesc:
		return nil
	case v.Revision() == 0:
		return proposeFirstRevision(call.Context(), call)
	case m.role != token.Operator: // whose call would be recorded with this command
		s.keepReplaced(call)
	}
	return nil
}

func proposeFirstRevision(ctx context.Context, call Call) error {
	_, err := call.Propose(ctx, state.Command{
		Kind: state.KindFirstRevision, FirstRevision: &state.FirstRevision{},
	})
	return err
}

// keepReplaced has changes keep the items that they replace, as this node's view then shows. Until then every earlier
// revision counts as compacted. A failed attempt does not fail the call: a member may be of an older build. The next
// attempt is after keepAgainAfter. One goes on when its client is gone: clients with short deadlines come again.
func (s *Server) keepReplaced(call Call) {
	if s.deps.Node.Status().LeaderID == "" {
		return
	}
	if s.keeping.Acquire(call.Context(), 1) != nil { // the other calls wait for the one that proposes
		return
	}
	defer s.keeping.Release(1)
	if !s.keptAt.IsZero() && time.Since(s.keptAt) < keepAgainAfter {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(call.Context()), 2*s.deps.TimeoutMax)
	defer cancel()
	if proposeFirstRevision(ctx, call) == nil {
		_ = call.ReadIndex(ctx)
	}
	s.keptAt = time.Now()
}

// keepAgainAfter is how long keepReplaced makes no attempt after one.
const keepAgainAfter = 10 * time.Second

// requiresLeader reports whether the client wants its stream to end when this node knows no leader.
func requiresLeader(ctx context.Context) bool {
	values := sentAs(ctx, rpctypes.MetadataRequireLeaderKey)
	return len(values) > 0 && values[0] == rpctypes.MetadataHasLeader
}

// sentAs returns the metadata of a key in lower case, not to be changed. gRPC's own functions copy it, or go through
// all of it.
func sentAs(ctx context.Context, key string) []string {
	if all, ok := ctx.Value(sentKey{}).(metadata.MD); ok {
		return all[key]
	}
	return metadata.ValueFromIncomingContext(ctx, key)
}

// noLeaderTimeouts is the number of election timeouts without a leader after which a stream that requires one ends.
const noLeaderTimeouts = 3

// awaitLeader returns when this node knows a leader. It refuses a call when endWithoutLeader would end it. The clients
// of a leader that has died come here before there is another one, and a refusal ends clientv3's watches.
func (s *Server) awaitLeader(ctx context.Context) error {
	var expired <-chan time.Time
	for {
		changed := s.deps.Node.LeaderChanged() // before Status, so that no change is missed
		if s.deps.Node.Status().LeaderID != "" {
			return nil
		}
		if expired == nil {
			timer := time.NewTimer(noLeaderTimeouts * s.deps.TimeoutMax)
			defer timer.Stop()
			expired = timer.C
		}
		select {
		case <-changed:
		case <-expired:
			return rpctypes.ErrGRPCNoLeader
		case <-s.stopping.Done():
			return rpctypes.ErrGRPCStopped
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// endWithoutLeader ends a stream's context when this node has known no leader for noLeaderTimeouts × timeout-max. stop
// must be called, and waits for the goroutine.
func (s *Server) endWithoutLeader(ctx context.Context, end context.CancelCauseFunc) (stop func()) {
	stopped, done := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer func() { // the interceptors recover only in their own goroutine
			if err := s.recovered(recover(), "the wait for a leader", nil); err != nil {
				end(err)
			}
		}()
		for stopped.Err() == nil {
			changed := s.deps.Node.LeaderChanged() // before Status, so that no change is missed
			var expired <-chan time.Time
			timer := time.NewTimer(noLeaderTimeouts * s.deps.TimeoutMax)
			if s.deps.Node.Status().LeaderID == "" {
				expired = timer.C
			}
			select {
			case <-changed:
			case <-expired:
				end(rpctypes.ErrGRPCNoLeader)
				done()
			case <-stopped.Done():
			}
			timer.Stop()
		}
	}()
	return func() { done(); <-ended }
}

// incoming returns a call as an HTTP request, with what is remembered of its connection. The gateway has one; for
// gRPC it has what identifies a caller: token, TLS state and address. It has no authority: many clients send there a
// list of nodes or a name of their own, and no web page, against which others check it, can make these calls.
func incoming(ctx context.Context, name string) (*http.Request, any) {
	if r, ok := ctx.Value(httpRequestKey{}).(*http.Request); ok {
		if sent := r.Header.Get("Authorization"); sent != "" && !strings.Contains(sent, " ") {
			r = r.Clone(ctx)
			r.Header.Set("Authorization", "Bearer "+sent) // etcd's clients send the bare token
		}
		return r, ctx.Value(connKey{})
	}
	r := &http.Request{Method: http.MethodPost, URL: &url.URL{Path: name}, Header: http.Header{}}
	for _, key := range [...]string{"token", "authorization"} {
		if sent := sentAs(ctx, key); len(sent) > 0 {
			r.Header["Authorization"] = []string{"Bearer " + strings.TrimPrefix(sent[0], "Bearer ")}
			break
		}
	}
	// With a proxy's header a caller on this machine is no local one. Clients may begin a trace.
	for _, key := range [...]string{"forwarded", "x-forwarded-for", "traceparent"} {
		if sent := sentAs(ctx, key); len(sent) > 0 {
			r.Header[http.CanonicalHeaderKey(key)] = sent
		}
	}
	p, ok := peer.FromContext(ctx)
	if !ok {
		return r, nil
	}
	info, ok := p.AuthInfo.(*connInfo)
	if !ok {
		r.RemoteAddr = p.Addr.String()
		return r, nil
	}
	r.RemoteAddr = info.remote
	if info.secure {
		r.TLS = &info.State
	}
	return r, info.conn
}
