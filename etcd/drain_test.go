package etcd

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/health/grpc_health_v1"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"northstar/state"
)

// undecidedCall is a call whose write has an outcome when decided is closed.
type undecidedCall struct {
	fakeCall
	proposed, decided chan struct{}
}

func (c undecidedCall) Propose(ctx context.Context, cmd state.Command) (state.Result, error) {
	close(c.proposed)
	select {
	case <-c.decided:
		return c.fakeCall.Propose(ctx, cmd)
	case <-ctx.Done():
		return state.Result{}, context.Cause(ctx)
	}
}

// TestDrain_WritesAreAwaited: a server that stops waits for the outcome of a write for longer than for a call whose
// message has not come.
func TestDrain_WritesAreAwaited(t *testing.T) {
	t.Parallel()
	n := newFakeNode(t)
	write := undecidedCall{proposed: make(chan struct{}), decided: make(chan struct{})}
	d := testDeps(n)
	d.Begin = func(ctx context.Context, _ *http.Request, _ any, _ CallKind) (Call, error) {
		write := write
		write.fakeCall = fakeCall{ctx, n}
		return write, nil
	}
	s, addr := serve(t, d, nil)
	s.drainQuiet = time.Second
	conn := dial(t, addr)
	half, err := conn.NewStream(within(t), &grpc.StreamDesc{ClientStreams: true}, pb.KV_Put_FullMethodName)
	if err != nil {
		t.Fatal(err)
	}
	put := make(chan error, 1)
	go func() {
		_, err := pb.NewKVClient(conn).Put(within(t), &pb.PutRequest{Key: []byte("a")})
		put <- err
	}()
	<-write.proposed
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		s.Drain(within(t))
	}()
	select {
	case err := <-put:
		t.Errorf("the write ends without its outcome: %v", err)
	case <-drained:
		t.Error("the server has not waited for the write")
	case <-time.After(3 * s.drainQuiet / 2):
	}
	close(write.decided)
	if err := <-put; err != nil {
		t.Errorf("the write: %v", err)
	}
	<-drained
	if err := half.RecvMsg(&pb.PutResponse{}); err == nil {
		t.Error("the call without a message is answered")
	}
}

// TestDrain_CallsThatWaitForPlaces: a write that has no place yet is refused when the server stops.
func TestDrain_CallsThatWaitForPlaces(t *testing.T) {
	t.Parallel()
	n := newFakeNode(t)
	if err := n.returning.Acquire(t.Context(), maxReturning); err != nil {
		t.Fatal(err)
	}
	waits := make(chan struct{})
	d := testDeps(n)
	d.Begin = func(ctx context.Context, _ *http.Request, _ any, _ CallKind) (Call, error) {
		return waitingCall{fakeCall{ctx, n}, waits}, nil
	}
	s, addr := serve(t, d, nil)
	s.drainQuiet = 50 * time.Millisecond
	kv, put := pb.NewKVClient(dial(t, addr)), make(chan error, 1)
	go func() {
		_, err := kv.Put(within(t), &pb.PutRequest{Key: []byte("a"), PrevKv: true})
		put <- err
	}()
	<-waits
	ctx := within(t)
	s.Drain(ctx)
	if err := <-put; ctx.Err() != nil || status.Convert(err).Message() != rpctypes.ErrorDesc(rpctypes.ErrGRPCStopped) {
		t.Errorf("the write: %v; drained in time: %v", err, ctx.Err() == nil)
	}
	if _, more := n.View().Get("a"); more {
		t.Error("the write was executed")
	}
}

// waitingCall closes a channel when it waits for a place.
type waitingCall struct {
	fakeCall
	waits chan struct{}
}

func (c waitingCall) AwaitPlace(ctx context.Context) (func(), error) {
	close(c.waits)
	return c.fakeCall.AwaitPlace(ctx)
}

// TestStop_ConnectionsWithoutAFrame: gRPC waits for the first frame of each connection before it tells the others that
// the server stops, and before it stops.
func TestStop_ConnectionsWithoutAFrame(t *testing.T) {
	t.Parallel()
	for name, drains := range map[string]bool{"drain": true, "the end of Serve": false} {
		s := New(testDeps(newFakeNode(t)))
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(within(t))
		served := make(chan error, 1)
		var expired atomic.Int64
		go func() { served <- s.Serve(ctx, deadlineListener{l, &expired}, nil) }()
		for _, sent := range []string{http2.ClientPreface, http2.ClientPreface + "\x00\x00\x06\x04"} {
			c, err := net.Dial("tcp", l.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if _, err := io.WriteString(c, sent); err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(c, make([]byte, frameHeader)); err != nil { // gRPC has the connection
				t.Fatal(err)
			}
		}
		conn := dial(t, l.Addr().String())
		if _, err := pb.NewMaintenanceClient(conn).Status(ctx, &pb.StatusRequest{}); err != nil {
			t.Fatal(err)
		}
		if drains {
			s.Drain(ctx)
		}
		stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
		if !conn.WaitForStateChange(within(t), connectivity.Ready) {
			t.Errorf("%s: the connection with a frame goes on", name)
		}
		if n := expired.Load(); n != 0 {
			t.Errorf("%s: the server has waited for headerTimeout on %d connections", name, n)
		}
	}
}

// deadlineListener counts the reads of its connections that a deadline ends.
type deadlineListener struct {
	net.Listener
	expired *atomic.Int64
}

func (l deadlineListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	return deadlineConn{c, l.expired}, err
}

type deadlineConn struct {
	net.Conn
	expired *atomic.Int64
}

func (c deadlineConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		c.expired.Add(1)
	}
	return n, err
}

// TestDrain_LibraryStreams: streams of gRPC's own services end with the server, as others do.
func TestDrain_LibraryStreams(t *testing.T) {
	t.Parallel()
	s, addr := serve(t, testDeps(newFakeNode(t)), nil)
	s.drainQuiet = time.Hour
	conn, ctx := dial(t, addr), within(t)
	var streams []grpc.ClientStream
	for _, method := range libraryStreams {
		stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method)
		if err != nil {
			t.Fatal(err)
		}
		var in, out proto.Message = &reflectionv1.ServerReflectionRequest{
			MessageRequest: &reflectionv1.ServerReflectionRequest_ListServices{},
		}, &reflectionv1.ServerReflectionResponse{}
		if method == grpc_health_v1.Health_Watch_FullMethodName {
			in, out = &grpc_health_v1.HealthCheckRequest{}, &grpc_health_v1.HealthCheckResponse{}
		}
		err = stream.SendMsg(in)
		if _, health := in.(*grpc_health_v1.HealthCheckRequest); health && err == nil {
			err = stream.CloseSend()
		}
		if err == nil {
			err = stream.RecvMsg(out)
		}
		if err != nil {
			t.Fatalf("%s: %v", method, err)
		}
		streams = append(streams, stream)
	}
	if s.Drain(ctx); ctx.Err() != nil {
		t.Error("the server has waited for the streams")
	}
	for i, stream := range streams {
		var err error
		for err == nil { // the health of a server that stops comes first, or not at all
			err = stream.RecvMsg(&grpc_health_v1.HealthCheckResponse{})
		}
		if status.Convert(err).Message() != rpctypes.ErrorDesc(rpctypes.ErrGRPCStopped) {
			t.Errorf("%s ends with %v", libraryStreams[i], err)
		}
	}
}
