package state

// historyBlockBytes is the amount of values after which history starts a new
// block: a block is freed as a whole, so this bounds what is kept too long.
const historyBlockBytes = 1 << 20

// change is one entry of the history. Of a deleted key the item holds only key
// and revision; that of a put is shared with the keys.
type change struct {
	item    *Item
	deleted bool
}

// history holds the newest changes in order of revision. It is a value: see
// queue for what may be done with copies.
//
// Invariants: revisions in changes grow and are > floor; every change with a
// revision > floor that was ever made is in changes.
type history struct {
	changes queue[change]
	floor   uint64 // highest revision that is no longer kept
	bytes   int    // of values in changes
	block   int    // bytes of values in the newest block
}

// push appends a change and drops the oldest ones that are no longer needed: it
// goes on holding at least keep.HistoryRevisions changes or keep.HistoryBytes of
// values, whichever is less.
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

// after gives the position of the first change with a revision > rev.
func (h *history) after(rev uint64) uint64 {
	return h.changes.search(func(c change) bool { return c.item.Revision > rev })
}
