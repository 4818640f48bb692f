package state

import (
	"iter"
	"slices"
)

// treeWidth is the most keys of a leaf, and the most children of another node.
const treeWidth = 32

// tree is a sorted map that never changes: a B+ tree whose nodes are shared by its versions. A changed version has
// copies of the nodes on the paths to what has changed. The zero value is an empty tree.
type tree[T any] struct {
	root  *treeNode[T] // nil: empty
	count int
}

// treeNode is a leaf, or has children.
//
// Invariants: keys are sorted and never changed in place, so that versions of a node share them. keys[i] of a leaf is
// the key of values[i]. keys[i] of any other node is not greater than any key under children[i], and greater than any
// under children[i-1]; keys[0] does not count. A node has 1 to treeWidth keys. All leaves are equally deep.
type treeNode[T any] struct {
	owner    *treeOwner // the one that may change the node
	keys     []string
	values   []T            // of a leaf
	children []*treeNode[T] // nil: a leaf
}

// treeOwner stands for a transaction until its nodes are part of a tree or of another transaction.
type treeOwner struct{ _ byte } // not of size zero: each has its own address

// len returns the number of keys.
func (t *tree[T]) len() int { return t.count }

// get returns the value of a key.
func (t *tree[T]) get(key string) (value T, ok bool) { return t.root.get(key) }

// from yields the keys that are not less than first, with their values, in order.
func (t *tree[T]) from(first string) iter.Seq2[string, T] {
	return func(yield func(string, T) bool) {
		if t.root != nil {
			t.root.ascend(first, yield)
		}
	}
}

// after yields the values of the keys that are greater than last, in order of keys.
func (t *tree[T]) after(last string) iter.Seq[T] {
	return func(yield func(T) bool) {
		for k, v := range t.from(last) {
			if k != last && !yield(v) {
				return
			}
		}
	}
}

// edit begins a transaction.
func (t *tree[T]) edit() *treeTxn[T] { return &treeTxn[T]{tree: *t, owner: new(treeOwner)} }

func (n *treeNode[T]) get(key string) (value T, ok bool) {
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
func (n *treeNode[T]) childOf(key string) int {
	i, found := slices.BinarySearch(n.keys[1:], key)
	if found {
		i++
	}
	return i
}

func (n *treeNode[T]) ascend(first string, yield func(string, T) bool) bool {
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
		if !child.ascend("", yield) {
			return false
		}
	}
	return true
}
