package state

import (
	"context"
	"strings"
	"sync"

	iradix "github.com/hashicorp/go-immutable-radix/v2"

	"northstar/cluster"
)

// Change is one change of one key. The changes of one transaction share a revision.
type Change struct {
	Key      string
	Value    []byte // nil when deleted; must not be changed
	Revision uint64
	Deleted  bool
	Item     *Item // of a put: the item, shared with the state
	Prev     *Item // the item that was replaced; nil: none, or not kept (changes below View.CompactRevision)
	Last     bool  // the cursor has no further change with this revision
}

// Feed returns the changes of one kind of record, such as keys. All cursors share one history. A watcher costs memory
// only while it waits. One that is too slow gets an error. Any goroutine may call the methods.
//
// Waiting cursors are grouped by prefix, also those of a range. A batch wakes only the groups whose prefix matches one
// of its keys.
type Feed struct {
	state *State
	of    func(*View) *history

	mu       sync.Mutex
	revision uint64                 // changes up to here have been announced
	waiting  *iradix.Tree[*waiters] // by prefix
	scratch  []byte
}

// waiters are the cursors that wait for a change under one prefix. After notification they are not in Feed.waiting.
type waiters struct {
	notified chan struct{} // closed under Feed.mu
	count    int           // protected by Feed.mu
	revision uint64        // set before notified closes: no matching change up to here
}

func newFeed(s *State, of func(*View) *history) *Feed {
	return &Feed{state: s, of: of, waiting: iradix.New[*waiters]()}
}

// Cursor follows the changes of the keys with one prefix, or in one range. One goroutine at a time may use it. It needs
// no Close.
type Cursor struct {
	feed   *Feed
	prefix string // of all keys that match
	within *keyRange
	seen   uint64 // every matching change up to here has been returned
	part   uint64 // how many changes of the revision after seen have been examined
	epoch  uint64
}

// keyRange is a range of keys, as in RangeQuery.
type keyRange struct{ key, end string }

// matches reports whether the cursor follows a key.
func (c *Cursor) matches(key string) bool {
	return strings.HasPrefix(key, c.prefix) && (c.within == nil || inRange(key, c.within.key, c.within.end))
}

// Cursor returns a cursor for the changes with a revision greater than since, of keys with the prefix.
// View().Revision() starts from now. The cursor waits for a since that this node has not reached yet: the node may
// lag behind the one that returned it. CodeHistoryCompacted if changes after since are no longer kept.
func (f *Feed) Cursor(prefix string, since uint64) (*Cursor, error) {
	v := f.state.View()
	if floor := f.of(v).floor; since < floor {
		return nil, compacted(since, floor)
	}
	return &Cursor{feed: f, prefix: prefix, seen: since, epoch: v.epoch}, nil
}

// RangeCursor returns a cursor for the changes from revision start on, of the keys in the range from key to end (see
// RangeQuery). start may be in the future. An error wraps Compacted: start is below View.CompactRevision.
func (f *Feed) RangeCursor(key, end string, start int64) (*Cursor, error) {
	v := f.state.View()
	if start < v.CompactRevision() {
		return nil, refused(Compacted)
	}
	seen := max(uint64(max(start, 1))-1, f.of(v).floor) // nothing changed at a compact revision that is the floor
	return &Cursor{
		feed: f, prefix: commonPrefix(key, end), within: &keyRange{key, end}, seen: seen, epoch: v.epoch,
	}, nil
}

// commonPrefix returns a prefix of all keys in a range.
func commonPrefix(key, end string) string {
	if end == "" {
		return key
	}
	n := 0
	for n < len(key) && n < len(end) && key[n] == end[n] {
		n++
	}
	return key[:n]
}

// maxBatchBytes limits the values of one batch, but for the last: a slow watcher keeps its batch in memory.
const maxBatchBytes = 64 << 10

// Next returns the next changes, 1 to limit of them, each once and in order of revision. It waits for one until ctx
// ends, and then returns its cause; the cursor stays usable. CodeHistoryCompacted: the cursor fell behind the history,
// or a backup was restored, and it returns no more changes. The changes of one revision may come in several batches.
func (c *Cursor) Next(ctx context.Context, limit int) ([]Change, error) {
	for {
		v := c.feed.state.View()
		if c.epoch != v.epoch {
			return nil, cluster.Errorf(cluster.CodeHistoryCompacted,
				"the state was replaced by a restore or a recovery: "+
					"read the present state and watch from its revision")
		}
		if floor := c.feed.of(v).floor; c.seen < floor {
			return nil, compacted(c.seen, floor)
		}
		if changes := c.scan(v, max(limit, 1)); len(changes) > 0 {
			return changes, nil
		}
		if err := c.wait(ctx); err != nil {
			return nil, err
		}
	}
}

