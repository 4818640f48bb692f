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

// batch is what one message shows of the changes of a watch, or the fragments of one. It has none of them: whenever the
// stream has waited, for its client or for room, it reads them again. Thousands of streams may wait.
type batch struct {
	room   batchRoom          // for the next message
	header *pb.ResponseHeader // of all fragments; nil: no message is sent
	next   uint64             // revision after the batch; 0: no message is sent
	from   uint64             // revision of the first change that is left
	sent   int                // changes of that revision that were sent
	done   bool
}

// serve sends a batch of a marked watch.
func (ws *watchStream) serve(w *watch) error {
	if err := ws.awaitSent(); err != nil {
		return err
	}
	b := &batch{from: w.next}
	defer b.room.give()
	defer ws.before.Store(0)
	for !b.done {
		if err := ws.link.awaitSent(ws.ctx); err != nil { // of a fragment
			return err
		}
		lacks, err := ws.serveIn(b, w)
		if err == nil && lacks > 0 {
			err = b.room.take(ws.ctx, lacks, awaitBytes)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// serveIn sends a batch of a watch, or a fragment of it, if there is room, and otherwise returns how much it needs.
func (ws *watchStream) serveIn(b *batch, w *watch) (lacks int, err error) {
	v := ws.hub.advance()
	if w.replaced(v) || b.next > v.Revision()+1 {
		b.done = true
		ws.drop(w)
		ws.revision = min(ws.revision, int64(v.Revision()))
		return 0, ws.compacted(v, w)
	}
	if w.next > v.Revision() { // begins in the future
		b.done = true
		ws.hub.finishSend(w, v.Revision())
		return 0, nil
	}
	revision := v.Revision() // below, the view would be kept while the client does not read
	changes, next, err := v.Changes(w.key, w.end, b.from, eventBatch)
	if err != nil {
		b.done = true
		ws.drop(w)
		return 0, ws.compacted(v, w)
	}
	ws.before.Store(w.next - 1)
	changes = slices.DeleteFunc(changes, func(c state.Change) bool {
		return c.Deleted && w.options.noDelete || !c.Deleted && w.options.noPut
	})
	if b.next > 0 {
		changes, next = b.left(changes), b.next
	}
	if lacks, err = ws.sendChanges(b, w, changes, next); lacks > 0 || err != nil || !b.done {
		return lacks, err
	}
	w.next = next
	if next <= revision {
		ws.hub.remark(w)
	} else {
		ws.hub.finishSend(w, revision)
	}
	return 0, nil
}

// left returns those changes from b.from on that belong to the batch and were not sent.
func (b *batch) left(changes []state.Change) []state.Change {
	changes = slices.DeleteFunc(changes, func(c state.Change) bool { return c.Revision >= b.next })
	return changes[min(b.sent, len(changes)):]
}

// shows notes that a message shows changes, the first ones that are left.
func (b *batch) shows(changes []state.Change) {
	for i := range changes {
		if revision := changes[i].Revision; revision != b.from {
			b.from, b.sent = revision, 0
		}
		b.sent++
	}
}

// sendChanges sends the changes before revision next, or the next fragment of them if the watch asked for fragments.
// Without room for that, it returns how much it needs.
func (ws *watchStream) sendChanges(b *batch, w *watch, changes []state.Change, next uint64) (lacks int, err error) {
	if len(changes) == 0 {
		b.done = true
		return 0, nil
	}
	n, size := len(changes), 0
	if w.options.fragment {
		n, size = firstFragment(changes, w.options.prevKV)
	} else {
		size = sizeOfChanges(changes, w.options.prevKV)
	}
	if b.room.take(ws.ctx, size, takeBytes) != nil {
		return size, nil
	}
	w.notify = false
	if b.next == 0 {
		b.header, b.next = ws.headerAt(int64(next-1)), next
	}
	b.done = n == len(changes)
	b.shows(changes[:n])
	return 0, ws.sendIn(&b.room, &pb.WatchResponse{
		Header: b.header, WatchId: w.id, Fragment: !b.done, Events: events(w, changes[:n]),
	})
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
