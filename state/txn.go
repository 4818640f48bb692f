package state

// Txn is a transaction on keys: one command, and one revision for all keys that it changes. If every comparison holds,
// it executes Success, otherwise Failure, in order; each operation sees the earlier ones. Nested transactions compare
// with the state before the whole transaction. A transaction that changes nothing takes no revision.
//
// Result.Txn has the responses. Errors wrap a Refusal, or are CodeQuotaExceeded, and then nothing has changed.
type Txn struct {
	Compare []Compare
	Success []Op
	Failure []Op
	Caller  string // of the whole transaction, as in LeaseRevoke; keys are attached only to leases that it may use
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
	Revision uint64 // of the deletions; with nothing changed so far, the revision before the transaction
	Deleted  int64
	Prev     []*Item // nil: not asked for
}

// Limits of transactions. They are part of the decisions of txnVersion, and some of NumberVersion: see txnLimits. Every
// node spends the cost in Apply: at most about 20 ms (BenchmarkWorstTxn).
const (
	MaxTxnOps       = 128     // comparisons, and operations of a list; nested lists share what is left
	MaxTxnTotalOps  = 1024    // operations with those of nested transactions
	MaxTxnBytes     = 3 << 19 // keys and values of a transaction: 1.5 MiB
	MaxTxnChanges   = 25_000  // keys that one transaction changes
	MaxTxnExamined  = 300_000 // what a transaction with writes may cost, in keys that comparisons and ranges look at
	maxReadExamined = 20_000_000
	MaxTxnReadBytes = 16 << 20 // keys, values and ItemOverhead of what a transaction with writes returns
	MaxLeaseKeys    = 10_000   // keys attached to one lease
)

// txnLimits are the limits of transactions with writes that have changed. Members of all builds must decide alike.
type txnLimits struct {
	changes    int // as MaxTxnChanges
	examined   int // as MaxTxnExamined
	deleteCost int // what a key costs that is deleted
}

var (
	wideTxnLimits = txnLimits{changes: 100_000, examined: 2_000_000, deleteCost: 8} // below NumberVersion
	lastTxnLimits = txnLimits{changes: MaxTxnChanges, examined: MaxTxnExamined, deleteCost: 12}
)

func (v *View) txnLimits() txnLimits {
	if v.version < NumberVersion {
		return wideTxnLimits
	}
	return lastTxnLimits
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
