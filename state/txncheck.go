package state

import (
	"strings"

	"northstar/cluster"
)

// Check checks what does not depend on the state, in the order of etcd. Errors wrap a Refusal.
func (p *Txn) Check() *cluster.Error {
	var total txnSize
	if err := p.checkOps(MaxTxnOps, &total); err != nil {
		return err
	}
	switch {
	case total.ops > MaxTxnTotalOps:
		return refused(TooManyOps)
	case total.bytes > MaxTxnBytes:
		return refused(RequestTooLarge)
	}
	return firstError(checkIntervals(p.Success), checkIntervals(p.Failure), checkUTF8("caller", p.Caller, MaxOwner))
}

// Size returns about how many bytes the transaction takes in the log: its keys and values, and 32 for each operation.
func (p *Txn) Size() int {
	var total txnSize
	_ = p.checkOps(MaxTxnOps, &total) // what it has found by then: an invalid transaction does not reach the log
	return total.bytes + 32*total.ops
}

// txnSize is what the operations of a transaction take, with those of nested ones.
type txnSize struct{ ops, bytes int }

func (p *Txn) check() *cluster.Error { return p.Check() }

// checkOps checks the forms of comparisons and operations. A nested list may have the operations that the lists around
// it leave of most. total adds up what they take.
func (p *Txn) checkOps(most int, total *txnSize) *cluster.Error {
	n := max(len(p.Compare), len(p.Success), len(p.Failure))
	total.ops += len(p.Compare) + len(p.Success) + len(p.Failure)
	if n > most {
		return refused(TooManyOps)
	}
	for i := range p.Compare {
		c := &p.Compare[i]
		if c.Key == "" {
			return refused(EmptyKey)
		}
		total.bytes += len(c.Key) + len(c.End) + len(c.Value)
	}
	for _, ops := range [][]Op{p.Success, p.Failure} {
		for i := range ops {
			if err := ops[i].check(most-n, total); err != nil {
				return err
			}
		}
	}
	return nil
}

func (o *Op) check(most int, total *txnSize) *cluster.Error {
	switch {
	case o.Range != nil:
		total.bytes += len(o.Range.Key) + len(o.Range.End)
		return o.Range.check()
	case o.Put != nil:
		total.bytes += len(o.Put.Key) + len(o.Put.Value)
		return o.Put.check()
	case o.Delete != nil:
		total.bytes += len(o.Delete.Key) + len(o.Delete.End)
		if o.Delete.Key == "" {
			return refused(EmptyKey)
		}
		return nil
	case o.Txn != nil:
		return o.Txn.checkOps(most, total)
	}
	return refused(KeyNotFound)
}

func (q *RangeQuery) check() *cluster.Error {
	switch {
	case q.Key == "":
		return refused(EmptyKey)
	case q.Order < SortNone || q.Order > SortDescend || q.Target < SortByKey || q.Target > SortByValue:
		return refused(InvalidSortOption)
	}
	return nil
}

func (p *TxnPut) check() *cluster.Error {
	switch {
	case p.Key == "":
		return refused(EmptyKey)
	case p.IgnoreValue && len(p.Value) > 0:
		return refused(ValueProvided)
	case p.IgnoreLease && p.Lease != 0:
		return refused(LeaseProvided)
	case CheckKey(p.Key) != nil:
		return refused(InvalidKey)
	}
	return nil
}

// changedKeys are the keys that a list of operations may put, and the ranges that it may delete.
type changedKeys struct {
	puts    map[string]bool
	deletes []*TxnDelete
}

// checkIntervals rejects a list that may put a key twice, or put a key of a range that it may delete.
func checkIntervals(ops []Op) *cluster.Error {
	if len(ops) == 0 || len(ops) == 1 && ops[0].Txn == nil {
		return nil
	}
	_, err := changedBy(ops)
	return err
}

// changedBy returns what a list of operations may change. Nested transactions come before the list's own puts, as in
// etcd: a nested transaction and a list around it exclude each other, the two branches of a transaction do not.
func changedBy(ops []Op) (changedKeys, *cluster.Error) {
	all := changedKeys{puts: map[string]bool{}}
	for i := range ops {
		if d := ops[i].Delete; d != nil {
			all.deletes = append(all.deletes, d)
		}
	}
	for i := range ops {
		if ops[i].Txn == nil {
			continue
		}
		then, err := changedBy(ops[i].Txn.Success)
		if err != nil {
			return all, err
		}
		otherwise, err := changedBy(ops[i].Txn.Failure)
		if err != nil {
			return all, err
		}
		for k := range otherwise.puts {
			then.puts[k] = true
		}
		for k := range then.puts {
			if !all.put(k) {
				return all, refused(DuplicateKey)
			}
		}
		all.deletes = append(append(all.deletes, then.deletes...), otherwise.deletes...)
	}
	for i := range ops {
		if p := ops[i].Put; p != nil && !all.put(p.Key) {
			return all, refused(DuplicateKey)
		}
	}
	return all, nil
}

// put adds a key. It reports whether nothing else changes the key.
func (c *changedKeys) put(key string) bool {
	if c.puts[key] {
		return false
	}
	for _, d := range c.deletes {
		// etcd compares with the literal end "\x00" here, so a deletion from a key on excludes no put.
		if key == d.Key && d.End == "" || key >= d.Key && strings.Compare(key, d.End) < 0 {
			return false
		}
	}
	c.puts[key] = true
	return true
}
