package etcd

import (
	"context"
	"slices"
	"sync/atomic"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"northstar/state"
)

// Limits of a stream of watches.
const (
	maxWatchesPerStream = 20_000
	maxWatchKey         = 8 << 10 // of a key or a range end: all keys are shorter
	eventBatch          = 100     // events of one message, but for those of its last revision
)

// noWatch is the ID in answers that belong to no watch.
const noWatch = -1

// watchStream is the watches of one stream. One goroutine uses it, which alone sends; the hub adds to marked and wake.
//
// No event of a watch comes before its created message, and none after its canceled one. The revisions of headers never
// decrease. A progress message names a revision up to which every event was sent.
type watchStream struct {
	s      *Server
	hub    *hub
	ctx    context.Context // of the call
	stream pb.Watch_WatchServer
	link   link
	share  Share // of the watches of the node, and the bytes of their keys and range ends

	watches  map[int64]*watch
	nextID   int64
	revision int64 // highest in a header that was sent
	progress bool  // the client has asked for a progress message that is not sent yet

	before atomic.Uint64 // revision before the changes that are being sent; 0: none are

	marked []*watch      // guarded by the hub's lock
	wake   chan struct{} // capacity 1
	queue  []*watch      // marked watches to serve, in turns
}

type watchOptions struct {
	prevKV, fragment, progressNotify, noPut, noDelete bool
}

func newWatchStream(ctx context.Context, s *Server, stream pb.Watch_WatchServer, share Share) *watchStream {
	ws := &watchStream{
		s: s, hub: s.hub, ctx: ctx, stream: stream, link: linkOf(ctx), share: share, watches: map[int64]*watch{},
		wake: make(chan struct{}, 1),
	}
	s.hub.open(ws)
	return ws
}

// close removes all watches.
func (ws *watchStream) close() {
	for _, w := range ws.watches {
		ws.drop(w)
	}
	ws.hub.close(ws)
}

// handle executes a request of the client.
func (ws *watchStream) handle(r *pb.WatchRequest) error {
	switch u := r.RequestUnion.(type) {
	case *pb.WatchRequest_CreateRequest:
		if u.CreateRequest != nil {
			return ws.create(u.CreateRequest)
		}
	case *pb.WatchRequest_CancelRequest:
		if u.CancelRequest != nil {
			return ws.cancel(u.CancelRequest.WatchId)
		}
	case *pb.WatchRequest_ProgressRequest:
		if u.ProgressRequest != nil {
			ws.progress = true
			return ws.answerProgress()
		}
	}
	return nil
}

// create starts a watch.
func (ws *watchStream) create(r *pb.WatchCreateRequest) error {
	if r.StartRevision == 0 {
		ws.catchUp()
	}
	v := ws.s.deps.Node.View()
	w := &watch{
		id: r.WatchId, key: string(r.Key), end: string(r.RangeEnd), stream: ws, options: watchOptions{
			prevKV: r.PrevKv, fragment: r.Fragment, progressNotify: r.ProgressNotify,
			noPut:    slices.Contains(r.Filters, pb.WatchCreateRequest_NOPUT),
			noDelete: slices.Contains(r.Filters, pb.WatchCreateRequest_NODELETE),
		},
		start: r.StartRevision, next: v.Revision() + 1, epoch: v.Epoch(), notify: true, // at the first tick, as in etcd
	}
	if w.key == "" {
		w.key = "\x00"
	}
	if reason := ws.refusal(r, w); reason != "" {
		return ws.reply(v, &pb.WatchResponse{WatchId: noWatch, Created: true, Canceled: true, CancelReason: reason})
	}
	if r.StartRevision > 0 {
		w.next = uint64(r.StartRevision)
	}
	if w.id == 0 {
		w.id = ws.freeID()
	}
	ws.watches[w.id] = w
	if err := ws.reply(v, &pb.WatchResponse{WatchId: w.id, Created: true}); err != nil {
		return err
	}
	if int64(w.next) < v.CompactRevision() {
		ws.drop(w)
		return ws.compacted(v, w)
	}
	ws.hub.add(w)
	return nil
}

// catchUp brings this node's state up to date for a watch from now on: it must not show writes that were acknowledged
// before. If the leader does not answer, the watch begins with what this node has.
func (ws *watchStream) catchUp() {
	if ws.s.deps.Node.Status().LeaderID == "" {
		return
	}
	ctx, cancel := context.WithTimeout(ws.ctx, 2*ws.s.deps.TimeoutMax)
	defer cancel()
	_ = callOf(ws.ctx).ReadIndex(ctx)
}

