package compat

import (
	"context"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// TestProgressAfterCompaction shows why a client of etcd must cancel a watch that a compaction has ended: until then no
// request for progress on the same stream is answered. NorthStar answers it.
func TestProgressAfterCompaction(t *testing.T) {
	for name, side := range map[string]struct {
		addr string
		want int
	}{
		"etcd": {startEtcd(t), 1}, "NorthStar": {startNorthstar(t, 1)[0].etcd, 2},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		if got := progressAnswers(ctx, t, side.addr); got != side.want {
			t.Errorf("%s: %d answers of progress, want %d", name, got, side.want)
		}
		cancel()
	}
}

// progressAnswers asks for progress beside a watch that a compaction has ended, and again after that one is canceled.
// It returns the number of answers.
func progressAnswers(ctx context.Context, t *testing.T, addr string) (answers int) {
	t.Helper()
	conn := dial(t, addr)
	kv := pb.NewKVClient(conn)
	var last int64
	for range 5 {
		out, err := kv.Put(ctx, &pb.PutRequest{Key: []byte("a")})
		if err != nil {
			t.Fatal(err)
		}
		last = out.Header.Revision
	}
	if _, err := kv.Compact(ctx, &pb.CompactionRequest{Revision: last}); err != nil {
		t.Fatal(err)
	}
	stream, err := pb.NewWatchClient(conn).Watch(ctx)
	if err != nil {
		t.Fatal(err)
	}
	send := func(r *pb.WatchRequest) {
		t.Helper()
		if err := stream.Send(r); err != nil {
			t.Fatal(err)
		}
	}
	await := func(what string, is func(*pb.WatchResponse) bool) {
		t.Helper()
		for {
			r, err := stream.Recv()
			if err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			if isProgress(r) {
				answers++
			}
			if is(r) {
				return
			}
		}
	}
	create := func(id, start int64) *pb.WatchRequest {
		return &pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{
			CreateRequest: &pb.WatchCreateRequest{Key: []byte("a"), WatchId: id, StartRevision: start},
		}}
	}
	progress := &pb.WatchRequest{RequestUnion: &pb.WatchRequest_ProgressRequest{
		ProgressRequest: &pb.WatchProgressRequest{},
	}}
	send(create(1, last-2))
	await("compaction", func(r *pb.WatchResponse) bool { return r.CompactRevision > 0 })
	send(create(2, 0))
	await("creation", func(r *pb.WatchResponse) bool { return r.Created })
	send(progress)
	send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CancelRequest{
		CancelRequest: &pb.WatchCancelRequest{WatchId: 1},
	}})
	send(progress)
	send(create(3, -1)) // refused: its answer shows that the requests before were executed
	await("refusal", func(r *pb.WatchResponse) bool { return r.Created && r.Canceled })
	if answers == 0 { // in etcd, answers of progress and others have no order
		await("progress", isProgress)
	}
	return answers
}

func isProgress(r *pb.WatchResponse) bool { return r.WatchId == -1 && !r.Created }
