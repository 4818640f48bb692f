package etcd

import (
	"context"
	"net/http"
	"runtime"
	"strings"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc/codes"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
)

// TestUnsentMessages: a stream whose client does not read has few small messages that are not sent, and no large ones
// that are not counted. It goes on when the client reads.
func TestUnsentMessages(t *testing.T) {
	t.Parallel()
	n := newFakeNode(t)
	d, wires := testDeps(n), make(chan *wire, 1)
	d.Begin = func(ctx context.Context, _ *http.Request, _ any, _ CallKind) (Call, error) {
		wires <- wireOf(ctx)
		return fakeCall{ctx, n}, nil
	}
	_, addr := serve(t, d, nil)
	ctx := within(t)
	stream, err := pb.NewWatchClient(dial(t, addr)).Watch(ctx)
	if err != nil {
		t.Fatal(err)
	}
	const pairs = 5000
	go func() { // until the server takes no more
		for i := range int64(pairs) {
			_ = stream.Send(createWatch(&pb.WatchCreateRequest{Key: []byte("a"), WatchId: i + 1}))
			_ = stream.Send(cancelWatch(i + 1))
		}
	}()
	w := <-wires
	unsent := func() (size int, waits bool) {
		w.mu.Lock()
		defer w.mu.Unlock()
		if h, ok := w.open[1]; ok {
			return h.unsent, h.sent != nil
		}
		return 0, false
	}
	size, waits := unsent()
	for ; !waits && ctx.Err() == nil; size, waits = unsent() {
		runtime.Gosched()
	}
	if !waits || size > maxUnsent+100 {
		t.Fatalf("waits: %v, %d bytes are not sent", waits, size)
	}
	receive := func() *pb.WatchResponse {
		r, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	for i := range int64(2 * pairs) {
		if r := receive(); r.WatchId != i/2+1 || r.Created != (i%2 == 0) {
			t.Fatalf("answer %d: %v", i, r)
		}
	}
	_ = stream.Send(createWatch(&pb.WatchCreateRequest{Key: []byte("a"), WatchId: 1}))
	receive()
	n.apply(t, put("a", strings.Repeat("v", 2*smallAnswer)))
	if r := receive(); len(r.Events) != 1 || n.largest.Load() < 4*smallAnswer {
		t.Errorf("%d events, %d bytes are counted", len(r.Events), n.largest.Load())
	}
}

// TestReflectionIsCounted: an answer with the files of a service has some 40 KB, and waits for no room.
func TestReflectionIsCounted(t *testing.T) {
	t.Parallel()
	n := newFakeNode(t)
	_, addr := serve(t, testDeps(n), nil)
	ask := func() error {
		stream, err := reflectionv1.NewServerReflectionClient(dial(t, addr)).ServerReflectionInfo(within(t))
		if err != nil {
			return err
		}
		for range 2 {
			err := stream.Send(&reflectionv1.ServerReflectionRequest{
				MessageRequest: &reflectionv1.ServerReflectionRequest_FileContainingSymbol{
					FileContainingSymbol: pb.KV_ServiceDesc.ServiceName,
				},
			})
			if err != nil {
				return err
			}
			if _, err := stream.Recv(); err != nil {
				return err
			}
		}
		return nil
	}
	if err := ask(); err != nil || n.largest.Load() < 16*smallAnswer {
		t.Errorf("%v, %d bytes are counted", err, n.largest.Load())
	}
	n.answers.Store(maxAnswer)
	if err := ask(); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("without a budget: %v", err)
	}
}
