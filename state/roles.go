package state

import (
	"cmp"
	"iter"
	"regexp"
	"slices"
	"time"

	"northstar/cluster"
)

// Limits of roles.
const (
	MaxRoles          = 10_000 // records, also of vacant roles
	MaxRoleValue      = 4096   // bytes of a candidate's value
	MaxCandidates     = 1000   // candidates that wait for one role
	MaxTenures        = 32     // ended tenures in the history of a role
	MaxTakeoverDelay  = time.Hour
	MaxElectableRoles = 1000 // vacancies of one RoleElect

	roleEvictionBatch = 100 // roles evicted together when there are MaxRoles
)

// Role is a named leadership that at most one session holds. It is immutable, with all that it refers to.
//
// Invariants: a vacant role has no eligible candidate, or waits for a takeover delay, a revocation or a lock delay; the
// holder is not in the queue; tokens in History grow and are less than Current.Token; StateRevision ≥ Current.Token;
// every session in it is live.
type Role struct {
	Name          string
	Current       Tenure      // the zero Tenure while the role is vacant
	Queue         []Candidate // in order of arrival
	History       []Tenure    // the last MaxTenures ended tenures, oldest first, without their values
	StateRevision uint64      // revision of the last election or vacancy
	Elections     uint64      // number of elections
	// TakeoverPending: the last tenure ended involuntarily. RoleElect ends the next candidate's delay.
	TakeoverPending bool
	// RevokedFrom is the session from which an operator took the role, or "". It may act until its own deadline. Until
	// it acknowledges (RoleRelease) or ends, it is not renewed and no other session is elected. A held role has none.
	RevokedFrom string
	// LockDelay is the TTL of the session that held the role in a state that a restore or a recovery replaced: its
	// client may still act. No session is elected until the leader has measured the delay (RoleElect). A role that is
	// held, revoked or TakeoverPending has none. See View.LockDelay too.
	LockDelay time.Duration
	// Required: the last campaign has asked for an alert while no session holds the role. It has no effect here.
	Required bool

	owner string // identity to which the record counts: see ownerOfRole
}

// Held reports whether a session holds the role.
func (r *Role) Held() bool { return r.Current.Token != 0 }

// Next returns the first eligible candidate, which is elected next.
func (r *Role) Next() (Candidate, bool) {
	i := slices.IndexFunc(r.Queue, func(c Candidate) bool { return !c.Ineligible })
	if i < 0 {
		return Candidate{}, false
	}
	return r.Queue[i], true
}

// tokenOf returns the token of the tenure that a session has, or that was revoked from it. 0: none.
func (r *Role) tokenOf(session string) uint64 {
	switch session {
	case r.Current.Session:
		return r.Current.Token
	case r.RevokedFrom:
		return r.History[len(r.History)-1].Token
	}
	return 0
}

// Waits reports whether a session is in the queue.
func (r *Role) Waits(session string) bool { return r.find(session) >= 0 }

func (r *Role) find(session string) int {
	return slices.IndexFunc(r.Queue, func(c Candidate) bool { return c.Session == session })
}

// Tenure is one session's time as holder of a role.
type Tenure struct {
	Token      uint64 // fencing token: the revision of the election, which always grows
	Session    string
	Holder     string // the session's name
	Value      string // the candidate's value
	AcquiredAt int64  // Unix nanoseconds
	EndedAt    int64  // 0 while it lasts
	Cause      Cause  // "" while it lasts
}

// Candidate is a session that waits for a role.
type Candidate struct {
	Session       string
	Name          string // the session's name
	Value         string
	TakeoverDelay time.Duration // delay before its election after an involuntary end
	Ineligible    bool          // it keeps its place, but is not elected
	Since         uint64        // revision when it joined the queue
}

var rolePattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._:@-]{0,127}$`)

// CheckRole checks the name of a role.
func CheckRole(name string) *cluster.Error {
	if !rolePattern.MatchString(name) {
		return badRequest("role: %q: must be 1 to 128 of A-Z, a-z, 0-9, '.', '_', ':', '@' and '-', "+
			"starting with a letter or digit", name)
	}
	return nil
}

// RoleKey returns the key of a role's changes in the RoleFeed. It is not a prefix of another role's key.
func RoleKey(name string) string { return name + "\x00" }

// Role returns the record of a role that is held, awaited or was held before.
func (v *View) Role(name string) (*Role, bool) { return v.roles.get(name) }

// Roles returns the number of role records.
func (v *View) Roles() int { return v.roles.len() }

// RolesAfter yields the roles with a name greater than after, in order of names.
func (v *View) RolesAfter(after string) iter.Seq[*Role] { return v.roles.after(after) }

// role returns a copy of a role's record, or a new record, to be changed and written by setRole. Its slices are shared.
func (w *txn) role(name string) *Role {
	if r, ok := w.write.roles.get(name); ok {
		changed := *r
		return &changed
	}
	return &Role{Name: name}
}

// setRole elects the next candidate if it may, and writes the record, or deletes one that holds nothing.
func (w *txn) setRole(r *Role, delayOver bool) *Role {
	w.electNext(r, delayOver)
	before, _ := w.write.roles.get(r.Name)
	if w.keepsRecord(r) {
		w.accountRole(before, r)
		w.write.roles.put(r.Name, r)
	} else {
		w.accountRole(before, nil)
		w.write.roles.remove(r.Name)
	}
	return r
}

// keepsRecord reports whether a role's record holds anything. Before RolesVersion the mark of a required role that no
// session ever held was not enough. A revoked role has a history.
func (v *View) keepsRecord(r *Role) bool {
	return r.Held() || len(r.Queue) > 0 || len(r.History) > 0 || r.LockDelay > 0 ||
		r.Required && v.version >= RolesVersion
}

// electNext elects the next candidate of a vacant role, unless a delay or the previous holder must be awaited.
func (w *txn) electNext(r *Role, delayOver bool) {
	if r.Held() {
		return
	}
	next, ok := r.Next()
	switch {
	case !ok:
		r.TakeoverPending = false // the next candidate to arrive need not wait
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
	w.appendRoleEvent(RoleEvent{Role: r.Name, Elected: true, Tenure: r.Current})
}

// endTenure makes a role vacant. The caller calls setRole.
func (w *txn) endTenure(r *Role, cause Cause) {
	ended := r.Current
	ended.EndedAt, ended.Cause = w.now, cause
	w.unlink(ended.Session, ownedRole, r.Name)
	w.revision++
	r.StateRevision, r.TakeoverPending = w.revision, cause.involuntary()
	r.Current = Tenure{}
	w.appendRoleEvent(RoleEvent{Role: r.Name, Tenure: ended})
	ended.Value = ""
	r.remember(ended)
}

// clearRevocation ends the wait for the previous holder. The caller calls setRole.
func (w *txn) clearRevocation(r *Role) {
	if r.RevokedFrom != "" {
		w.unlink(r.RevokedFrom, ownedRevocation, r.Name)
		r.RevokedFrom = ""
	}
}

// acknowledgeRevocation ends the wait for the previous holder and elects the next candidate.
func (w *txn) acknowledgeRevocation(name string) *Role {
	r := w.role(name)
	w.clearRevocation(r)
	return w.setRole(r, false)
}

// appendRoleEvent appends an event to the history of the roles.
func (w *txn) appendRoleEvent(ev RoleEvent) {
	item := &Item{Key: RoleKey(ev.Role), Value: encodeRecord(&ev), Revision: w.revision}
	w.roleChanges.push(change{item: item}, w.options)
}

// vacate ends the tenure of a held role.
func (w *txn) vacate(name string, cause Cause) *Role {
	r := w.role(name)
	w.endTenure(r, cause)
	return w.setRole(r, false)
}

// withdraw removes a session from a role's queue.
func (w *txn) withdraw(name, session string) *Role {
	r := w.role(name)
	if i := r.find(session); i >= 0 {
		r.Queue = slices.Delete(slices.Clone(r.Queue), i, i+1)
		w.unlink(session, ownedCandidacy, name)
	}
	return w.setRole(r, false)
}

// evictVacantRoles evicts the longest vacant roles if there are MaxRoles, required ones last: nothing else says that
// they have no holder. It reports whether there is room.
func (w *txn) evictVacantRoles() bool {
	if w.write.roles.len() < MaxRoles {
		return true
	}
	var vacant []*Role
	for r := range w.write.roles.all() {
		if !r.Held() && len(r.Queue) == 0 && r.RevokedFrom == "" && r.LockDelay == 0 {
			vacant = append(vacant, r)
		}
	}
	slices.SortFunc(vacant, func(a, b *Role) int {
		if w.version >= BoundsVersion && a.Required != b.Required {
			if a.Required {
				return 1
			}
			return -1
		}
		byAge := cmp.Compare(a.StateRevision, b.StateRevision)
		if byAge == 0 && w.version >= RolesVersion { // no session ever held them, or one restore ended their tenures
			return cmp.Compare(a.Name, b.Name)
		}
		return byAge
	})
	for _, r := range vacant[:min(len(vacant), roleEvictionBatch)] {
		w.accountRole(r, nil)
		w.write.roles.remove(r.Name)
	}
	return len(vacant) > 0
}

// RoleEvent is one election or vacancy.
type RoleEvent struct {
	Role    string
	Elected bool   // false: vacated
	Tenure  Tenure // the tenure that began or ended
}

// DecodeRoleEvent decodes the value of a change of the RoleFeed.
func DecodeRoleEvent(value []byte) (RoleEvent, error) {
	var ev RoleEvent
	err := decodeRecord(value, &ev)
	return ev, err
}
