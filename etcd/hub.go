package etcd

import (
	"container/heap"
	"context"
	"slices"
	"sync"

	"northstar/state"
)

// hub marks the watches whose keys have changed. It reads each change of the history once, for all watches of the node,
// and follows the state only while there are watches.
//
// Each watch is in one of two conditions. A clean watch has nothing to send up to the hub's position. A marked watch is
// in the list of its stream, which reads its changes from the history as fast as the client takes them. So a slow
// client costs one number for each of its watches, and delays no other.
type hub struct {
	view func() *state.View
	feed func() *state.Feed

	mu       sync.Mutex
	position uint64 // changes up to this revision are marked
	epoch    uint64 // of the state that position belongs to
	keys     map[string]*places
	ranges   ranges
	future   future
	count    int
	streams  map[*watchStream]struct{}
	wake     chan struct{} // capacity 1: there is a first watch
}

// places are the watches of one key, or of one range. A change looks only at clean ones, which it marks: a client that
// does not read costs the others nothing.
type places struct {
	clean []*watch
	all   int // with the marked ones, and those of the future
}

// future are the clean watches that begin after the hub's position, as a heap. No change looks at them.
type future []*watch

func (f future) Len() int           { return len(f) }
func (f future) Less(i, j int) bool { return f[i].next < f[j].next }

func (f future) Swap(i, j int) {
	f[i], f[j] = f[j], f[i]
	f[i].index, f[j].index = i, j
}

// Push implements heap.Interface.
func (f *future) Push(w any) {
	w.(*watch).index = len(*f)
	*f = append(*f, w.(*watch))
}

// Pop implements heap.Interface.
func (f *future) Pop() any {
	last := len(*f) - 1
	w := (*f)[last]
	(*f)[last] = nil
	*f = (*f)[:last]
	return w
}

// watch is one watch of a stream.
type watch struct {
	id       int64
	key, end string // as in state.RangeQuery
	start    int64  // revision that the client asked for, 0: from now on
	epoch    uint64 // of the state that the watch began in
	stream   *watchStream
	options  watchOptions

	// Guarded by the hub's lock while the watch is clean; otherwise only the stream uses them.
	next uint64 // revision of the first change that was not sent

	// Guarded by the hub's lock.
	marked bool
	later  bool    // in future
	at     *places // nil: the hub does not have the watch
	span   *span   // that has at, nil for one key
	index  int     // in at.clean or future, while the watch is clean

	gone   bool // canceled; only the stream uses it
	notify bool // a progress notification is due at the next tick; only the stream uses it
}

func newHub(view func() *state.View, feed func() *state.Feed) *hub {
	return &hub{
		view: view, feed: feed, keys: map[string]*places{}, streams: map[*watchStream]struct{}{},
		wake: make(chan struct{}, 1),
	}
}

// add adds a watch and marks it if it may have something to send.
func (h *hub) add(w *watch) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.count == 0 {
		v := h.view()
		h.position, h.epoch = v.Revision(), v.Epoch()
		notify(h.wake)
	}
	h.count++
	h.find(w)
	w.at.all++
	h.put(w)
	if w.next <= h.position || w.epoch != h.epoch {
		h.mark(w)
	}
}

// find finds or makes the places of a watch. The hub's lock must be held.
func (h *hub) find(w *watch) {
	if w.end == "" {
		if h.keys[w.key] == nil {
			h.keys[w.key] = &places{}
		}
		w.at = h.keys[w.key]
		return
	}
	w.span = h.ranges.get(w.key, w.end)
	if w.span == nil {
		w.span = h.ranges.add(w.key, w.end)
	}
	w.at = &w.span.places
}

// put puts a clean watch where changes find it. The hub's lock must be held.
func (h *hub) put(w *watch) {
	if w.later = w.next > h.position+1; w.later {
		heap.Push(&h.future, w)
		return
	}
	w.index = len(w.at.clean)
	w.at.clean = append(w.at.clean, w)
	if w.span != nil && len(w.at.clean) == 1 {
		h.ranges.changed(w.span)
	}
}

// pull undoes put. The last one of the places moves to the index of the watch.
func (h *hub) pull(w *watch) {
	if w.later {
		heap.Remove(&h.future, w.index)
		return
	}
	at, last := w.at, len(w.at.clean)-1
	at.clean[w.index] = at.clean[last]
	at.clean[w.index].index = w.index
	at.clean[last] = nil
	at.clean = at.clean[:last]
	if w.span != nil && last == 0 {
		h.ranges.changed(w.span)
	}
}

// remove removes a watch.
func (h *hub) remove(w *watch) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if w.at == nil {
		return
	}
	if !w.marked {
		h.pull(w)
	}
	w.at.all--
	h.count--
	switch {
	case w.at.all > 0:
	case w.span != nil:
		h.ranges.remove(w.span)
	default:
		delete(h.keys, w.key)
	}
	w.at, w.span = nil, nil
}

