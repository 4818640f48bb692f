package state

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

// The targets.
const (
	CompareVersion        CompareTarget = 0
	CompareCreateRevision CompareTarget = 1
	CompareRevision       CompareTarget = 2
	CompareValue          CompareTarget = 3
	CompareLease          CompareTarget = 4
)

// CompareResult is the required result of a comparison. The numbers are those of etcd.
type CompareResult int

// The results.
const (
	CompareEqual    CompareResult = 0
	CompareGreater  CompareResult = 1
	CompareLess     CompareResult = 2
	CompareNotEqual CompareResult = 3
)
