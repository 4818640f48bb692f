package state

import (
	"bytes"
	"cmp"
	"context"
	"iter"
	"slices"
	"strings"
)

// RangeQuery is a read of the keys from Key to End.
type RangeQuery struct {
	// Key alone is read if End is "". Otherwise the range is [Key, End), and with End "\x00" all keys from Key on.
	Key, End string
	Revision int64 // of the state that is read; ≤ 0: the present one
	Limit    int64 // of items; ≤ 0: none
	Target   SortTarget
	Order    SortOrder
	// Filters: 0 is none. They do not change RangeResult.Count.
	MinRevision, MaxRevision             int64
	MinCreateRevision, MaxCreateRevision int64
	KeysOnly                             bool // items have no values
	CountOnly                            bool // no items
}

// SortTarget is what the items of a range are sorted by. The numbers are those of etcd.
type SortTarget int

// The sort targets.
const (
	SortByKey            SortTarget = 0
	SortByVersion        SortTarget = 1
	SortByCreateRevision SortTarget = 2
	SortByRevision       SortTarget = 3
	SortByValue          SortTarget = 4
)

// SortOrder is the order of the items of a range. The numbers are those of etcd.
type SortOrder int

// The sort orders. SortNone is the order of keys, and ascending for every other target.
const (
	SortNone    SortOrder = 0
	SortAscend  SortOrder = 1
	SortDescend SortOrder = 2
)

// RangeResult is the result of a RangeQuery. Items are shared with the state, and must not be changed.
type RangeResult struct {
	Revision uint64 // of the state at the moment of the read, also if an older one is read
	Items    []*Item
	Count    int64 // keys in the range, with those that limit and filters leave out
	More     bool  // Limit left out items
}

// ItemOverhead is what an item counts in a result, besides its key and value.
const ItemOverhead = 128

// Room reserves bytes for a result before it grows by them. Its error ends the read. nil: there is room for all.
type Room func(bytes int) error

func (r Room) reserve(bytes int) error {
	if r == nil {
		return nil
	}
	return r(bytes)
}

// Range reads a range. Errors wrap a Refusal (Compacted, FutureRevision, EmptyKey, InvalidSortOption), or are those of
// room or the cause of ctx's end.
func (v *View) Range(ctx context.Context, q *RangeQuery, room Room) (RangeResult, error) {
	if err := q.check(); err != nil {
		return RangeResult{}, err
	}
	var full error
	grow := func(bytes int) bool {
		full = room.reserve(bytes)
		return full == nil
	}
	ended := func() bool { return ctx.Err() != nil }
	items := itemsIn(v.keys, q.Key, q.End)
	switch {
	case q.Revision > int64(v.revision):
		return RangeResult{}, refused(FutureRevision)
	case q.Revision > 0 && q.Revision < v.CompactRevision():
		return RangeResult{}, refused(Compacted)
	case q.Revision > 0 && q.Revision < int64(v.revision):
		u := undoing{view: v, revision: uint64(q.Revision), room: grow, ended: ended}
		before, ok := u.before(v.keys, q.Key, q.End)
		if !ok {
			return RangeResult{}, full
		}
		items = before.items(q.Key, q.End)
	}
	out, _ := q.read(untilEnded(ended, items), v.revision, grow)
	if ended() {
		return RangeResult{}, context.Cause(ctx)
	}
	return out, full
}

// untilEnded yields items until the caller has gone. It does not notice immediately.
func untilEnded(ended func() bool, items iter.Seq[*Item]) iter.Seq[*Item] {
	return func(yield func(*Item) bool) {
		n := 0
		for it := range items {
			if n++; n%1024 == 0 && ended() || !yield(it) {
				return
			}
		}
	}
}

// undo makes the key of a change what it was before.
func (c *change) undo(keys *treeTxn[string, *Item]) {
	if c.prev == nil {
		keys.remove(c.item.Key)
	} else {
		keys.put(c.item.Key, c.prev)
	}
}

// inRange reports whether a key is in the range from key to end of a RangeQuery.
func inRange(k, key, end string) bool {
	switch end {
	case "":
		return k == key
	case "\x00":
		return k >= key
	}
	return k >= key && k < end
}

// itemsIn yields the items of a range in order of keys.
func itemsIn(keys *tree[string, *Item], key, end string) iter.Seq[*Item] {
	return func(yield func(*Item) bool) {
		if end == "" {
			if it, ok := keys.get(key); ok {
				yield(it)
			}
			return
		}
		for _, it := range keys.from(key) {
			if end != "\x00" && it.Key >= end || !yield(it) { // it is not below key
				return
			}
		}
	}
}

