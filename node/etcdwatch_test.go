package node

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// A watch at a follower gets its events immediately, also from a leader without further writes.
func TestFollowerWatchIsPrompt(t *testing.T) {
	t.Parallel()
	all := newCluster(t, 3, func(i int, c *Config) { calm(i, c); withEtcd(i, c) })
	leader := startAll(t, all)
	upgraded(t, all)
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	watch, err := pb.NewWatchClient(others(all, leader)[0].etcdClient()).Watch(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := watch.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{
		CreateRequest: &pb.WatchCreateRequest{Key: []byte("a")},
	}}); err != nil {
		t.Fatal(err)
	}
	if _, err := watch.Recv(); err != nil {
		t.Fatal(err)
	}
	kv := pb.NewKVClient(leader.etcdClient())
	const events = 30
	waited, puts := make([]time.Duration, 0, events), make([]time.Duration, 0, events)
	for i := range events {
		began := time.Now()
		if _, err := kv.Put(ctx, &pb.PutRequest{Key: []byte("a"), Value: fmt.Append(nil, i)}); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		puts = append(puts, start.Sub(began))
		r, err := watch.Recv()
		if err != nil || len(r.Events) != 1 || string(r.Events[0].Kv.Value) != fmt.Sprint(i) {
			t.Fatalf("event %d: %v, %v", i, r, err)
		}
		waited = append(waited, time.Since(start))
	}
	// Without a subscription the follower learns the commit index after 50 to 100 ms. On a machine that is so busy that
	// puts take long, events may take as long.
	slices.Sort(waited)
	slices.Sort(puts)
	limit := max(25*time.Millisecond, 2*puts[events/2])
	if median := waited[events/2]; median > limit {
		t.Errorf("half of the events came within %v of the answer to their put, want %v", median, limit)
	}
}

// A client that writes at a follower and reads there without asking for the latest value finds what it has written.
func TestFollowerReadsOwnWrites(t *testing.T) {
	t.Parallel()
	all := newCluster(t, 3, func(i int, c *Config) { calm(i, c); withEtcd(i, c) })
	leader := startAll(t, all)
	upgraded(t, all)
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	kv := pb.NewKVClient(others(all, leader)[0].etcdClient())
	for i := range 20 {
		want := fmt.Sprint(i)
		if _, err := kv.Put(ctx, &pb.PutRequest{Key: []byte("a"), Value: []byte(want)}); err != nil {
			t.Fatal(err)
		}
		out, err := kv.Range(ctx, &pb.RangeRequest{Key: []byte("a"), Serializable: true})
		if err != nil || len(out.Kvs) != 1 || string(out.Kvs[0].Value) != want {
			t.Fatalf("after put %d: %v, %v", i, out.GetKvs(), err)
		}
	}
}
