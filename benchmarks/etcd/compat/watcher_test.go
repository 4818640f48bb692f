package compat

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/protobuf/proto"
)

// watcher is one stream of watches of a program, and what it has seen.
type watcher struct {
	s       *side
	stream  pb.Watch_WatchClient
	answers chan *pb.WatchResponse // closed at the end of the stream
	created []string               // answers to creations, in order
	seen    map[int64][]string     // by watch
	live    map[int64]bool
	ended   map[int64]int // watches that a compaction has ended, and that this client has canceled then
	highest int64         // of the revisions in headers
}

// watcher returns the program's stream of watches.
func (s *side) watcher(ctx context.Context) (*watcher, error) {
	if s.watch != nil {
		return s.watch, nil
	}
	stream, err := pb.NewWatchClient(s.conn).Watch(ctx)
	if err != nil {
		return nil, err
	}
	w := &watcher{
		s: s, stream: stream, answers: make(chan *pb.WatchResponse, 1024), seen: map[int64][]string{},
		live: map[int64]bool{}, ended: map[int64]int{},
	}
	go func() { // ends with ctx
		defer close(w.answers)
		for {
			r, err := stream.Recv()
			if err != nil {
				return
			}
			select {
			case w.answers <- r:
			case <-ctx.Done():
				return
			}
		}
	}()
	s.watch = w
	return w, nil
}

// create creates a watch, and waits until it has caught up: etcd cancels a watch that a compaction overtakes, and
// NorthStar does not.
func (w *watcher) create(ctx context.Context, r *pb.WatchCreateRequest) error {
	now, err := w.s.revision(ctx)
	if err != nil {
		return err
	}
	n := len(w.created)
	r.StartRevision = min(r.StartRevision, now) // etcd has no progress while a watch is in the future
	if err := w.request(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: r}}); err != nil {
		return err
	}
	for len(w.created) == n {
		if _, err := w.take(ctx); err != nil {
			return err
		}
	}
	return w.sync(ctx)
}

// cancel cancels a watch. Before, it waits for all events: etcd may lose those of a watch that is being canceled.
func (w *watcher) cancel(ctx context.Context, id int64) error {
	if err := w.sync(ctx); err != nil {
		return err
	}
	if err := w.requestCancel(id); err != nil {
		return err
	}
	for w.live[id] {
		if _, err := w.take(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (w *watcher) request(r *pb.WatchRequest) error {
	w.s.requests.Add(1)
	return w.stream.Send(r)
}

func (w *watcher) requestCancel(id int64) error {
	return w.request(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CancelRequest{
		CancelRequest: &pb.WatchCancelRequest{WatchId: id},
	}})
}

// take waits for one answer, but not for long, and notes it. progress is the revision of one of progress.
func (w *watcher) take(ctx context.Context) (progress int64, err error) {
	timer := time.NewTimer(20 * time.Millisecond)
	defer timer.Stop()
	select {
	case r, ok := <-w.answers:
		if !ok {
			return 0, errors.New("the stream has ended")
		}
		return w.note(r)
	case <-ctx.Done():
		return 0, errors.New("a watch hangs")
	case <-timer.C:
	}
	return 0, nil
}

func (w *watcher) note(r *pb.WatchResponse) (progress int64, err error) {
	if r.Created {
		if !r.Canceled {
			w.live[r.WatchId] = true
		}
		w.created = append(w.created, w.s.describe(proto.Clone(r)))
		return 0, nil
	}
	if r.Canceled && r.CompactRevision == 0 && w.ended[r.WatchId] > 0 {
		w.ended[r.WatchId]-- // etcd's answer to the request below
		return 0, nil
	}
	if r.WatchId != -1 && !w.live[r.WatchId] {
		return 0, fmt.Errorf("an answer for watch %d before its creation, or after its end: %v", r.WatchId, r)
	}
	for _, e := range r.Events {
		w.seen[r.WatchId] = append(w.seen[r.WatchId], w.s.describe(proto.Clone(e)))
	}
	if r.Canceled {
		w.live[r.WatchId] = false
		end := &pb.WatchResponse{CompactRevision: r.CompactRevision, CancelReason: r.CancelReason}
		w.seen[r.WatchId] = append(w.seen[r.WatchId], "canceled "+w.s.describe(end))
		if r.CompactRevision == 0 {
			return 0, nil
		}
		// etcd keeps a watch that a compaction has ended, and answers no request for progress on its stream until the
		// client has canceled that watch. NorthStar passes the request over.
		if w.s.name == "etcd" {
			w.ended[r.WatchId]++
		}
		return 0, w.requestCancel(r.WatchId)
	}
	if w.s.name == "NorthStar" {
		if r.Header.Revision < w.highest {
			return 0, fmt.Errorf("the revision in headers decreases from %d to %d", w.highest, r.Header.Revision)
		}
		w.highest = r.Header.Revision
	}
	if len(r.Events) == 0 {
		progress = r.Header.Revision
	}
	return progress, nil
}

// sync waits for an answer of progress at the present revision: all events were sent then.
func (w *watcher) sync(ctx context.Context) error {
	now, err := w.s.revision(ctx)
	if err != nil {
		return err
	}
	for w.anyLive() {
		err := w.request(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_ProgressRequest{
			ProgressRequest: &pb.WatchProgressRequest{},
		}})
		if err != nil {
			return err
		}
		for range 2 { // etcd drops a request for progress while a watch catches up
			if progress, err := w.take(ctx); err != nil {
				return err
			} else if progress >= now {
				return nil
			}
		}
	}
	return nil
}

// revision returns the present revision.
func (s *side) revision(ctx context.Context) (int64, error) {
	s.requests.Add(1)
	now, err := pb.NewKVClient(s.conn).Range(ctx, &pb.RangeRequest{Key: []byte("base")})
	return now.GetHeader().GetRevision(), err
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

// finish waits until all events have arrived and returns what the program's watches have seen.
func (s *side) finish(ctx context.Context) (string, error) {
	w := s.watch
	if w == nil {
		return "", nil
	}
	if err := w.sync(ctx); err != nil {
		return "", err
	}
	_ = w.stream.CloseSend() // the stream ends with the context
	var out strings.Builder
	for _, c := range w.created {
		fmt.Fprintln(&out, "  created:", c)
	}
	for _, id := range slices.Sorted(maps.Keys(w.seen)) {
		fmt.Fprintf(&out, "  %d:\n    %s\n", id, strings.Join(w.seen[id], "\n    "))
	}
	return out.String(), nil
}
