package state

import (
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
	hold := func(session string, h ownedKind, name string) error {
		if _, lives := v.Session(session); !lives {
			return damaged("%q is held by session %q, which does not live", name, session)
		}
		if _, twice := txn.Insert(ownershipKey(session, h, name), struct{}{}); twice {
			return damaged("%q is held by session %q twice", name, session)
		}
		return nil
	}
	it := v.keys.Root().Iterator()
	for _, item, ok := it.Next(); ok; _, item, ok = it.Next() {
		if item.Session == "" {
			continue
		}
		if err := hold(item.Session, ownedKey, item.Key); err != nil {
			return nil, err
		}
	}
	for r := range v.RolesAfter("") {
		if r.Held() {
			if err := hold(r.Current.Session, ownedRole, r.Name); err != nil {
				return nil, err
			}
		}
		if r.RevokedFrom != "" {
			if err := hold(r.RevokedFrom, ownedRevocation, r.Name); err != nil {
				return nil, err
			}
		}
		for _, c := range r.Queue {
			if err := hold(c.Session, ownedCandidacy, r.Name); err != nil {
				return nil, err
			}
		}
	}
	for n := range v.AppNodesAfter("") {
		if n.Session == "" {
			continue
		}
		if err := hold(n.Session, ownedNode, n.ID); err != nil {
			return nil, err
		}
	}
	return txn.CommitOnly(), nil
}

func (l *loader) addSession(rec []byte) error {
	s := new(Session)
	if err := eachField(rec, s.decode); err != nil {
		return err
	}
	if CheckSession("session", s.ID) != nil || s.ID <= l.lastSession || s.TTL < MinSessionTTL || s.TTL > MaxSessionTTL || slices.Contains([]byte(s.ID), 0) {
		return damaged("session %q is out of order or out of bounds", s.ID)
	}
	l.lastSession = s.ID
	if l.counts.sessions++; l.counts.sessions > MaxSessions {
		return damaged("more than %d sessions", MaxSessions)
	}
	if !l.discard {
		l.sessions.Insert([]byte(s.ID), s)
	}
	return nil
}

func (l *loader) addRole(rec []byte) error {
	r := new(Role)
	if err := eachField(rec, r.decode); err != nil {
		return err
	}
	last := uint64(0)
	grows := true
	for _, t := range append(slices.Clone(r.History), r.Current) {
		grows = grows && (t.Token > last || t.Token == 0 && t.Session == "")
		last = max(last, t.Token)
	}
	switch {
	case CheckRole(r.Name) != nil, r.Name <= l.lastRole, len(r.Queue) > MaxCandidates, len(r.History) > MaxTenures:
		return damaged("role %q is out of order or out of bounds", r.Name)
	case !grows, r.StateRevision < last, r.StateRevision > l.meta.view.revision:
		return damaged("role %q has tokens out of order or out of bounds", r.Name)
	case r.RevokedFrom != "" && (r.Held() || len(r.History) == 0):
		return damaged("role %q is held, or was never, and waits for who held it before", r.Name)
	case r.LockDelay < 0 || r.LockDelay > MaxSessionTTL || r.LockDelay > 0 && (r.Held() || r.RevokedFrom != "" || r.TakeoverPending):
		return damaged("role %q is held, or waits for somebody else, and waits %v for who may hold it", r.Name, r.LockDelay)
	}
	l.lastRole = r.Name
	if l.counts.roles++; l.counts.roles > MaxRoles {
		return damaged("more than %d roles", MaxRoles)
	}
	if !l.discard {
		l.roles.Insert([]byte(r.Name), r)
	}
	return nil
}

func (l *loader) addRoleChange(rec []byte) error {
	it := new(Item)
	if err := eachField(rec, it.decode); err != nil {
		return err
	}
	if _, err := DecodeRoleEvent(it.Value); err != nil {
		return err
	}
	if it.Revision <= l.lastRoleRev || it.Revision > l.meta.view.revision || len(it.Key) > MaxKey {
		return damaged("role change of revision %d is out of order or out of bounds", it.Revision)
	}
	l.lastRoleRev = it.Revision
	l.counts.roleChanges++
	if !l.discard {
		l.meta.view.roleChanges.push(change{item: it}, l.options)
	}
	return nil
}

func (l *loader) addAppNode(rec []byte) error {
	n := new(AppNode)
	if err := eachField(rec, n.decode); err != nil {
		return err
	}
	if CheckAppNode(n.ID) != nil || n.ID <= l.lastNode || n.Revision > l.meta.view.revision || (n.Session == "") != (n.Status == AppDead) {
		return damaged("application node %q is out of order or out of bounds", n.ID)
	}
	l.lastNode = n.ID
	if l.counts.appNodes++; l.counts.appNodes > MaxAppNodes {
		return damaged("more than %d application nodes", MaxAppNodes)
	}
	if !l.discard {
		l.appNodes.Insert([]byte(n.ID), n)
	}
	return nil
}

func (l *loader) addNodeChange(rec []byte) error {
	c := change{item: new(Item)}
	err := eachField(rec, func(f field) error {
		if f.num == fieldDeleted {
			return setBool(f, &c.deleted)
		}
		return c.item.decode(f)
	})
	if err != nil {
		return err
	}
	if _, err := DecodeAppNode(c.item.Value); err != nil {
		return err
	}
	if c.item.Revision <= l.lastNodeRev || c.item.Revision > l.meta.view.revision || len(c.item.Key) > MaxKey {
		return damaged("node change of revision %d is out of order or out of bounds", c.item.Revision)
	}
	l.lastNodeRev = c.item.Revision
	l.counts.nodeChanges++
	if !l.discard {
		l.meta.view.nodeChanges.push(c, l.options)
	}
	return nil
}
