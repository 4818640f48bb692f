package etcd

import (
	"strings"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding/gzip"
)

// TestCompressedMessages: a client may compress its messages, but not to make the node decompress large ones.
func TestCompressedMessages(t *testing.T) {
	t.Parallel()
	n := newFakeNode(t)
	_, addr := serve(t, testDeps(n), nil)
	kv := pb.NewKVClient(dial(t, addr, grpc.WithDefaultCallOptions(grpc.UseCompressor(gzip.Name))))
	for size, refused := range map[int]bool{100: false, maxCompressed / 2: false, maxCompressed: true, 1 << 20: true} {
		_, err := kv.Put(within(t), &pb.PutRequest{Key: []byte("a"), Value: make([]byte, size)})
		if (err != nil) != refused || refused && !strings.Contains(err.Error(), errCompressedTooLarge.Error()) {
			t.Errorf("a value of %d bytes: %v", size, err)
		}
	}
	watch, err := pb.NewWatchClient(dial(t, addr)).Watch(within(t), grpc.UseCompressor(gzip.Name))
	if err == nil {
		err = watch.Send(createWatch(&pb.WatchCreateRequest{Key: make([]byte, 1<<20)}))
	}
	if err == nil {
		_, err = watch.Recv()
	}
	if err == nil || !strings.Contains(err.Error(), errCompressedTooLarge.Error()) {
		t.Errorf("a watch of 1 MiB: %v", err)
	}
}
