package node

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"northstar/cluster"
	"northstar/transport"
)

// commitMessages counts the messages by which a leader sends a follower nothing but its commit index.
type commitMessages struct{ to sync.Map } // *atomic.Int64 by ID of the follower

func (c *commitMessages) count(id cluster.NodeID) *atomic.Int64 {
	n, _ := c.to.LoadOrStore(id, new(atomic.Int64))
	return n.(*atomic.Int64)
}

// Outgoing implements transport.Faults.
func (c *commitMessages) Outgoing(m transport.Message) transport.Fault {
	if m.Kind == "append" && m.Size == 0 {
		c.count(m.To).Add(1)
	}
	return transport.Fault{}
}

// A watch at a follower gets its events immediately, also from a leader without further writes: the leader sends each
// commit index to that follower. Its periodic ones go to all followers alike.
func TestFollowerWatchIsPrompt(t *testing.T) {
	t.Parallel()
	all := newCluster(t, 3, func(i int, c *Config) { calm(i, c); withEtcd(i, c) })
	var messages commitMessages
	for _, n := range all {
		n.env.Faults = &messages
	}
	leader := startAll(t, all)
	upgraded(t, all)
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	watching, other := others(all, leader)[0], others(all, leader)[1]
	watch, err := pb.NewWatchClient(watching.etcdClient()).Watch(ctx)
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
	const events = 100
	more := func() int64 { return messages.count(watching.cfg.ID).Load() - messages.count(other.cfg.ID).Load() }
	sent := int64(0) // to the follower with the watch, and not to the other
	for i := range events {
		before := more()
		if _, err := kv.Put(ctx, &pb.PutRequest{Key: []byte("a"), Value: fmt.Append(nil, i)}); err != nil {
			t.Fatal(err)
		}
		index := leader.Consensus().Applied()
		waiting, cancel := context.WithCancel(ctx)
		applied := make(chan error, 2)
		for _, n := range []*testNode{watching, other} {
			go func() { applied <- n.Consensus().AwaitApplied(waiting, index) }()
		}
		if err := <-applied; err != nil { // by either of them
			t.Fatal(err)
		}
		sent += more() - before
		cancel()
		r, err := watch.Recv()
		if err != nil || len(r.Events) != 1 || string(r.Events[0].Kv.Value) != fmt.Sprint(i) {
			t.Fatalf("event %d: %v, %v", i, r, err)
		}
	}
	if sent < events/4 { // without a subscription, the two get as many; on a busy machine, a periodic one may be first
		t.Errorf("with %d puts, the follower with the watch got %d messages more than the other", events, sent)
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