// A list of items is reserved in parts of listPart elements, each with elementSize bytes.
const (
	listPart    = 1024
	elementSize = 16 // a pointer, in a slice that grows
)

// read executes the query on the items of its range. revision is that of the state. room reports whether the result may
// grow; ok is false if it may not.
func (q *RangeQuery) read(
	items iter.Seq[*Item], revision uint64, room func(bytes int) bool,
) (out RangeResult, ok bool) {
	out.Revision = revision
	early := q.limitsEarly()
	for it := range items {
		out.Count++
		if !q.CountOnly && (!early || int64(len(out.Items)) <= q.Limit) && q.passes(it) {
			if len(out.Items)%listPart == listPart-1 && !room(listPart*elementSize) {
				return RangeResult{}, false
			}
			out.Items = append(out.Items, it)
		}
	}
	q.sort(out.Items)
	if q.Limit > 0 && int64(len(out.Items)) > q.Limit {
		out.Items, out.More = out.Items[:q.Limit:q.Limit], true
	}
	size := 0
	for _, it := range out.Items {
		if size += it.resultSize(); q.KeysOnly {
			size -= len(it.Value)
		}
	}
	if size > 0 && !room(size) {
		return RangeResult{}, false
	}
	if q.KeysOnly {
		for i, it := range out.Items {
			bare := *it
			bare.Value = nil
			out.Items[i] = &bare
		}
	}
	return out, true
}

// resultSize is what the item counts in a result; nothing if it is nil.
func (it *Item) resultSize() int {
	if it == nil {
		return 0
	}
	return int(it.size()) + ItemOverhead
}

// limitsEarly reports whether the limit selects among the first items by key, before they are sorted. As in etcd, that
// is so for every target while no order is given, and one more item than the limit is sorted.
func (q *RangeQuery) limitsEarly() bool {
	filtered := q.MinRevision != 0 || q.MaxRevision != 0 || q.MinCreateRevision != 0 || q.MaxCreateRevision != 0
	return q.Limit > 0 && !filtered && (q.Order == SortNone || q.Order == SortAscend && q.Target == SortByKey)
}

func (q *RangeQuery) passes(it *Item) bool {
	within := func(n uint64, least, most int64) bool {
		return (least == 0 || int64(n) >= least) && (most == 0 || int64(n) <= most)
	}
	return within(it.Revision, q.MinRevision, q.MaxRevision) &&
		within(it.CreateRevision, q.MinCreateRevision, q.MaxCreateRevision)
}

// What reading an item costs, in examined keys: of a sorted range, and besides it for bytes of values.
const (
	sortCost         = 4
	sortBytesCost    = 64   // bytes of a value that is sorted by
	compareBytesCost = 1024 // bytes of a value that is compared
)

// cost returns what reading an item of the range costs.
func (q *RangeQuery) cost(it *Item) int {
	switch {
	case !q.sorts():
		return 1
	case q.Target == SortByValue:
		return sortCost + len(it.Value)/sortBytesCost
	}
	return sortCost
}

// sorts reports whether the items must be sorted.
func (q *RangeQuery) sorts() bool { return q.Target != SortByKey || q.Order == SortDescend }

// sort sorts items, which are in order of keys. Equal ones stay in that order.
func (q *RangeQuery) sort(items []*Item) {
	if !q.sorts() {
		return
	}
	slices.SortStableFunc(items, func(a, b *Item) int {
		if q.Order == SortDescend {
			a, b = b, a
		}
		switch q.Target {
		case SortByVersion:
			return cmp.Compare(a.Version, b.Version)
		case SortByCreateRevision:
			return cmp.Compare(a.CreateRevision, b.CreateRevision)
		case SortByRevision:
			return cmp.Compare(a.Revision, b.Revision)
		case SortByValue:
			return bytes.Compare(a.Value, b.Value)
		}
		return strings.Compare(a.Key, b.Key)
	})
}

// CompactRevision returns the least revision that reads and watches may name, -1 if every one has been kept. It is the
// same on every node: Apply decides by it.
func (v *View) CompactRevision() int64 {
	if !v.KeepsReplaced() {
		return int64(v.revision) // previous values are not kept
	}
	least := max(v.compacted, v.valuesSince)
	if floor := v.history.readable.floor; floor > v.valuesSince {
		least = max(least, floor+1)
	}
	if least == 0 {
		return -1
	}
	return int64(least)
}
