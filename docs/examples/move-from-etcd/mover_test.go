package main

import (
	"context"
	"testing"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// cluster is a fake with one key. After each of the first reads, a lease expires, which makes a revision.
type cluster struct {
	clientv3.KV
	value    string
	revision int64
	expiries int
}

func (c *cluster) Get(_ context.Context, key string, opts ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	r := &clientv3.GetResponse{Header: &etcdserverpb.ResponseHeader{Revision: c.revision}}
	if clientv3.OpGet(key, opts...).IsCountOnly() {
		return r, nil
	}
	r.Kvs = []*mvccpb.KeyValue{{Key: []byte("/data/1"), Value: []byte(c.value)}}
	if c.expiries > 0 {
		c.expiries--
		c.revision++
	}
	return r, nil
}

func (c *cluster) client(t *testing.T) *clientv3.Client {
	fake := clientv3.NewCtxClient(t.Context())
	fake.KV = c
	return fake
}

// TestCompare_LeasesExpire: leases that expire after the last write are no writers.
func TestCompare_LeasesExpire(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		expiries int
		value    string // of the new cluster
		equal    bool
	}{
		"none": {0, "v", true}, "one": {1, "v", true}, "some": {rounds - 1, "v", true},
		"without an end": {1000, "v", false}, "and the values differ": {1, "w", false},
	} {
		from, to := &cluster{value: "v", revision: 7, expiries: tt.expiries}, &cluster{value: tt.value, revision: 3}
		m := &mover{from: from.client(t), to: to.client(t)}
		keys, err := m.compare(t.Context())
		if (err == nil) != tt.equal || tt.equal && keys != 1 {
			t.Errorf("%s: %d keys, %v", name, keys, err)
		}
	}
}