// mark puts a clean watch into the list of its stream. The hub's lock must be held.
func (h *hub) mark(w *watch) {
	w.marked = true
	h.pull(w)
	w.stream.marked = append(w.stream.marked, w)
	notify(w.stream.wake)
}

// finishSend makes a marked watch clean whose changes up to the revision of a view were sent. It is marked again if the
// hub is further on, since changes of a marked watch are not looked for, or if it follows another state, to end.
func (h *hub) finishSend(w *watch, sent uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.clean(w)
	if sent != h.position || w.epoch != h.epoch {
		h.mark(w)
	}
}

// clean makes a marked watch clean. The hub's lock must be held.
func (h *hub) clean(w *watch) {
	w.marked = false
	h.put(w)
}

// remark marks a watch again that has more to send.
func (h *hub) remark(w *watch) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.clean(w)
	h.mark(w)
}

// take removes and returns the marked watches of a stream. Without one, it returns the revision up to which every
// watch of the stream has sent all.
func (h *hub) take(s *watchStream) (marked []*watch, position uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	marked, s.marked = s.marked, nil
	return marked, h.position
}

// cleanOf returns the clean ones of some watches of a stream, and the revision up to which those have sent all.
func (h *hub) cleanOf(watches []*watch) (clean []*watch, position uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.DeleteFunc(watches, func(w *watch) bool { return w.marked }), h.position
}

// advance marks the watches with changes up to the present view, and returns that. A restore, a recovery, and the end
// of a restore that the cluster has not committed replace the state: all watches are marked then, to end.
func (h *hub) advance() *state.View {
	h.mu.Lock()
	defer h.mu.Unlock()
	v := h.view() // under the lock: none that is older than position
	if h.count > 0 && (v.Epoch() != h.epoch || v.Revision() < h.position) {
		h.position, h.epoch = v.Revision(), v.Epoch()
		h.markAll()
	}
	for h.count > 0 && h.position < v.Revision() {
		changes, next, err := v.Changes("\x00", "\x00", h.position+1, hubBatch)
		if err != nil { // changes were compacted before they were read
			h.markAll()
			h.position = v.Revision()
			break
		}
		for i := range changes {
			h.match(&changes[i])
		}
		h.position = next - 1
	}
	return v
}

// hubBatch is the number of changes that are read together.
const hubBatch = 256

// match marks the watches of one change.
func (h *hub) match(c *state.Change) {
	for len(h.future) > 0 && h.future[0].next <= c.Revision {
		h.position = c.Revision - 1 // those before are marked
		h.put(heap.Pop(&h.future).(*watch))
	}
	look := func(at *places) {
		for _, w := range slices.Backward(at.clean) { // mark moves only those that were looked at
			w.next = c.Revision
			h.mark(w)
		}
	}
	if at := h.keys[c.Key]; at != nil {
		look(at)
	}
	h.ranges.root.visit(c.Key, func(s *span) { look(&s.places) })
}

// open adds a stream, until close.
func (h *hub) open(s *watchStream) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.streams[s] = struct{}{}
}

func (h *hub) close(s *watchStream) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.streams, s)
}

// lag returns by how many revisions the slowest stream is behind.
func (h *hub) lag() (lag uint64) {
	newest := h.view().Revision()
	h.mu.Lock()
	defer h.mu.Unlock()
	for s := range h.streams {
		if before := s.before.Load(); before > 0 && before < newest {
			lag = max(lag, newest-before)
		}
	}
	return lag
}

// markAll marks all watches. The hub's lock must be held.
func (h *hub) markAll() {
	mark := func(at []*watch) {
		for _, w := range slices.Backward(at) {
			h.mark(w)
		}
	}
	for _, at := range h.keys {
		mark(at.clean)
	}
	h.ranges.root.each(func(s *span) { mark(s.clean) })
	mark(slices.Clone(h.future)) // the heap moves others
}

// size returns the bytes of the key and the range end.
func (w *watch) size() int { return len(w.key) + len(w.end) }

// watching returns the number of watches.
func (h *hub) watching() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.count
}

// run marks watches as the state changes, until ctx ends.
func (h *hub) run(ctx context.Context) {
	for ctx.Err() == nil {
		if h.watching() == 0 {
			select {
			case <-h.wake:
			case <-ctx.Done():
			}
			continue
		}
		// the cursor only tells that there is a change: also one that was made before it
		from := h.view()
		cursor, err := h.feed().Cursor("", from.Revision())
		v := h.advance()
		if err != nil || v.Epoch() != from.Epoch() || v.Revision() < from.Revision() {
			continue // the history has moved on, or the state was replaced before there was a cursor
		}
		_, _ = cursor.Next(ctx, 1) // an error is a change as well: the next view is newer
	}
}

func notify(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
