package state

import (
	"cmp"
	"slices"
	"time"

	iradix "github.com/hashicorp/go-immutable-radix/v2"
)

// withoutSessionKeys returns the keys that belong to no session, and the number of their bytes.
func withoutSessionKeys(v *View) (*iradix.Tree[*Item], int64) {
	txn, bytes := v.keys.Txn(), v.bytes
	v.ownership.Root().Walk(func(k []byte, _ struct{}) bool {
		if _, kind, key := splitOwnershipKey(k); kind == ownedKey {
			if it, ok := txn.Delete([]byte(key)); ok {
				bytes -= it.size()
			}
		}
		return false
	})
	return txn.CommitOnly(), bytes
}

// endSessions ends every session of a View that is not published yet. It writes no events: no watch outlasts a restore
// or a recovery. lockDelay returns the lock delay of a role.
func (v *View) endSessions(cause Cause, lockDelay func(*Role) time.Duration) {
	roles := v.roles.Txn()
	for r := range v.RolesAfter("") {
		vacant := &Role{
			Name: r.Name, History: r.History, StateRevision: v.revision, Elections: r.Elections,
			LockDelay: lockDelay(r),
		}
		if r.Held() {
			ended := r.Current
			ended.Value, ended.EndedAt, ended.Cause = "", v.now, cause
			vacant.remember(ended)
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

// remember adds an ended tenure to the history.
func (r *Role) remember(ended Tenure) {
	r.History = append(slices.Clone(r.History[max(0, len(r.History)+1-MaxTenures):]), ended)
}

// ownershipOf returns the index of what sessions own. An owner that is not a live session is damage.
func ownershipOf(v *View) (*iradix.Tree[struct{}], error) {
	txn := iradix.New[struct{}]().Txn()
	var err error
	own := func(session string, kind ownedKind, name string) {
		if _, live := v.Session(session); !live {
			err = cmp.Or(err, damaged("%q belongs to session %q, which is not live", name, session))
		} else if _, twice := txn.Insert(ownershipKey(session, kind, name), struct{}{}); twice {
			err = cmp.Or(err, damaged("%q belongs to session %q twice", name, session))
		}
	}
	for item := range values(v.keys.Root()) {
		if item.Session != "" {
			own(item.Session, ownedKey, item.Key)
		}
	}
	for r := range v.RolesAfter("") {
		if r.Held() {
			own(r.Current.Session, ownedRole, r.Name)
		}
		if r.RevokedFrom != "" {
			own(r.RevokedFrom, ownedRevocation, r.Name)
		}
		for _, c := range r.Queue {
			own(c.Session, ownedCandidacy, r.Name)
		}
	}
	for n := range v.AppNodesAfter("") {
		if n.Session != "" {
			own(n.Session, ownedNode, n.ID)
		}
	}
	return txn.CommitOnly(), err
}
