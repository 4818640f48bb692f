package node

import (
	"context"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// withEtcd serves the etcd API on a free port.
func withEtcd(_ int, c *Config) { c.EtcdAddr = "127.0.0.1:0" }

// etcdClient returns a connection to a node's etcd port.
func (n *testNode) etcdClient() *grpc.ClientConn {
	n.t.Helper()
	c, err := grpc.NewClient(n.etcdAddr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { c.Close() })
	return c
}

// TestEtcdAPI: keys of the etcd API are those of the native one, and a lease ends with its keys.
func TestEtcdAPI(t *testing.T) {
	t.Parallel()
	all := newCluster(t, 1, withEtcd)
	n := startAll(t, all)
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	conn := n.etcdClient()
	kv, leases := pb.NewKVClient(conn), pb.NewLeaseClient(conn)
	if out, err := kv.Range(ctx, &pb.RangeRequest{Key: []byte("a")}); err != nil || out.Header.Revision == 0 {
		t.Errorf("range in an empty state: %v, %v", out, err)
	}
	if _, err := kv.Put(ctx, &pb.PutRequest{Key: []byte("a"), Value: []byte("v")}); err != nil {
		t.Fatal(err)
	}
	want(t, plain, "GET", "http://"+n.httpAddr+"/v1/kv/a", "", 200, "v")
	want(t, plain, "PUT", "http://"+n.httpAddr+"/v1/kv/b", "w", 200, "")
	out, err := kv.Range(ctx, &pb.RangeRequest{Key: []byte("a"), RangeEnd: []byte("c")})
	if err != nil || len(out.Kvs) != 2 || string(out.Kvs[1].Value) != "w" {
		t.Errorf("range: %v, %v", out, err)
	}
	lease, err := leases.LeaseGrant(ctx, &pb.LeaseGrantRequest{TTL: 3600})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := kv.Put(ctx, &pb.PutRequest{Key: []byte("c"), Lease: lease.ID}); err != nil {
		t.Fatal(err)
	}
	left, err := leases.LeaseTimeToLive(ctx, &pb.LeaseTimeToLiveRequest{ID: lease.ID, Keys: true})
	if err != nil || left.TTL < 1 || left.GrantedTTL != 3600 || len(left.Keys) != 1 {
		t.Errorf("time to live: %v, %v", left, err)
	}
	alive, err := leases.LeaseKeepAlive(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for id, ttl := range map[int64]int64{lease.ID: 3600, lease.ID + 1: 0} {
		if err := alive.Send(&pb.LeaseKeepAliveRequest{ID: id}); err != nil {
			t.Fatal(err)
		}
		if r, err := alive.Recv(); err != nil || r.TTL != ttl || r.ID != id {
			t.Errorf("keep-alive of %d: %v, %v", id, r, err)
		}
	}
	if _, err := leases.LeaseRevoke(ctx, &pb.LeaseRevokeRequest{ID: lease.ID}); err != nil {
		t.Error(err)
	}
	want(t, plain, "GET", "http://"+n.httpAddr+"/v1/kv/c", "", 404, "")
}
