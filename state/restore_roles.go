package state

import (
	"cmp"
	"slices"
	"time"

	iradix "github.com/hashicorp/go-immutable-radix/v2"
)

// withoutSessionKeys gives a state's keys that go with no session, and their bytes.
func withoutSessionKeys(v *View) (*iradix.Tree[*Item], int64) {
	txn, bytes := v.keys.Txn(), v.bytes
	v.ownership.Root().Walk(func(k []byte, _ struct{}) bool {
		if _, h, key := splitOwnershipKey(k); h == ownedKey {
			if it, ok := txn.Delete([]byte(key)); ok {
				bytes -= it.size()
			}
		}
		return false
	})
	return txn.CommitOnly(), bytes
}

// endSessions ends every session of a view in the making, without an event for
// each: after a restore or a recovery no watch goes on, so that nobody is owed
// one. await says for how long a role waits then.
func (v *View) endSessions(cause Cause, await func(*Role) time.Duration) {
	roles := v.roles.Txn()
	for r := range v.RolesAfter("") {
		vacant := &Role{Name: r.Name, History: r.History, StateRevision: v.revision, Elections: r.Elections, LockDelay: await(r)}
		if r.Held() {
			ended := r.Current
			ended.Value, ended.EndedAt, ended.Cause = "", v.now, cause
			vacant.History = append(slices.Clone(r.History[max(0, len(r.History)+1-MaxTenures):]), ended)
		}
		if len(vacant.History) == 0 && vacant.LockDelay == 0 {
			roles.Delete([]byte(r.Name))
		} else {
			roles.Insert([]byte(r.Name), vacant)
		}
	}
	v.roles = roles.CommitOnly()
	v.sessions, v.ownership = iradix.New[*Session](), iradix.New[struct{}]()
	nodes := v.appNodes.Txn()
	for n := range v.AppNodesAfter("") {
		if n.Status != AppDead {
			dead := *n
			dead.Session, dead.Status, dead.ChangedAt, dead.Revision = "", AppDead, v.now, v.revision
			nodes.Insert([]byte(n.ID), &dead)
		}
	}
	v.appNodes = nodes.CommitOnly()
	v.roleChanges, v.nodeChanges = history{floor: v.revision}, history{floor: v.revision}
}

// ownershipOf makes the index of what sessions hold. It is damage when something
// is held by a session that does not live.
func ownershipOf(v *View) (*iradix.Tree[struct{}], error) {
	txn := iradix.New[struct{}]().Txn()
	var err error
	hold := func(session string, h ownedKind, name string) {
		if _, lives := v.Session(session); !lives {
			err = cmp.Or(err, damaged("%q is held by session %q, which does not live", name, session))
		} else if _, twice := txn.Insert(ownershipKey(session, h, name), struct{}{}); twice {
			err = cmp.Or(err, damaged("%q is held by session %q twice", name, session))
		}
	}
	for item := range values(v.keys.Root()) {
		if item.Session != "" {
			hold(item.Session, ownedKey, item.Key)
		}
	}
	for r := range v.RolesAfter("") {
		if r.Held() {
			hold(r.Current.Session, ownedRole, r.Name)
		}
		if r.RevokedFrom != "" {
			hold(r.RevokedFrom, ownedRevocation, r.Name)
		}
		for _, c := range r.Queue {
			hold(c.Session, ownedCandidacy, r.Name)
		}
	}
	for n := range v.AppNodesAfter("") {
		if n.Session != "" {
			hold(n.Session, ownedNode, n.ID)
		}
	}
	return txn.CommitOnly(), err
}
