package state

import "slices"

// treeTxn makes the next version of a tree. The versions before it do not change. Its own tree may be read between
// changes, but not across them.
type treeTxn[K treeKey, T any] struct {
	tree[K, T]
	owner *treeOwner
}

// commit returns the tree. The transaction may go on; it then copies what it changes.
func (x *treeTxn[K, T]) commit() *tree[K, T] {
	x.owner = new(treeOwner)
	done := x.tree
	return &done
}

// clone returns a transaction with the same keys. Changes of the one do not show in the other.
func (x *treeTxn[K, T]) clone() *treeTxn[K, T] { return x.commit().edit() }

// put sets the value of a key. It returns the value that it replaced.
func (x *treeTxn[K, T]) put(key K, value T) (old T, replaced bool) {
	if x.root == nil {
		x.root = &treeNode[K, T]{owner: x.owner, keys: []K{key}, values: []T{value}}
		x.count++
		return old, false
	}
	x.root = x.own(x.root)
	old, replaced = x.insert(x.root, key, value)
	if !replaced {
		x.count++
	}
	if right := x.split(x.root); right != nil {
		x.root = &treeNode[K, T]{
			owner: x.owner, keys: []K{x.root.keys[0], right.keys[0]}, children: []*treeNode[K, T]{x.root, right},
		}
	}
	return old, replaced
}

// own returns a node that the transaction may change: n or a copy.
func (x *treeTxn[K, T]) own(n *treeNode[K, T]) *treeNode[K, T] {
	if n.owner == x.owner {
		return n
	}
	return &treeNode[K, T]{
		owner: x.owner, keys: n.keys, values: slices.Clone(n.values), children: slices.Clone(n.children),
	}
}

// insert puts a key under a node that the transaction owns. The node may have one key too many then.
func (x *treeTxn[K, T]) insert(n *treeNode[K, T], key K, value T) (old T, replaced bool) {
	if n.children == nil {
		i, found := slices.BinarySearch(n.keys, key)
		if found {
			old, n.values[i] = n.values[i], value
			return old, true
		}
		n.keys, n.values = inserted(n.keys, i, key), inserted(n.values, i, value)
		return old, false
	}
	i := n.childOf(key)
	child := x.own(n.children[i])
	n.children[i] = child
	old, replaced = x.insert(child, key, value)
	if right := x.split(child); right != nil {
		n.keys, n.children = inserted(n.keys, i+1, right.keys[0]), inserted(n.children, i+1, right)
	}
	return old, replaced
}

// split moves the second half of a node with too many keys to a new node. It returns that, nil if there is none.
func (x *treeTxn[K, T]) split(n *treeNode[K, T]) (right *treeNode[K, T]) {
	if len(n.keys) <= treeWidth {
		return nil
	}
	half := len(n.keys) / 2
	right = &treeNode[K, T]{owner: x.owner, keys: slices.Clone(n.keys[half:])}
	n.keys = slices.Clone(n.keys[:half])
	if n.children == nil {
		right.values, n.values = slices.Clone(n.values[half:]), slices.Clone(n.values[:half])
	} else {
		right.children, n.children = slices.Clone(n.children[half:]), slices.Clone(n.children[:half])
	}
	return right
}

// remove deletes a key. It returns the value that the key had.
func (x *treeTxn[K, T]) remove(key K) (old T, existed bool) {
	if old, existed = x.get(key); !existed {
		return old, false
	}
	x.count--
	x.root = x.own(x.root)
	x.cut(x.root, key)
	for len(x.root.children) == 1 {
		x.root = x.root.children[0]
	}
	if len(x.root.keys) == 0 {
		x.root = nil
	}
	return old, true
}

// cut deletes a key that is under a node that the transaction owns. A leaf that is the root may have no key then, and
// another root one child.
func (x *treeTxn[K, T]) cut(n *treeNode[K, T], key K) {
	if n.children == nil {
		i, _ := slices.BinarySearch(n.keys, key)
		n.keys, n.values = without(n.keys, i), without(n.values, i)
		return
	}
	i := n.childOf(key)
	child := x.own(n.children[i])
	n.children[i] = child
	x.cut(child, key)
	switch {
	case len(child.keys) == 0:
		n.drop(i)
	case i > 0:
		x.join(n, i-1)
	case len(n.children) > 1:
		x.join(n, i)
	}
}

// join makes one node of two neighbours, children[i] and the next, if they have few keys. The transaction owns n.
func (x *treeTxn[K, T]) join(n *treeNode[K, T], i int) {
	left, right := n.children[i], n.children[i+1]
	if len(left.keys)+len(right.keys) > treeWidth/2 {
		return
	}
	joined := &treeNode[K, T]{owner: x.owner, keys: slices.Concat(left.keys, right.keys)}
	if left.children == nil {
		joined.values = slices.Concat(left.values, right.values)
	} else {
		joined.children = slices.Concat(left.children, right.children)
		joined.keys[len(left.keys)] = n.keys[i+1] // the first key of right did not count
	}
	n.children[i] = joined
	n.drop(i + 1)
}

// drop removes a child.
func (n *treeNode[K, T]) drop(i int) {
	n.keys, n.children = without(n.keys, i), without(n.children, i)
}

// inserted returns a copy of a list with one element more.
func inserted[E any](list []E, i int, e E) []E {
	longer := make([]E, len(list)+1)
	copy(longer, list[:i])
	longer[i] = e
	copy(longer[i+1:], list[i:])
	return longer
}

// without returns a copy of a list without one element.
func without[E any](list []E, i int) []E {
	shorter := make([]E, len(list)-1)
	copy(shorter, list[:i])
	copy(shorter[i:], list[i+1:])
	return shorter
}
