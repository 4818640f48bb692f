package state

import (
	"iter"
	"slices"
)

// treeWidth is the most keys of a leaf, and the most children of another node.
const treeWidth = 32

// treeKey are the types of keys. The zero value is the least.
type treeKey interface{ string | uint64 }

// tree is a sorted map that never changes: a B+ tree whose nodes are shared by its versions. A changed version has
// copies of the nodes on the paths to what has changed. The zero value is an empty tree.
type tree[K treeKey, T any] struct {
	root  *treeNode[K, T] // nil: empty
	count int
}

// treeNode is a leaf, or has children.
//
// Invariants: keys are sorted and never changed in place, so that versions of a node share them. keys[i] of a leaf is
// the key of values[i]. keys[i] of any other node is not greater than any key under children[i], and greater than any
// under children[i-1]; keys[0] does not count. A node has 1 to treeWidth keys. All leaves are equally deep.
type treeNode[K treeKey, T any] struct {
	owner    *treeOwner // the one that may change the node
	keys     []K
	values   []T               // of a leaf
	children []*treeNode[K, T] // nil: a leaf
}

// treeOwner stands for a transaction until its nodes are part of a tree or of another transaction.
type treeOwner struct{ _ byte } // not of size zero: each has its own address

// len returns the number of keys.
func (t *tree[K, T]) len() int { return t.count }

// get returns the value of a key.
func (t *tree[K, T]) get(key K) (value T, ok bool) { return t.root.get(key) }

// from yields the keys that are not less than first, with their values, in order.
func (t *tree[K, T]) from(first K) iter.Seq2[K, T] {
	return func(yield func(K, T) bool) {
		if t.root != nil {
			t.root.ascend(first, yield)
		}
	}
}

// after yields the values of the keys that are greater than last, in order of keys.
func (t *tree[K, T]) after(last K) iter.Seq[T] {
	return func(yield func(T) bool) {
		for k, v := range t.from(last) {
			if k != last && !yield(v) {
				return
			}
		}
	}
}

// all yields the values in order of keys.
func (t *tree[K, T]) all() iter.Seq[T] {
	return func(yield func(T) bool) {
		var least K
		for _, v := range t.from(least) {
			if !yield(v) {
				return
			}
		}
	}
}

// edit begins a transaction.
func (t *tree[K, T]) edit() *treeTxn[K, T] { return &treeTxn[K, T]{tree: *t, owner: new(treeOwner)} }

func (n *treeNode[K, T]) get(key K) (value T, ok bool) {
	for n != nil {
		if n.children != nil {
			n = n.children[n.childOf(key)]
			continue
		}
		if i, found := slices.BinarySearch(n.keys, key); found {
			return n.values[i], true
		}
		break
	}
	return value, false
}

// childOf returns the child under which a key belongs.
func (n *treeNode[K, T]) childOf(key K) int {
	i, found := slices.BinarySearch(n.keys[1:], key)
	if found {
		i++
	}
	return i
}

func (n *treeNode[K, T]) ascend(first K, yield func(K, T) bool) bool {
	if n.children == nil {
		i, _ := slices.BinarySearch(n.keys, first)
		for ; i < len(n.keys); i++ {
			if !yield(n.keys[i], n.values[i]) {
				return false
			}
		}
		return true
	}
	i := n.childOf(first)
	if !n.children[i].ascend(first, yield) {
		return false
	}
	for _, child := range n.children[i+1:] {
		var least K
		if !child.ascend(least, yield) {
			return false
		}
	}
	return true
}
