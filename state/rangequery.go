package state

// RangeQuery is a read of the keys from Key to End.
type RangeQuery struct {
	// Key alone is read if End is "". Otherwise the range is [Key, End), and with End "\x00" all keys from Key on.
	Key, End string
	Revision int64 // of the state that is read; ≤ 0: the present one
	Limit    int64 // of items; 0: none
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
	Count    int64 // keys in the range, whatever the limit and the filters
	More     bool  // Limit left out items
}

// Range reads a range. Errors wrap a Refusal: Compacted, FutureRevision, EmptyKey or InvalidSortOption.
func (v *View) Range(q *RangeQuery) (RangeResult, error) { return RangeResult{}, nil }

// CompactRevision returns the least revision that reads and watches may name, -1 if every one has been kept.
func (v *View) CompactRevision() int64 { return -1 }
