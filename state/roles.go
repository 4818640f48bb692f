package state

import (
	"cmp"
	"iter"
	"regexp"
	"slices"
	"time"

	iradix "github.com/hashicorp/go-immutable-radix/v2"

	"northstar/cluster"
)

// Limits of roles.
const (
	MaxRoles          = 10_000 // records, of vacant roles too
	MaxRoleValue      = 4096   // bytes of a candidate's value
	MaxCandidates     = 1000   // that wait for one role
	MaxTenures        = 32     // ended ones that a role remembers
	MaxTakeoverDelay  = time.Hour
	MaxElectableRoles = 1000 // that one RoleElect ends

	roleEvictionBatch = 100 // forgotten at once when there are MaxRoles
)

// Role is a named leadership, held by at most one session. It is immutable; what
// it holds must not be changed.
//
// Invariants: a role that is not held has no eligible candidate, or waits for a
// takeover delay, for who was parted from it or for who may still believe to hold
// it; the holder is not in the queue;
// tokens in Past grow and are less than Token; Since ≥ Token; every session in it
// lives.
type Role struct {
	Name          string
	Current       Tenure      // the zero Tenure while nobody holds it
	Queue         []Candidate // first come first
	History       []Tenure    // the last MaxTenures that have ended, oldest first, without their values
	StateRevision uint64      // revision of the last election or vacancy
	Elections     uint64      // that there were
	// Delayed: the last holder was lost involuntarily, and the first eligible
	// candidate wants to wait. RoleElect ends that.
	TakeoverPending bool
	// RevokedFrom is the session that the role was taken from, "" while none was: it may
	// not know yet and go on until its own deadline. Nobody else is elected until it
	// has said that it knows (RoleRelease) or has ended; until then it is not to be
	// renewed, so that its deadline comes first. Never set while the role is held.
	RevokedFrom string
	// LockDelay is the TTL of who held the role in a state that was replaced, by a backup
	// or by that of a recovery: it may not know yet, and its session is no more, so that
	// nobody can say that it knows. Nobody is elected until the leader has seen the role
	// wait for so long (RoleElect). Never set while the role is held or Parted or
	// Delayed; see View.Awaits too.
	LockDelay time.Duration
}

// OwnedBy says whether somebody holds the role.
func (r *Role) Held() bool { return r.Current.Token != 0 }

// Next gives the candidate that is to be elected next, the first that is eligible.
func (r *Role) Next() (Candidate, bool) {
	i := slices.IndexFunc(r.Queue, func(c Candidate) bool { return !c.Ineligible })
	if i < 0 {
		return Candidate{}, false
	}
	return r.Queue[i], true
}

// tokenOf is that of the tenure that a session has, or that was taken from it and
// that it may still act for; 0: none.
func (r *Role) tokenOf(session string) uint64 {
	switch session {
	case r.Current.Session:
		return r.Current.Token
	case r.RevokedFrom:
		return r.History[len(r.History)-1].Token
	}
	return 0
}

// Waits says whether a session is in the queue.
func (r *Role) Waits(session string) bool { return r.find(session) >= 0 }

func (r *Role) find(session string) int {
	return slices.IndexFunc(r.Queue, func(c Candidate) bool { return c.Session == session })
}

// Tenure is one session's time as holder of a role.
type Tenure struct {
	Token      uint64 // fencing token: the revision of the election, so that it grows for ever
	Session    string
	Holder     string // the session's name
	Value      string // the candidate's own
	AcquiredAt int64  // Unix nanoseconds
	EndedAt    int64  // 0 while it lasts
	Cause      Cause  // "" while it lasts
}

// Candidate is a session that waits for a role.
type Candidate struct {
	Session       string
	Name          string // the session's
	Value         string
	TakeoverDelay time.Duration // how long it waits after an involuntary loss before it is elected
	Ineligible    bool          // keeps its place, and is passed over
	Since         uint64        // revision when it joined
}

var rolePattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._:@-]{0,127}$`)

// CheckRole checks the name of a role.
func CheckRole(name string) *cluster.Error {
	if !rolePattern.MatchString(name) {
		return cluster.Errorf(cluster.CodeBadRequest, "role: %q: want 1 to 128 of A-Z, a-z, 0-9, '.', '_', ':', '@' and '-', starting with a letter or digit", name)
	}
	return nil
}

// RoleKey is the key of a role's changes in the RoleFeed: no other role's begins
// with it.
func RoleKey(name string) string { return name + "\x00" }

// Role gives the record of a role that somebody holds, waits for, or has held.
func (v *View) Role(name string) (*Role, bool) { return v.roles.Get([]byte(name)) }

// Roles counts the roles that there is a record of.
func (v *View) Roles() int { return v.roles.Len() }

// RolesAfter yields the roles with a name greater than after, in order of names.
func (v *View) RolesAfter(after string) iter.Seq[*Role] { return valuesAfter(v.roles, after) }

func (w *txn) writeRoles() *iradix.Txn[*Role] { return open(&w.rolesTxn, w.roles) }

// role gives a copy of a role's record to be changed and put back by setRole, an
// empty one when there is none. Its slices are shared.
func (w *txn) role(name string) *Role {
	if r, ok := w.writeRoles().Get([]byte(name)); ok {
		changed := *r
		return &changed
	}
	return &Role{Name: name}
}

// setRole settles who holds a role and puts its record back; a record without
// holder, queue and past is none. It gives the record as it is then.
func (w *txn) setRole(r *Role, delayOver bool) *Role {
	w.electNext(r, delayOver)
	if !r.Held() && len(r.Queue) == 0 && len(r.History) == 0 && r.LockDelay == 0 { // none that was taken has no past
		w.deleteRole(r.Name)
	} else if _, known := w.writeRoles().Insert([]byte(r.Name), r); !known {
		w.newRoles++
	}
	return r
}

func (w *txn) deleteRole(name string) {
	if _, known := w.writeRoles().Delete([]byte(name)); known {
		w.newRoles--
	}
}

// electNext elects the next candidate of a vacant role, unless its takeover delay,
// or who was parted from the role or may believe to hold it, has to be waited for.
func (w *txn) electNext(r *Role, delayOver bool) {
	if r.Held() {
		return
	}
	next, ok := r.Next()
	switch {
	case !ok:
		r.TakeoverPending = false // who comes now has nobody to wait for
	case w.LockDelay(r) > 0:
	case r.RevokedFrom != "" && r.RevokedFrom != next.Session:
	case r.TakeoverPending && !delayOver && next.TakeoverDelay > 0:
	default:
		w.elect(r, next)
	}
}

// elect makes a candidate in the queue of a vacant role its holder.
func (w *txn) elect(r *Role, c Candidate) {
	r.Queue = slices.DeleteFunc(slices.Clone(r.Queue), func(q Candidate) bool { return q.Session == c.Session })
	w.unlink(c.Session, ownedCandidacy, r.Name)
	w.clearRevocation(r)
	w.link(c.Session, ownedRole, r.Name)
	w.revision++
	r.StateRevision, r.Elections, r.TakeoverPending = w.revision, r.Elections+1, false
	r.Current = Tenure{Token: w.revision, Session: c.Session, Holder: c.Name, Value: c.Value, AcquiredAt: w.now}
	w.appendRoleEvent(r.Name, RoleEvent{Role: r.Name, Elected: true, Tenure: r.Current})
}

// endTenure makes a role vacant. The caller puts it back.
func (w *txn) endTenure(r *Role, cause Cause) {
	ended := r.Current
	ended.EndedAt, ended.Cause = w.now, cause
	w.unlink(ended.Session, ownedRole, r.Name)
	w.revision++
	r.StateRevision, r.TakeoverPending = w.revision, cause.involuntary()
	r.Current = Tenure{}
	w.appendRoleEvent(r.Name, RoleEvent{Role: r.Name, Tenure: ended})
	ended.Value = ""
	r.History = append(slices.Clone(r.History[max(0, len(r.History)+1-MaxTenures):]), ended)
}

// revoke makes the session that a role is taken from one that is waited for. The
// caller ends its tenure and puts the role back.
func (w *txn) revoke(r *Role) {
	r.RevokedFrom = r.Current.Session
	w.link(r.RevokedFrom, ownedRevocation, r.Name)
}

// clearRevocation is the end of that. The caller puts the role back.
func (w *txn) clearRevocation(r *Role) {
	if r.RevokedFrom != "" {
		w.unlink(r.RevokedFrom, ownedRevocation, r.Name)
		r.RevokedFrom = ""
	}
}

// acknowledgeRevocation is rejoin for a role that is then settled.
func (w *txn) acknowledgeRevocation(name string) *Role {
	r := w.role(name)
	w.clearRevocation(r)
	return w.setRole(r, false)
}

// appendRoleEvent puts an event into the history of the roles.
func (w *txn) appendRoleEvent(role string, ev RoleEvent) {
	w.roleChanges.push(change{item: &Item{Key: RoleKey(role), Value: encodeRecord(&ev), Revision: w.revision}}, w.options)
}

// vacate ends the tenure of a role that is held.
func (w *txn) vacate(name string, cause Cause) *Role {
	r := w.role(name)
	w.endTenure(r, cause)
	return w.setRole(r, false)
}

// withdraw takes a session out of a role's queue.
func (w *txn) withdraw(name, session string) *Role {
	r := w.role(name)
	if i := r.find(session); i >= 0 {
		r.Queue = slices.Delete(slices.Clone(r.Queue), i, i+1)
		w.unlink(session, ownedCandidacy, name)
	}
	return w.setRole(r, false)
}

// evictVacantRoles forgets the roles that have been vacant for longest when there is no
// room for another; false when all of them are in use.
func (w *txn) evictVacantRoles() bool {
	if w.roles.Len()+w.newRoles < MaxRoles {
		return true
	}
	var vacant []*Role
	for r := range values(w.writeRoles().Root()) {
		if !r.Held() && len(r.Queue) == 0 && r.RevokedFrom == "" && r.LockDelay == 0 {
			vacant = append(vacant, r)
		}
	}
	slices.SortFunc(vacant, func(a, b *Role) int { return cmp.Compare(a.StateRevision, b.StateRevision) })
	for _, r := range vacant[:min(len(vacant), roleEvictionBatch)] {
		w.deleteRole(r.Name)
	}
	return len(vacant) > 0
}

// RoleEvent is one election or vacancy.
type RoleEvent struct {
	Role    string
	Elected bool   // false: vacated
	Tenure  Tenure // that began, or ended
}

// DecodeRoleEvent reads the value of a change of the RoleFeed.
func DecodeRoleEvent(value []byte) (RoleEvent, error) {
	var ev RoleEvent
	err := decodeRecord(value, &ev)
	return ev, err
}
