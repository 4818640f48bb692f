package state

import (
	"iter"
	"slices"
	"sort"
	"strings"
)

// past is a range of keys as it was before changes. It refers to the keys after them, and copies no part of the tree.
type past struct {
	keys   *tree[string, *Item]
	undone []undone // the first change of each key, in order of keys
}

type undone struct {
	*change
	place int // among the changes
}

// undoneSize is what a change that is undone takes. It is reserved before.
const undoneSize = 16

// undoing is what makes a past: the changes of a view after a revision, and own, which are newer, are undone.
type undoing struct {
	view     *View
	revision uint64
	own      []change
	room     func(bytes int) bool // reserves them; nil: there is room
	ended    func() bool          // the caller has gone, and a past may be incomplete; nil: not asked
	undone   []undone             // memory to use
}

// undoCost is what undoing a change costs, in examined keys.
const undoCost = 16

// after returns the position of the first change after a revision.
func (h *history) after(revision uint64) uint64 {
	return h.changes.search(func(c change) bool { return c.item.Revision > revision })
}

// ofView yields the changes of the view in a range, in their order, until the caller has gone.
func (u *undoing) ofView(key, end string) iter.Seq[*change] {
	return func(yield func(*change) bool) {
		h := &u.view.history
		last := h.after(u.view.revision)
		for pos := h.after(u.revision); pos < last; pos++ {
			if pos%1024 == 0 && u.ended != nil && u.ended() {
				return
			}
			if c := h.changes.ref(pos); inRange(c.item.Key, key, end) && !yield(c) {
				return
			}
		}
	}
}

// changes yields all changes in a range.
func (u *undoing) changes(key, end string) iter.Seq[*change] {
	return func(yield func(*change) bool) {
		for c := range u.ofView(key, end) {
			if !yield(c) {
				return
			}
		}
		for i := range u.own {
			if c := &u.own[i]; inRange(c.item.Key, key, end) && !yield(c) {
				return
			}
		}
	}
}

// cost returns what undoing the changes in a range costs, in examined keys. All own ones count.
func (u *undoing) cost(key, end string) int {
	h := &u.view.history
	cost := int(h.after(u.view.revision)-h.after(u.revision)) + undoCost*len(u.own)
	for range u.ofView(key, end) {
		cost += undoCost
	}
	return cost
}

// before returns what the keys of a range were before the changes. It is not ok if there is no room.
func (u *undoing) before(keys *tree[string, *Item], key, end string) (p past, ok bool) {
	most := 0
	for range u.changes(key, end) {
		if most++; end == "" {
			break // the first change of the key tells
		}
	}
	if most == 0 {
		return past{keys: keys, undone: u.undone[:0]}, true
	}
	if !u.reserve(most) {
		return past{}, false // without keys
	}
	list := u.undone[:0]
	for c := range u.changes(key, end) {
		if list = append(list, undone{change: c, place: len(list)}); len(list) == most {
			break
		}
	}
	slices.SortFunc(list, func(a, b undone) int {
		if byKey := strings.Compare(a.item.Key, b.item.Key); byKey != 0 {
			return byKey
		}
		return a.place - b.place
	})
	list = slices.CompactFunc(list, func(a, b undone) bool { return a.item.Key == b.item.Key })
	return past{keys: keys, undone: list}, true
}

// reserve makes room for undoing changes.
func (u *undoing) reserve(changes int) bool {
	has := cap(u.undone)
	if changes <= has {
		return true
	}
	if has > 0 {
		changes = max(changes, 2*has) // what is given up is never more than what is used
	}
	if u.room != nil && !u.room((changes-has)*undoneSize) {
		return false
	}
	u.undone = make([]undone, 0, changes)
	return true
}

// items yields the items of a part of the range in order of keys. Without a tree there are none.
func (p *past) items(key, end string) iter.Seq[*Item] {
	return func(yield func(*Item) bool) {
		if p.keys == nil {
			return
		}
		at := sort.Search(len(p.undone), func(i int) bool { return p.undone[i].item.Key >= key })
		left := p.undone[at:]
		for it := range itemsIn(p.keys, key, end) {
			order := 1 // of the next undone key and this one
			for len(left) > 0 && order != 0 {
				if order = strings.Compare(left[0].item.Key, it.Key); order > 0 {
					break
				}
				if c := left[0]; c.prev != nil && !yield(c.prev) {
					return
				}
				left = left[1:]
			}
			if order != 0 && !yield(it) {
				return
			}
		}
		for _, c := range left { // deleted keys after the last one
			if !inRange(c.item.Key, key, end) || c.prev != nil && !yield(c.prev) {
				return
			}
		}
	}
}

// itemsAt yields the items of a range at a revision before the transaction. It keeps the past of all ranges but a
// single key for the next range at that revision.
func (r *txnRun) itemsAt(revision uint64, q *RangeQuery) iter.Seq[*Item] {
	if r.past.keys != nil && r.pastAt == revision {
		return r.past.items(q.Key, q.End)
	}
	undo := undoing{view: r.view, revision: revision, own: r.changes, room: r.reserve, ended: r.gone}
	from, end := q.Key, ""
	if q.End != "" {
		from, end, undo.undone = "", "\x00", r.past.undone
	}
	var was past
	if r.examined += undo.cost(from, end); r.examined <= r.most { // checkLimits rejects the transaction otherwise
		was, _ = undo.before(r.keys.open().commit(), from, end)
	}
	if end != "" {
		r.past, r.pastAt = was, revision
	}
	return was.items(q.Key, q.End)
}
