package etcd

import (
	"context"
	"slices"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/protobuf/proto"
)

// TestCompressedStreamMessages: a message of a stream counts as what it has in memory, not as what was received, until
// its call has taken it.
func TestCompressedStreamMessages(t *testing.T) {
	t.Parallel()
	c := newRecipeClient(t)
	conn := dial(t, c.addr)
	taken := func() int { _, bytes := c.node.share.taken(); return bytes }
	both := &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}
	send := func(ctx context.Context, method string, m proto.Message) grpc.ClientStream {
		stream, err := conn.NewStream(ctx, both, method, grpc.UseCompressor(gzip.Name))
		if err == nil {
			err = stream.SendMsg(m)
		}
		if err != nil {
			t.Fatal(err)
		}
		return stream
	}
	const size = 30 << 10
	name := electionMessage(t, "LeaderRequest").set("name", []byte("e"))
	name.ProtoReflect().SetUnknown(append([]byte{0xa2, 0x06, 0x80, 0xf0, 0x01}, make([]byte, size)...)) // field 100
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	if err := send(ctx, observeMethod, name.Message).CloseSend(); err != nil {
		t.Fatal(err)
	}
	c.until("a message that the call keeps counts", func() bool { return taken() >= size })
	cancel()
	c.until("it is given back", func() bool { return taken() == 0 })

	filters := slices.Repeat([]pb.WatchCreateRequest_FilterType{pb.WatchCreateRequest_NOPUT}, size)
	watch := send(t.Context(), pb.Watch_Watch_FullMethodName, createWatch(&pb.WatchCreateRequest{
		Key: []byte("a"), Filters: filters,
	}))
	if err := watch.RecvMsg(new(pb.WatchResponse)); err != nil {
		t.Fatal(err)
	}
	c.until("a message that was taken does not count", func() bool { return taken() == 0 })
}
