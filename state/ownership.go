package state

import (
	"iter"

	iradix "github.com/hashicorp/go-immutable-radix/v2"
)

// ownedKind is the kind of a thing that a session owns. The ownership index has one entry for each: the session's ID, a
// NUL, the kind and the name. It follows from keys, roles and nodes, and is not part of a snapshot.
type ownedKind byte

const (
	ownedCandidacy  ownedKind = 'c'
	ownedKey        ownedKind = 'k'
	ownedNode       ownedKind = 'n'
	ownedRevocation ownedKind = 'p' // a role that an operator took from the session
	ownedRole       ownedKind = 'r'
)

func ownershipKey(session string, kind ownedKind, name string) []byte {
	b := make([]byte, 0, len(session)+2+len(name))
	b = append(b, session...)
	return append(append(b, 0, byte(kind)), name...)
}

func (w *txn) link(session string, kind ownedKind, name string) {
	w.write.ownership.open().Insert(ownershipKey(session, kind, name), struct{}{})
}

func (w *txn) unlink(session string, kind ownedKind, name string) {
	w.write.ownership.open().Delete(ownershipKey(session, kind, name))
}

// ownedBy returns the names of what a session owns, sorted.
func (w *txn) ownedBy(session string, kind ownedKind) []string {
	return ownedNames(w.write.ownership.open().Root(), session, kind)
}

// OwnedBy returns the names of the roles, keys and nodes that a session owns.
func (v *View) OwnedBy(session string) (roles, keys, nodes []string) {
	root := v.ownership.Root()
	return ownedNames(root, session, ownedRole), ownedNames(root, session, ownedKey),
		ownedNames(root, session, ownedNode)
}

// Revocations returns a session's revoked tenures that it has not acknowledged. It must not be renewed until then.
func (v *View) Revocations(session string) []Revocation {
	var list []Revocation
	for _, name := range ownedNames(v.ownership.Root(), session, ownedRevocation) {
		if r, ok := v.Role(name); ok {
			list = append(list, Revocation{Session: session, Role: name, Token: r.tokenOf(session)})
		}
	}
	return list
}

func ownedNames(root *iradix.Node[struct{}], session string, kind ownedKind) []string {
	prefix := ownershipKey(session, kind, "")
	var names []string
	root.WalkPrefix(prefix, func(k []byte, _ struct{}) bool {
		names = append(names, string(k[len(prefix):]))
		return false
	})
	return names
}

// values yields the values with a key greater than after, in order of keys.
func values[T any](root *iradix.Node[T], after string) iter.Seq[T] {
	return func(yield func(T) bool) {
		it := root.Iterator()
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
func (w *treeWriter[T]) all() iter.Seq[T] { return values(w.open().Root(), "") }

func (w *treeWriter[T]) commit() {
	if w.txn != nil {
		*w.tree = w.txn.CommitOnly()
		w.txn, w.added = nil, 0
	}
}
