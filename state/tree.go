package state

import (
	"iter"

	iradix "github.com/hashicorp/go-immutable-radix/v2"
)

// values yields the values under a node, in order of keys.
func values[T any](root *iradix.Node[T]) iter.Seq[T] {
	return func(yield func(T) bool) {
		it := root.Iterator()
		for _, v, ok := it.Next(); ok && yield(v); _, v, ok = it.Next() {
		}
	}
}

// valuesAfter yields the values of a tree with a key greater than after, in order of
// keys.
func valuesAfter[T any](tree *iradix.Tree[T], after string) iter.Seq[T] {
	return func(yield func(T) bool) {
		it := tree.Root().Iterator()
		it.SeekLowerBound([]byte(after))
		for k, v, ok := it.Next(); ok; k, v, ok = it.Next() {
			if string(k) != after && !yield(v) {
				return
			}
		}
	}
}

// open returns the transaction of a batch on a tree, and begins it at the first use.
func open[T any](txn **iradix.Txn[T], tree *iradix.Tree[T]) *iradix.Txn[T] {
	if *txn == nil {
		*txn = tree.Txn()
	}
	return *txn
}

// commit puts what a transaction made in the place of its tree; nil changed
// nothing.
func commit[T any](tree **iradix.Tree[T], txn *iradix.Txn[T]) {
	if txn != nil {
		*tree = txn.CommitOnly()
	}
}
