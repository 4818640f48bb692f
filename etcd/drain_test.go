package etcd

import (
	"context"
	"net/http"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"

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
