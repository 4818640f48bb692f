package state

import (
	"iter"
	"strings"

	"northstar/cluster"
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

func ownershipKey(session string, kind ownedKind, name string) string {
	return session + string([]byte{0, byte(kind)}) + name
}

func (w *txn) link(session string, kind ownedKind, name string) {
	w.write.ownership.put(ownershipKey(session, kind, name), struct{}{})
}

func (w *txn) unlink(session string, kind ownedKind, name string) {
	w.write.ownership.remove(ownershipKey(session, kind, name))
}

// ownedBy returns the names of what a session owns, sorted.
func (w *txn) ownedBy(session string, kind ownedKind) []string {
	return ownedNames(w.write.ownership.now(), session, kind)
}

// OwnedRoles returns the names of the roles that a session holds, sorted.
func (v *View) OwnedRoles(session string) []string {
	return ownedNames(v.ownership, session, ownedRole)
}

// OwnedKeys returns how many keys a session owns, and most if they are more than that.
func (v *View) OwnedKeys(session string, most int) int {
	n, _ := v.keyCounts.get(session)
	return min(n, most)
}

// countKey changes the number of keys of a session that has not ended.
func (w *txn) countKey(session string, d int) {
	n, counted := w.write.keyCounts.get(session)
	switch n += d; {
	case n > 0:
		w.write.keyCounts.put(session, n)
	case counted:
		w.write.keyCounts.remove(session)
	}
}

// keysLeft returns CodeQuotaExceeded if a session may own no further key. A lease may not have more than MaxLeaseKeys.
func (w *txn) keysLeft(session string) *cluster.Error {
	most := w.limits.KeysPerSession
	if LeaseOf(session) != 0 {
		most = min(most, MaxLeaseKeys)
	}
	if n, _ := w.write.keyCounts.get(session); most != 0 && uint64(n) >= most {
		return cluster.Errorf(cluster.CodeQuotaExceeded, "session %q has %d keys, and %d are allowed", session, n, most)
	}
	return nil
}

// Revocations returns a session's revoked tenures that it has not acknowledged. It must not be renewed until then.
func (v *View) Revocations(session string) []Revocation {
	var list []Revocation
	for _, name := range ownedNames(v.ownership, session, ownedRevocation) {
		if r, ok := v.Role(name); ok {
			list = append(list, Revocation{Session: session, Role: name, Token: r.tokenOf(session)})
		}
	}
	return list
}

func ownedNames(owned *tree[string, struct{}], session string, kind ownedKind) (names []string) {
	prefix := ownershipKey(session, kind, "")
	for key := range owned.from(prefix) {
		name, ok := strings.CutPrefix(key, prefix)
		if !ok {
			break
		}
		names = append(names, name)
	}
	return names
}

// treeWriter changes one tree of a View. Its transaction begins at the first use and ends with commit.
type treeWriter[K treeKey, T any] struct {
	tree **tree[K, T]
	txn  *treeTxn[K, T] // nil: not begun
}

func writerOf[K treeKey, T any](t **tree[K, T]) treeWriter[K, T] { return treeWriter[K, T]{tree: t} }

func (w *treeWriter[K, T]) open() *treeTxn[K, T] {
	if w.txn == nil {
		w.txn = (*w.tree).edit()
	}
	return w.txn
}

func (w *treeWriter[K, T]) get(key K) (T, bool) { return w.now().get(key) }

// now returns the tree with what was changed until now. It must not be used after the next change.
func (w *treeWriter[K, T]) now() *tree[K, T] {
	if w.txn == nil {
		return *w.tree
	}
	return &w.txn.tree
}

func (w *treeWriter[K, T]) put(key K, v T) { w.open().put(key, v) }

func (w *treeWriter[K, T]) remove(key K) (T, bool) { return w.open().remove(key) }

func (w *treeWriter[K, T]) len() int { return w.now().len() }

// all yields the values in order of keys. The tree must not be changed meanwhile.
func (w *treeWriter[K, T]) all() iter.Seq[T] { return w.now().all() }

func (w *treeWriter[K, T]) commit() {
	if w.txn != nil {
		*w.tree = w.txn.commit()
		w.txn = nil
	}
}
