package state

// historyBlockBytes bounds the values in one block of the history. A block is freed as a whole, so this also bounds
// what is kept too long.
const historyBlockBytes = 1 << 20

// change is one entry of the history. The item of a deleted key holds only key and revision. The item of a put is
// shared with the keys.
type change struct {
	item    *Item
	deleted bool
}

// history holds the newest changes in order of revision. It is a value; see queue for the use of copies.
//
// Invariants: revisions in changes grow and are > floor; changes holds every change ever made with a revision > floor.
type history struct {
	changes queue[change]
	floor   uint64 // highest revision that is no longer kept
	bytes   int    // of values in changes
	block   int    // bytes of values in the newest block
}

// push appends a change and drops the oldest ones. The history keeps at least keep.HistoryRevisions changes or
// keep.HistoryBytes of values, whichever is less.
func (h *history) push(c change, keep Options) {
	size := len(c.item.Value)
	fresh := h.block+size > historyBlockBytes
	h.changes.push(c, fresh)
	h.bytes += size
	if fresh || h.changes.end-h.changes.blocks[len(h.changes.blocks)-1].start == 1 {
		h.block = 0
	}
	h.block += size
	for h.changes.len() > 1 {
		oldest := len(h.changes.at(h.changes.first).item.Value)
		if h.changes.len() <= keep.HistoryRevisions && h.bytes-oldest < keep.HistoryBytes {
			return
		}
		h.floor = h.changes.pop().item.Revision
		h.bytes -= oldest
	}
}

// after returns the position of the first change with a revision > rev.
func (h *history) after(rev uint64) uint64 {
	return h.changes.search(func(c change) bool { return c.item.Revision > rev })
}