// refusal returns why a watch cannot start. If it can, refusal returns "", and has taken its share.
func (ws *watchStream) refusal(r *pb.WatchCreateRequest, w *watch) string {
	_, taken := ws.watches[r.WatchId]
	switch {
	case r.StartRevision < 0:
		return rpctypes.ErrorDesc(rpctypes.ErrGRPCCompacted)
	case w.end != "" && w.end != "\x00" && w.end <= w.key:
		return "mvcc: watcher range is empty"
	case taken && r.WatchId != 0:
		return "mvcc: duplicate watch ID provided on the WatchStream"
	case max(len(r.Key), len(r.RangeEnd)) > maxWatchKey:
		return rpctypes.ErrorDesc(rpctypes.ErrGRPCRequestTooLarge)
	case len(ws.watches) >= maxWatchesPerStream, ws.share.Take(1, w.size()) != nil:
		return rpctypes.ErrorDesc(rpctypes.ErrGRPCRequestTooManyRequests)
	}
	return ""
}

// freeID returns an ID that no watch of the stream has. IDs begin with 0, as in etcd.
func (ws *watchStream) freeID() int64 {
	for {
		id := ws.nextID
		ws.nextID++
		if _, taken := ws.watches[id]; !taken {
			return id
		}
	}
}

// cancel ends a watch at the client's request. An ID that is not known is passed over.
func (ws *watchStream) cancel(id int64) error {
	w, ok := ws.watches[id]
	if !ok {
		return nil
	}
	ws.drop(w)
	return ws.reply(ws.s.deps.Node.View(), &pb.WatchResponse{WatchId: id, Canceled: true})
}

func (ws *watchStream) drop(w *watch) {
	w.gone = true
	ws.hub.remove(w)
	ws.share.Give(1, w.size())
	delete(ws.watches, w.id)
}

// step serves one marked watch. more reports whether others are marked.
func (ws *watchStream) step() (more bool, err error) {
	if len(ws.queue) == 0 {
		ws.queue, _ = ws.hub.take(ws)
	}
	if len(ws.queue) == 0 {
		return false, ws.answerProgress()
	}
	w := ws.queue[0]
	ws.queue[0] = nil
	ws.queue = ws.queue[1:]
	if !w.gone {
		err = ws.serve(w)
	}
	return true, err
}

// awaitSent waits until the client has taken most of what was sent. Meanwhile the stream holds no view and no events.
func (ws *watchStream) awaitSent() error {
	ws.before.Store(ws.s.deps.Node.View().Revision())
	defer ws.before.Store(0)
	return ws.link.awaitSent(ws.ctx)
}

// replaced reports whether the state that the watch has shown was replaced by another one.
func (w *watch) replaced(v *state.View) bool {
	return w.epoch != v.Epoch() || w.next > v.Revision()+1 && w.next != uint64(w.start)
}

// compacted ends a watch whose next change is no longer kept.
func (ws *watchStream) compacted(v *state.View, w *watch) error {
	least := max(v.CompactRevision(), int64(v.FirstChange()), 1)
	return ws.reply(v, &pb.WatchResponse{WatchId: w.id, Canceled: true, CompactRevision: least})
}

// headerAt returns a header with a revision, or with a later one that was sent before.
func (ws *watchStream) headerAt(revision int64) *pb.ResponseHeader {
	ws.revision = max(ws.revision, revision)
	h := ws.s.memberHeader()
	h.Revision = ws.revision
	return h
}

// reply sends an answer without events.
func (ws *watchStream) reply(v *state.View, r *pb.WatchResponse) error {
	r.Header = ws.headerAt(int64(v.Revision()))
	return ws.stream.Send(r)
}

// synced returns the revision up to which every watch of the stream has sent its events, and reports whether none has
// more to send.
func (ws *watchStream) synced() (revision int64, ok bool) {
	ws.hub.advance()
	marked, position := ws.hub.take(ws)
	ws.queue = append(ws.queue, marked...)
	return int64(position), len(ws.queue) == 0 && position > 0
}

// answerProgress sends the progress message that the client has asked for, if every watch is synced. Otherwise a later
// step sends it.
func (ws *watchStream) answerProgress() error {
	if !ws.progress {
		return nil
	}
	if len(ws.watches) == 0 {
		ws.progress = false // as etcd: without watches there is no progress
		return nil
	}
	revision, ok := ws.synced()
	if !ok || ws.beginsAfter(revision) {
		return nil
	}
	ws.progress = false
	return ws.stream.Send(&pb.WatchResponse{Header: ws.headerAt(revision), WatchId: noWatch})
}

// beginsAfter reports whether a watch begins after a revision: it has no progress there.
func (ws *watchStream) beginsAfter(revision int64) bool {
	for _, w := range ws.watches {
		if w.start > revision {
			return true
		}
	}
	return false
}

// tick sends the progress notifications of the watches that asked for them, had no event since the last tick, and have
// sent all. Other watches of the stream may be behind.
func (ws *watchStream) tick() error {
	var due []*watch
	for _, w := range ws.watches {
		if w.options.progressNotify && w.notify {
			due = append(due, w)
		}
		w.notify = true
	}
	ws.hub.advance()
	due, position := ws.hub.cleanOf(due)
	revision := int64(position)
	for _, w := range due {
		if w.start > revision || ws.revision > revision { // a replaced state may have fewer revisions than the headers
			continue
		}
		if err := ws.stream.Send(&pb.WatchResponse{Header: ws.headerAt(revision), WatchId: w.id}); err != nil {
			return err
		}
	}
	return nil
}
