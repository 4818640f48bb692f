package state

// maxChangesBytes limits the values that Changes returns, but for those of the last revision.
const maxChangesBytes = 1 << 20

// Changes returns the changes of the keys in a range (see RangeQuery) from revision from on: 1 to limit of them, or as
// many as one revision has, since the changes of a revision stay together. next is the revision from which to continue:
// one after View.Revision if nothing is left. An error wraps Compacted: some of the changes are no longer kept.
func (v *View) Changes(key, end string, from uint64, limit int) (changes []Change, next uint64, err error) {
	h := &v.history
	if from < v.FirstChange() {
		return nil, 0, refused(Compacted)
	}
	size := 0
	first := h.changes.search(func(c change) bool { return c.item.Revision >= from })
	for pos := first; pos < h.changes.end; pos++ {
		c := h.changes.at(pos)
		if last := len(changes) - 1; last >= 0 && (len(changes) >= limit || size >= maxChangesBytes) &&
			c.item.Revision != changes[last].Revision {
			return changes, changes[last].Revision + 1, nil
		}
		if inRange(c.item.Key, key, end) {
			changes = append(changes, newChange(c))
			size += c.size()
		}
	}
	return changes, max(v.revision+1, from), nil
}

// FirstChange returns the least revision from which Changes returns every change: at most that of the View.
func (v *View) FirstChange() uint64 { return min(v.history.floor+1, v.revision) }

// In reports whether the changed key is in a range (see RangeQuery).
func (c *Change) In(key, end string) bool { return inRange(c.Key, key, end) }
