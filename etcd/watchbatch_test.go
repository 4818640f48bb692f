package etcd

import (
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// TestBatchWithoutRoom: a batch that finds no room sends nothing and keeps no changes. Later it is made again, with
// what has come.
func TestBatchWithoutRoom(t *testing.T) {
	t.Parallel()
	n := newFakeNode(t)
	s := New(testDeps(n))
	defer s.grpc.Stop()
	var sent []*pb.WatchResponse
	ws := watchesOf(t, s, func(r *pb.WatchResponse) { sent = append(sent, r) })
	r := &pb.WatchCreateRequest{Key: []byte("a"), RangeEnd: []byte("b"), WatchId: 1}
	if err := ws.handle(createWatch(r)); err != nil {
		t.Fatal(err)
	}
	sent = nil
	for range eventBatch - 1 {
		n.apply(t, put("a", "v"))
	}
	n.answers.Store(maxAnswer)
	b, w := &batch{from: ws.watches[1].next}, ws.watches[1]
	lacks, err := ws.serveIn(b, w)
	if err != nil || lacks <= smallAnswer || len(sent) != 0 {
		t.Fatalf("lacks %d bytes, %d messages, %v", lacks, len(sent), err)
	}
	n.answers.Store(0)
	if err := b.room.take(ws.ctx, lacks, takeBytes); err != nil {
		t.Fatal(err)
	}
	n.apply(t, put("a", "v"))
	lacks, err = ws.serveIn(b, w)
	if err != nil || lacks != 0 || len(sent) != 1 || len(sent[0].Events) != eventBatch {
		t.Fatalf("lacks %d bytes, sent %v, %v", lacks, sent, err)
	}
	if b.room.give(); n.answers.Load() != 0 {
		t.Errorf("%d bytes are not given back", n.answers.Load())
	}
}
