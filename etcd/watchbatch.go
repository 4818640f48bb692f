package etcd

import (
	"context"
	"slices"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"northstar/state"
)

// batchRoom is what a batch of changes has taken of the budget of answers.
type batchRoom struct {
	size int
	held func() // gives it back; nil: nothing is taken
}

// take makes the room as large as a size, with take.
func (r *batchRoom) take(ctx context.Context, size int, take func(context.Context, int) (func(), error)) error {
	if size <= max(r.size, smallAnswer) {
		return nil
	}
	r.give()
	held, err := take(ctx, size)
	if err == nil {
		r.size, r.held = size, held
	}
	return err
}

func (r *batchRoom) give() {
	if r.held != nil {
		r.held()
	}
	*r = batchRoom{}
}

// serve sends a batch of a marked watch. A batch that finds no room waits for it without its changes: thousands of
// streams may wait.
func (ws *watchStream) serve(w *watch) error {
	if err := ws.awaitSent(); err != nil {
		return err
	}
	room := &batchRoom{}
	defer room.give()
	defer ws.before.Store(0)
	for {
		lacks, err := ws.serveIn(room, w)
		if err == nil && lacks > 0 {
			err = room.take(ws.ctx, lacks, awaitBytes)
		}
		if err != nil || lacks == 0 {
			return err
		}
	}
}

// serveIn sends a batch of a watch if there is room for it, and otherwise returns how much it needs.
func (ws *watchStream) serveIn(room *batchRoom, w *watch) (lacks int, err error) {
	v := ws.hub.advance()
	if w.replaced(v) {
		ws.drop(w)
		ws.revision = min(ws.revision, int64(v.Revision()))
		return 0, ws.compacted(v, w)
	}
	if w.next > v.Revision() { // begins in the future
		ws.hub.settle(w, v.Revision())
		return 0, nil
	}
	revision := v.Revision() // below, the view would be kept while the client does not read
	changes, next, err := v.Changes(w.key, w.end, w.next, eventBatch)
	if err != nil {
		ws.drop(w)
		return 0, ws.compacted(v, w)
	}
	ws.before.Store(w.next - 1)
	changes = slices.DeleteFunc(changes, func(c state.Change) bool {
		return c.Deleted && w.options.noDelete || !c.Deleted && w.options.noPut
	})
	size := sizeOfChanges(changes, w.options.prevKV)
	if w.options.fragment { // each has room of its own, and these changes wait for all of them
		size = len(changes) * state.ItemOverhead
	}
	if err := room.take(ws.ctx, size, takeBytes); err != nil {
		return size, nil
	}
	if err := ws.sendChanges(room, w, changes, min(next-1, revision)); err != nil {
		return 0, err
	}
	w.next = next
	if next <= revision {
		ws.hub.remark(w)
	} else {
		ws.hub.settle(w, revision)
	}
	return 0, nil
}

// sendChanges sends the changes up to a revision in one message, or in fragments if the watch asked for them.
func (ws *watchStream) sendChanges(room *batchRoom, w *watch, changes []state.Change, upTo uint64) error {
	if len(changes) == 0 {
		return nil
	}
	w.notify = false
	r := &pb.WatchResponse{Header: ws.headerAt(int64(upTo)), WatchId: w.id}
	if !w.options.fragment {
		r.Events = events(w, changes)
		return ws.sendIn(room, r)
	}
	for len(changes) > 0 {
		if err := ws.link.awaitSent(ws.ctx); err != nil {
			return err
		}
		n, size := firstFragment(changes, w.options.prevKV)
		own := &batchRoom{}
		if err := own.take(ws.ctx, size, awaitBytes); err != nil {
			return err
		}
		part := &pb.WatchResponse{Header: r.Header, WatchId: w.id, Fragment: n < len(changes)}
		part.Events = events(w, changes[:n])
		if err := ws.sendIn(own, part); err != nil {
			return err
		}
		changes = changes[n:]
	}
	return nil
}

// sendIn sends a message, which gives its room back when it was sent.
func (ws *watchStream) sendIn(room *batchRoom, r *pb.WatchResponse) error {
	if room.held == nil {
		return ws.stream.SendMsg(r)
	}
	m := newCounted(r, room.held, ws.s.lifetime, closeConn(ws.ctx))
	*room = batchRoom{}
	return ws.stream.SendMsg(m)
}

// firstFragment returns how many changes one fragment shows, and their size.
func firstFragment(changes []state.Change, prevKV bool) (n, size int) {
	for ; n < len(changes); n++ {
		next := sizeOfChanges(changes[n:n+1], prevKV)
		if n > 0 && size+next > maxRequestBytes {
			break
		}
		size += next
	}
	return n, size
}

// events returns the events of changes.
func events(w *watch, changes []state.Change) []*mvccpb.Event {
	out := make([]*mvccpb.Event, 0, len(changes))
	for i := range changes {
		c := &changes[i]
		e := &mvccpb.Event{}
		if c.Deleted {
			e.Type = mvccpb.Event_DELETE
			e.Kv = &mvccpb.KeyValue{Key: []byte(c.Key), ModRevision: int64(c.Revision)}
		} else {
			e.Kv = keyValue(c.Item)
		}
		if w.options.prevKV && c.Prev != nil {
			e.PrevKv = keyValue(c.Prev)
		}
		out = append(out, e)
	}
	return out
}
