package etcd

import (
	"context"
	"slices"
	"sync"

	iradix "github.com/hashicorp/go-immutable-radix/v2"

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
	position uint64                // changes up to this revision are marked
	epoch    uint64                // of the state that position belongs to
	watches  *iradix.Tree[*places] // by the common prefix of their keys
	count    int
	streams  map[*watchStream]struct{}
	wake     chan struct{} // capacity 1: there is a first watch
}

// places are the watches whose keys have one common prefix. A change looks at the clean ones only: a client that does
// not read costs the others nothing.
type places struct {
	clean []*watch
	all   int // with the marked ones
}

// put adds a clean watch.
func (p *places) put(w *watch) {
	w.index = len(p.clean)
	p.clean = append(p.clean, w)
}

// take removes a clean watch. The last one moves to its index.
func (p *places) take(w *watch) {
	last := len(p.clean) - 1
	p.clean[w.index] = p.clean[last]
	p.clean[w.index].index = w.index
	p.clean[last] = nil
	p.clean = p.clean[:last]
}

// watch is one watch of a stream.
type watch struct {
	id       int64
	key, end string // as in state.RangeQuery
	prefix   string // common to all keys of the range
	start    int64  // revision that the client asked for, 0: from now on
	epoch    uint64 // of the state that the watch began in
	stream   *watchStream
	options  watchOptions

	// Guarded by the hub's lock while the watch is clean; otherwise only the stream uses them.
	next uint64 // revision of the first change that was not sent

	// Guarded by the hub's lock.
	marked bool
	at     *places // nil: the hub does not have the watch
	index  int     // in at.clean, while the watch is clean

	gone   bool // canceled; only the stream uses it
	notify bool // a progress notification is due at the next tick; only the stream uses it
}

func newHub(view func() *state.View, feed func() *state.Feed) *hub {
	return &hub{
		view: view, feed: feed, watches: iradix.New[*places](), streams: map[*watchStream]struct{}{},
		wake: make(chan struct{}, 1),
	}
}

// commonPrefix returns the longest text with which all keys of a range begin.
func commonPrefix(key, end string) string {
	switch end {
	case "":
		return key
	case "\x00":
		return ""
	}
	n := 0
	for n < len(key) && n < len(end) && key[n] == end[n] {
		n++
	}
	// [ab, ac) has the prefix ab: the keys continue with one byte, and the end is the next of it
	if n < len(key) && n+1 == len(end) && key[n]+1 == end[n] {
		n++
	}
	return key[:n]
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
	at, ok := h.watches.Get([]byte(w.prefix))
	if !ok {
		at = &places{}
		h.watches, _, _ = h.watches.Insert([]byte(w.prefix), at)
	}
	at.all++
	w.at = at
	at.put(w)
	if w.next <= h.position || w.epoch != h.epoch {
		h.mark(w)
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
		w.at.take(w)
	}
	w.at.all--
	h.count--
	if w.at.all == 0 {
		h.watches, _, _ = h.watches.Delete([]byte(w.prefix))
	}
	w.at = nil
}

// mark puts a clean watch into the list of its stream. The hub's lock must be held.
func (h *hub) mark(w *watch) {
	w.marked = true
	w.at.take(w)
	w.stream.marked = append(w.stream.marked, w)
	notify(w.stream.wake)
}

// settle makes a marked watch clean whose changes up to the revision of a view were sent. It is marked again if the
// hub is further on, since changes of a marked watch are not looked for, or if it follows another state, to end.
func (h *hub) settle(w *watch, sent uint64) {
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
	w.at.put(w)
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

// settled returns the clean ones of some watches of a stream, and the revision up to which those have sent all.
func (h *hub) settled(watches []*watch) (clean []*watch, position uint64) {
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
	h.watches.Root().WalkPath([]byte(c.Key), func(_ []byte, at *places) bool {
		for _, w := range slices.Backward(at.clean) { // mark moves only those that were looked at
			if w.next <= c.Revision && c.In(w.key, w.end) {
				w.next = c.Revision
				h.mark(w)
			}
		}
		return false
	})
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

func (h *hub) markAll() {
	h.watches.Root().Walk(func(_ []byte, at *places) bool {
		for _, w := range slices.Backward(at.clean) {
			h.mark(w)
		}
		return false
	})
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
