package state

import (
	"iter"

	iradix "github.com/hashicorp/go-immutable-radix/v2"
)

// values yields the values of a tree in order of keys.
func values[T any](root *iradix.Node[T]) iter.Seq[T] {
	return func(yield func(T) bool) {
		it := root.Iterator()
		for _, v, ok := it.Next(); ok && yield(v); _, v, ok = it.Next() {
		}
	}
}

// valuesAfter yields the values with a key greater than after, in order of keys.
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

// treeWriter changes one tree of a View. Its transaction begins at the first use and ends with commit.
type treeWriter[T any] struct {
	tree  **iradix.Tree[T]
	txn   *iradix.Txn[T] // nil: not begun
	added int            // records of txn, beyond those of tree
}

func (w *treeWriter[T]) open() *iradix.Txn[T] {
	if w.txn == nil {
		w.txn = (*w.tree).Txn()
	}
	return w.txn
}

func (w *treeWriter[T]) get(key string) (T, bool) { return w.open().Get([]byte(key)) }

func (w *treeWriter[T]) put(key string, v T) {
	if _, replaced := w.open().Insert([]byte(key), v); !replaced {
		w.added++
	}
}

func (w *treeWriter[T]) remove(key string) (T, bool) {
	v, existed := w.open().Delete([]byte(key))
	if existed {
		w.added--
	}
	return v, existed
}

func (w *treeWriter[T]) len() int { return (*w.tree).Len() + w.added }

// all yields the values in order of keys. The tree must not be changed meanwhile.
func (w *treeWriter[T]) all() iter.Seq[T] { return values(w.open().Root()) }

func (w *treeWriter[T]) commit() {
	if w.txn != nil {
		*w.tree = w.txn.CommitOnly()
		w.txn, w.added = nil, 0
	}
}
