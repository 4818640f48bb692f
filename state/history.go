package state

import (
	"slices"
	"sort"
)

// historyBlockBytes bounds the values in one block of the history, which is freed as a whole.
const historyBlockBytes = 1 << 20

// change is one entry of the history. The item of a deleted key holds only key and revision. The item of a put is
// shared with the keys.
type change struct {
	item    *Item
	prev    *Item // that was replaced; nil: none, or not kept (before View.valuesSince)
	deleted bool
}

// size is what the change counts in the history.
func (c *change) size() int {
	n := len(c.item.Value)
	if c.prev != nil {
		n += len(c.prev.Value)
	}
	return n
}

// history holds the newest changes in order of revision. It is a value; see queue for the use of copies.
//
// Invariants: revisions in changes never decrease and are > floor; changes holds every change ever made with a
// revision > floor, so all those of one transaction or none. readable is a part of changes.
type history struct {
	changes  queue[change]
	window          // all that is in changes, for watchers
	readable window // what reads at a revision may name: the same on every node, also if it keeps more for watchers
	block    int    // bytes of values in the newest block
}

// historyAfter returns an empty history that begins after a revision.
func historyAfter(floor uint64) history {
	return history{window: window{floor: floor}, readable: window{floor: floor}}
}

// push appends a change and drops the oldest revisions.
func (h *history) push(c change, keep Options) {
	size := c.size()
	fresh := h.block+size > historyBlockBytes
	h.changes.push(c, fresh)
	if fresh || h.changes.end-h.changes.blocks[len(h.changes.blocks)-1].start == 1 {
		h.block = 0
	}
	h.block += size
	h.window.add(&h.changes, size, keep)
	h.readable.add(&h.changes, size, keep.readable())
	for h.changes.first < h.first {
		h.changes.pop()
	}
}

// window is what is left of a list of changes without its oldest revisions. It depends only on the newest changes and
// the Options, not on how many older ones there once were.
type window struct {
	first uint64 // position of the oldest change
	floor uint64 // highest revision before it
	bytes int    // of values

	oldestEnd   uint64 // position after the changes of the oldest revision; ≤ first: unknown
	oldestBytes int    // of those changes
}

// add adds the newest change and drops the oldest revisions, but never the newest one. The window keeps at least
// keep.HistoryRevisions changes or keep.HistoryBytes of values, whichever is less.
func (w *window) add(changes *queue[change], size int, keep Options) {
	w.bytes += size
	newest := changes.at(changes.end - 1).item.Revision
	for {
		oldest := changes.at(w.first).item.Revision
		if oldest == newest {
			return
		}
		w.measureOldest(changes, oldest)
		left := int(changes.end - w.oldestEnd)
		if left < keep.HistoryRevisions && w.bytes-w.oldestBytes < keep.HistoryBytes {
			return
		}
		w.first, w.floor = w.oldestEnd, oldest
		w.bytes -= w.oldestBytes
	}
}

// measureOldest counts the changes of the oldest revision, which is not the newest one, if that was not done yet.
func (w *window) measureOldest(changes *queue[change], revision uint64) {
	if w.oldestEnd > w.first {
		return
	}
	w.oldestEnd, w.oldestBytes = w.first, 0
	for w.oldestEnd < changes.end {
		c := changes.at(w.oldestEnd)
		if c.item.Revision != revision {
			return
		}
		w.oldestEnd++
		w.oldestBytes += c.size()
	}
}

// blockLen is the capacity of a block.
const blockLen = 256

// queue is a FIFO list whose copies are snapshots: a later push to or pop from the original does not change them.
// After a copy, only one of the two may be pushed to. The position of an element never changes. The zero value is
// an empty queue that begins at position 0.
//
// Invariants: blocks[i].start grows with i; blocks[0] contains the position first unless the queue is empty; an
// element is written once, before another goroutine gets the copy that shows it.
type queue[T any] struct {
	blocks     []block[T]
	first, end uint64 // position of the first element, and after the last
}

type block[T any] struct {
	start uint64
	items *[blockLen]T
}

func (q *queue[T]) len() int { return int(q.end - q.first) }

// push appends v. If fresh, v begins a new block, so that the elements before it can be freed without it.
func (q *queue[T]) push(v T, fresh bool) {
	n := len(q.blocks)
	if n == 0 || fresh || q.end-q.blocks[n-1].start == blockLen {
		q.blocks = append(q.blocks, block[T]{start: q.end, items: new([blockLen]T)})
		n++
	}
	last := q.blocks[n-1]
	last.items[q.end-last.start] = v
	q.end++
}

// pop removes and returns the first element. The queue must not be empty.
func (q *queue[T]) pop() T {
	v := q.at(q.first)
	q.first++
	if q.first == q.end {
		q.blocks = nil
	} else if len(q.blocks) > 1 && q.blocks[1].start == q.first {
		// Other copies use the old list. A reslice would keep the freed block reachable.
		q.blocks = slices.Clone(q.blocks[1:])
	}
	return v
}

// at returns the element at a position ≥ first and < end.
func (q *queue[T]) at(pos uint64) T { return *q.ref(pos) }

// ref returns the place of an element, which keeps that part of the list in memory.
func (q *queue[T]) ref(pos uint64) *T {
	i := sort.Search(len(q.blocks), func(i int) bool { return q.blocks[i].start > pos }) - 1
	b := q.blocks[i]
	return &b.items[pos-b.start]
}

// search returns the position of the first element for which after is true, and with it all later ones, or end.
func (q *queue[T]) search(after func(T) bool) uint64 {
	return q.first + uint64(sort.Search(q.len(), func(i int) bool { return after(q.at(q.first + uint64(i))) }))
}

// all yields the elements in order.
func (q *queue[T]) all(yield func(T) bool) {
	for pos := q.first; pos < q.end; pos++ {
		if !yield(q.at(pos)) {
			return
		}
	}
}