// Seen returns the revision up to which Next has returned every matching change. A watch continues after it.
func (c *Cursor) Seen() uint64 { return c.seen }

// scan returns matching changes and advances the cursor past what it has examined.
func (c *Cursor) scan(v *View, limit int) []Change {
	if c.seen >= v.revision {
		return nil
	}
	var found []Change
	size := 0
	h := &c.feed.of(v).changes
	first := h.search(func(ch change) bool { return ch.item.Revision > c.seen })
	for pos := first + c.part; pos < h.end; pos++ {
		ch := h.at(pos)
		if last := len(found) - 1; last >= 0 && found[last].Revision != ch.item.Revision {
			found[last].Last = true
			if len(found) >= limit || size >= maxBatchBytes {
				c.seen, c.part = found[last].Revision, 0
				return found
			}
		}
		if !c.matches(ch.item.Key) {
			continue
		}
		if len(found) >= limit || size >= maxBatchBytes {
			c.seen = ch.item.Revision - 1
			c.part = pos - h.search(func(other change) bool { return other.item.Revision > c.seen })
			return found
		}
		found = append(found, newChange(ch))
		size += ch.size()
	}
	if len(found) > 0 {
		found[len(found)-1].Last = true
	}
	c.seen, c.part = v.revision, 0
	return found
}

func newChange(ch change) Change {
	it := ch.item
	out := Change{Key: it.Key, Value: it.Value, Revision: it.Revision, Deleted: ch.deleted, Prev: ch.prev}
	if !ch.deleted {
		out.Item = it
	}
	return out
}

// wait returns nil when there may be changes to scan.
func (c *Cursor) wait(ctx context.Context) error {
	w := c.feed.join(c.prefix, c.seen)
	if w == nil {
		return nil
	}
	select {
	case <-w.notified:
		c.seen = max(c.seen, w.revision)
		return nil
	case <-ctx.Done():
		c.seen = max(c.seen, c.feed.leave(c.prefix, w))
		return context.Cause(ctx)
	}
}

// join adds a cursor to the group of its prefix, nil if changes after seen have been announced meanwhile.
func (f *Feed) join(prefix string, seen uint64) *waiters {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.revision > seen {
		return nil
	}
	if f.waiting.Len() == 0 {
		select {
		case f.state.watched <- struct{}{}:
		default:
		}
	}
	w, ok := f.waiting.Get([]byte(prefix))
	if !ok {
		w = &waiters{notified: make(chan struct{})}
		f.waiting, _, _ = f.waiting.Insert([]byte(prefix), w)
	}
	w.count++
	return w
}

// isWatched reports whether a cursor waits.
func (f *Feed) isWatched() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.waiting.Len() > 0
}

// leave removes a cursor from its group. It returns the revision up to which the cursor has missed nothing.
func (f *Feed) leave(prefix string, w *waiters) uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	select {
	case <-w.notified:
		return w.revision
	default:
	}
	w.count--
	if w.count == 0 {
		f.waiting, _, _ = f.waiting.Delete([]byte(prefix))
	}
	return f.revision
}

// announce wakes the cursors for which v has changes. v replaced before and is already published.
func (f *Feed) announce(before, v *View) {
	if v.epoch != before.epoch {
		f.replaced(v)
		return
	}
	from := f.of(before).changes.end
	f.mu.Lock()
	defer f.mu.Unlock()
	f.revision = v.revision
	h := &f.of(v).changes
	for pos := max(from, h.first); pos < h.end && f.waiting.Len() > 0; pos++ {
		item := h.at(pos).item
		f.scratch = append(f.scratch[:0], item.Key...)
		f.notifyPrefixes(f.scratch, item.Revision-1)
	}
}

// notifyPrefixes wakes the groups whose prefix matches the key.
func (f *Feed) notifyPrefixes(key []byte, seen uint64) {
	var fired [][]byte
	f.waiting.Root().WalkPath(key, func(prefix []byte, w *waiters) bool {
		fired = append(fired, prefix)
		w.revision = seen
		close(w.notified)
		return false
	})
	for _, prefix := range fired {
		f.waiting, _, _ = f.waiting.Delete(prefix)
	}
}

// replaced wakes all cursors after v replaced the whole state.
func (f *Feed) replaced(v *View) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.waiting.Root().Walk(func(_ []byte, w *waiters) bool {
		w.revision = f.revision
		close(w.notified)
		return false
	})
	f.waiting = iradix.New[*waiters]()
	f.revision = v.revision
}

func compacted(since, floor uint64) *cluster.Error {
	return cluster.Errorf(cluster.CodeHistoryCompacted,
		"changes after revision %d are no longer kept (the history begins after %d)",
		since, floor)
}
