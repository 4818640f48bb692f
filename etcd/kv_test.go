package etcd

import (
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// TestPutAndRange: revisions and versions are those of the state, and the header is as new as the items.
func TestPutAndRange(t *testing.T) {
	t.Parallel()
	_, addr := serve(t, testDeps(newFakeNode(t)), nil)
	kv := pb.NewKVClient(dial(t, addr))
	ctx := within(t)
	for i := int64(2); i < 4; i++ {
		out, err := kv.Put(ctx, &pb.PutRequest{Key: []byte("a"), Value: []byte("v"), PrevKv: true})
		if err != nil || out.Header.Revision != i || (out.PrevKv != nil) != (i == 3) {
			t.Fatalf("put: %v, %v", out, err)
		}
	}
	out, err := kv.Range(ctx, &pb.RangeRequest{Key: []byte("a")})
	if err != nil || len(out.Kvs) != 1 || out.Header.Revision != 3 || out.Header.RaftTerm != 3 {
		t.Fatalf("range: %v, %v", out, err)
	}
	if it := out.Kvs[0]; it.CreateRevision != 2 || it.ModRevision != 3 || it.Version != 2 || string(it.Value) != "v" {
		t.Errorf("item: %v", it)
	}
	deleted, err := kv.DeleteRange(ctx, &pb.DeleteRangeRequest{Key: []byte("a"), RangeEnd: []byte("b")})
	if err != nil || deleted.Deleted != 1 || deleted.Header.Revision != 4 {
		t.Errorf("delete: %v, %v", deleted, err)
	}
}
