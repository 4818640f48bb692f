package state

import (
	"bytes"
	"cmp"
	"iter"
)

// Compare is one comparison of a Txn: every key in the range compares with the operand as Result says. An absent key
// has revisions, version and lease 0, and no comparison with its value holds.
type Compare struct {
	Key, End string // as in RangeQuery
	Target   CompareTarget
	Result   CompareResult
	Number   int64  // the operand, unless Target is CompareValue
	Value    []byte // the operand of CompareValue
}

// CompareTarget is the property of a key that is compared. The numbers are those of etcd.
type CompareTarget int

// The targets. Any other one compares as equal.
const (
	CompareVersion        CompareTarget = 0
	CompareCreateRevision CompareTarget = 1
	CompareRevision       CompareTarget = 2
	CompareValue          CompareTarget = 3
	CompareLease          CompareTarget = 4
)

// CompareResult is the required result of a comparison. The numbers are those of etcd.
type CompareResult int

// The results. Any other one always holds.
const (
	CompareEqual    CompareResult = 0
	CompareGreater  CompareResult = 1
	CompareLess     CompareResult = 2
	CompareNotEqual CompareResult = 3
)

// holds reports whether the comparison holds for the keys of its range.
func (c *Compare) holds(items iter.Seq[*Item]) bool {
	found := false
	for it := range items {
		found = true
		if !c.holdsFor(it) {
			return false
		}
	}
	return found || c.Target != CompareValue && c.holdsFor(&Item{})
}

// cost returns what comparing an item costs, in examined keys.
func (c *Compare) cost(it *Item) int {
	if c.Target != CompareValue {
		return 1
	}
	return 1 + min(len(it.Value), len(c.Value))/compareBytesCost
}

func (c *Compare) holdsFor(it *Item) bool {
	result := 0
	switch c.Target {
	case CompareVersion:
		result = cmp.Compare(int64(it.Version), c.Number)
	case CompareCreateRevision:
		result = cmp.Compare(int64(it.CreateRevision), c.Number)
	case CompareRevision:
		result = cmp.Compare(int64(it.Revision), c.Number)
	case CompareValue:
		result = bytes.Compare(it.Value, c.Value)
	case CompareLease:
		result = cmp.Compare(it.Lease(), c.Number)
	}
	switch c.Result {
	case CompareEqual:
		return result == 0
	case CompareGreater:
		return result > 0
	case CompareLess:
		return result < 0
	case CompareNotEqual:
		return result != 0
	}
	return true
}
