package compat

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/protobuf/proto"
)

// watcher is one stream of watches of a program, and what it has seen.
type watcher struct {
	stream  pb.Watch_WatchClient
	answers chan *pb.WatchResponse
	created []string           // answers to creations, in order
	seen    map[int64][]string // by watch
	live    map[int64]bool
	highest int64 // of the revisions in headers
}

func (s *side) openWatch(ctx context.Context, t *testing.T) *watcher {
	t.Helper()
	stream, err := pb.NewWatchClient(s.conn).Watch(ctx)
	if err != nil {
		t.Fatal(s.name, err)
	}
	w := &watcher{
		stream: stream, answers: make(chan *pb.WatchResponse, 1024), seen: map[int64][]string{}, live: map[int64]bool{},
	}
	go func() {
		defer close(w.answers)
		for {
			r, err := stream.Recv()
			if err != nil {
				return
			}
			w.answers <- r
		}
	}()
	return w
}

// create creates a watch, and waits until it has caught up: etcd cancels a watch that a compaction overtakes, and
// NorthStar does not.
func (w *watcher) create(ctx context.Context, t *testing.T, s *side, r *pb.WatchCreateRequest) {
	t.Helper()
	n := len(w.created)
	r.StartRevision = min(r.StartRevision, s.revision(ctx, t)) // etcd has no progress while a watch is in the future
	w.request(t, &pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: r}})
	for len(w.created) == n {
		w.take(ctx, t, s)
	}
	w.sync(ctx, t, s)
}

func (w *watcher) request(t *testing.T, r *pb.WatchRequest) {
	t.Helper()
	if err := w.stream.Send(r); err != nil {
		t.Fatal(err)
	}
}

// take waits for one answer and notes it. It reports whether it is one of progress.
func (w *watcher) take(ctx context.Context, t *testing.T, s *side) (progress bool) {
	t.Helper()
	select {
	case r, ok := <-w.answers:
		if !ok {
			t.Fatal(s.name, ": the stream has ended")
		}
		return w.note(t, s, r)
	case <-ctx.Done():
		t.Fatal(s.name, ": a watch hangs")
	case <-time.After(20 * time.Millisecond):
	}
	return false
}

func (w *watcher) note(t *testing.T, s *side, r *pb.WatchResponse) (progress bool) {
	t.Helper()
	if r.Created {
		if !r.Canceled {
			w.live[r.WatchId] = true
		}
		w.created = append(w.created, describe(proto.Clone(r), s.base))
		return false
	}
	if r.WatchId != -1 && !w.live[r.WatchId] {
		t.Errorf("%s: an answer for watch %d before its creation, or after its end", s.name, r.WatchId)
	}
	for _, e := range r.Events {
		w.seen[r.WatchId] = append(w.seen[r.WatchId], describe(proto.Clone(e), s.base))
	}
	if r.Canceled {
		w.live[r.WatchId] = false
		end := &pb.WatchResponse{CompactRevision: r.CompactRevision, CancelReason: r.CancelReason}
		w.seen[r.WatchId] = append(w.seen[r.WatchId], "canceled "+describe(end, s.base))
		return false
	}
	if s.name == "NorthStar" {
		if r.Header.Revision < w.highest {
			t.Errorf("the revision in headers decreases from %d to %d", w.highest, r.Header.Revision)
		}
		w.highest = r.Header.Revision
	}
	return len(r.Events) == 0
}

// sync waits for an answer of progress at the present revision: all events were sent then.
func (w *watcher) sync(ctx context.Context, t *testing.T, s *side) {
	t.Helper()
	for {
		if !w.anyLive() {
			w.drain(t, s)
			return
		}
		w.request(t, &pb.WatchRequest{RequestUnion: &pb.WatchRequest_ProgressRequest{
			ProgressRequest: &pb.WatchProgressRequest{},
		}})
		for range 10 {
			if w.take(ctx, t, s) {
				w.drain(t, s)
				return
			}
		}
	}
}

// revision returns the present revision.
func (s *side) revision(ctx context.Context, t *testing.T) int64 {
	t.Helper()
	now, err := pb.NewKVClient(s.conn).Range(ctx, &pb.RangeRequest{Key: []byte("base")})
	if err != nil {
		t.Fatal(s.name, err)
	}
	return now.Header.Revision
}

// anyLive reports whether a watch could have progress.
func (w *watcher) anyLive() bool {
	for _, live := range w.live {
		if live {
			return true
		}
	}
	return false
}

// drain notes what has arrived.
func (w *watcher) drain(t *testing.T, s *side) {
	t.Helper()
	for {
		select {
		case r, ok := <-w.answers:
			if !ok {
				return
			}
			w.note(t, s, r)
		default:
			return
		}
	}
}

// finish waits until all events have arrived and returns what was seen.
func (w *watcher) finish(ctx context.Context, t *testing.T, s *side) string {
	t.Helper()
	w.sync(ctx, t, s)
	_ = w.stream.CloseSend() // the stream ends with the context
	var out strings.Builder
	for _, c := range w.created {
		fmt.Fprintln(&out, "  created:", c)
	}
	var ids []int64
	for id := range w.seen {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	for _, id := range ids {
		fmt.Fprintf(&out, "  %d:\n    %s\n", id, strings.Join(w.seen[id], "\n    "))
	}
	return out.String()
}
