package state

import (
	"maps"
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
// etcd: a nested transaction and a list around it exclude each other, the two branches of a transaction do not. A level
// compares only with what it adds, and hands up the larger map: levels do not add up.
func changedBy(ops []Op) (all changedKeys, err *cluster.Error) {
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
		then.join(otherwise.puts)
		if all.excludes(then.puts) {
			return all, refused(DuplicateKey)
		}
		all.join(then.puts)
		all.deletes = append(append(all.deletes, then.deletes...), otherwise.deletes...)
	}
	for i := range ops {
		p := ops[i].Put
		if p == nil {
			continue
		}
		if all.puts[p.Key] || all.deleted(p.Key) {
			return all, refused(DuplicateKey)
		}
		if all.puts == nil {
			all.puts = map[string]bool{}
		}
		all.puts[p.Key] = true
	}
	return all, nil
}

// join adds keys. It changes the larger map, which the smaller one is copied to.
func (c *changedKeys) join(puts map[string]bool) {
	few, many := bySize(c.puts, puts)
	maps.Copy(many, few)
	c.puts = many
}

// excludes reports whether c changes one of the keys.
func (c *changedKeys) excludes(puts map[string]bool) bool {
	few, many := bySize(c.puts, puts)
	for k := range few {
		if many[k] {
			return true
		}
	}
	if len(c.deletes) > 0 {
		for k := range puts {
			if c.deleted(k) {
				return true
			}
		}
	}
	return false
}

func bySize(a, b map[string]bool) (few, many map[string]bool) {
	if len(a) > len(b) {
		return b, a
	}
	return a, b
}

// deleted reports whether c may delete a key.
func (c *changedKeys) deleted(key string) bool {
	for _, d := range c.deletes {
		// etcd compares with the literal end "\x00" here, so a deletion from a key on excludes no put.
		if key == d.Key && d.End == "" || key >= d.Key && strings.Compare(key, d.End) < 0 {
			return true
		}
	}
	return false
}
