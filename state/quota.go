package state

import (
	"northstar/cluster"
)

// Limits bound the state. The leader proposes those of its configuration, so that every node decides by the same ones.
// The zero Limits, as before limitsVersion, bound nothing.
type Limits struct {
	StateBytes          uint64 // of View.StateBytes
	SessionsPerIdentity uint64 // live sessions of one Session.Owner
	// KeysPerSession bounds the keys that one session owns, and so the time of its end. 0, as before BoundsVersion: any
	// number.
	KeysPerSession uint64
}

// LimitsChange replaces the limits. What exceeds the new ones stays, and cannot grow.
type LimitsChange struct {
	StateBytes, SessionsPerIdentity, KeysPerSession uint64 // Limits
	// RolesVersion makes this command one of RolesVersion: from it on, the state decides as that version does. A leader
	// sets it when all members read that version.
	RolesVersion bool
}

// Change returns the command that sets the limits.
func (l Limits) Change(rolesVersion bool) Command {
	return Command{Kind: KindLimits, Limits: &LimitsChange{
		StateBytes: l.StateBytes, SessionsPerIdentity: l.SessionsPerIdentity, KeysPerSession: l.KeysPerSession,
		RolesVersion: rolesVersion,
	}}
}

// Bounds of Limits, and limits of one identity that are the same in every cluster.
const (
	MinStateBytes = 1 << 20
	MaxStateBytes = 1 << 50

	// MaxSessionKeys is the Limits.KeysPerSession that every leader sets: the end of a session changes no more keys
	// than one transaction may.
	MaxSessionKeys = MaxTxnChanges

	MaxRolesPerIdentity    = MaxRoles / 2    // held by its sessions, or first in the queue of a vacant role
	MaxAppNodesPerIdentity = MaxAppNodes / 2 // registered by its sessions, dead ones too
)

// keysReserve is the part of Limits.StateBytes that keys leave free (1/16): a client that fills the state with keys
// does not prevent sessions, roles and application nodes.
const keysReserve = 16

// Approximate bytes of a record besides its texts, and of an element of a record. They are part of the decisions of
// limitsVersion and never change.
const (
	recordBytes  = 512
	elementBytes = 64
)

// share is what the sessions of one identity have, with its dead application nodes: they stay for a time.
type share struct{ sessions, roles, appNodes int }

// StateBytes returns the measure of the state: the bytes of keys, sessions, roles and application nodes, with a fixed
// amount for each record. History, idempotency keys and the audit log have bounds of their own.
func (v *View) StateBytes() int64 { return v.stateBytes }

// Limits returns the limits in force.
func (v *View) Limits() Limits { return v.limits }

// Keys returns the number of keys.
func (v *View) Keys() int { return v.keys.len() }

// The footprint of a record is its part of StateBytes. IDs of sessions and the status of a node are in the fixed
// amounts: renewing a registration never needs room.

func (it *Item) footprint() int64 {
	if it == nil {
		return 0
	}
	n := recordBytes + it.size()
	if it.Session != "" { // it has an entry in the ownership index
		n += recordBytes + int64(len(it.Key))
	}
	return n
}

func (s *Session) footprint() int64 {
	n := recordBytes + len(s.Name) + len(s.Owner)
	if s.Lease != 0 { // it has an entry in the index of leases
		n += recordBytes
	}
	for name, value := range s.Meta {
		n += elementBytes + len(name) + len(value)
	}
	return int64(n)
}

func (r *Role) footprint() int64 {
	if r == nil {
		return 0
	}
	n := recordBytes + int64(len(r.Name)+len(r.Current.Holder)+len(r.Current.Value))
	for i := range r.Queue {
		n += r.Queue[i].footprint()
	}
	for i := range r.History {
		n += 2*elementBytes + int64(len(r.History[i].Holder))
	}
	return n
}

func (c *Candidate) footprint() int64 { return recordBytes + int64(len(c.Name)+len(c.Value)) }

func (n *AppNode) footprint() int64 {
	if n == nil {
		return 0
	}
	size := recordBytes + len(n.ID) + len(n.Hostname) + len(n.Address) + len(n.Version)
	for _, list := range [][]string{n.Roles, n.Capabilities} {
		for _, s := range list {
			size += elementBytes + len(s)
		}
	}
	return int64(size)
}

func (p *LimitsChange) check() *cluster.Error {
	if p.StateBytes < MinStateBytes || p.StateBytes > MaxStateBytes {
		return badRequest("state_bytes: must be %d to %d (got %d)", MinStateBytes, int64(MaxStateBytes), p.StateBytes)
	}
	if p.SessionsPerIdentity < 1 || p.SessionsPerIdentity > MaxSessions {
		return badRequest("sessions_per_identity: must be 1 to %d (got %d)", MaxSessions, p.SessionsPerIdentity)
	}
	if p.KeysPerSession > MaxStateBytes {
		return badRequest("keys_per_session: must be at most %d (got %d)", int64(MaxStateBytes), p.KeysPerSession)
	}
	return nil
}

func (p *LimitsChange) apply(w *txn) Result {
	w.limits = Limits{p.StateBytes, p.SessionsPerIdentity, p.KeysPerSession}
	return Result{}
}

// room returns CodeQuotaExceeded if the state may not grow by n bytes. What keeps or shrinks it always has room.
func (v *View) room(n int64) *cluster.Error { return v.roomBelow(v.limits.StateBytes, n) }

// roomForKeys is room without the part that keys leave free.
func (v *View) roomForKeys(n int64) *cluster.Error {
	return v.roomBelow(v.limits.StateBytes-v.limits.StateBytes/keysReserve, n)
}

func (v *View) roomBelow(limit uint64, n int64) *cluster.Error {
	if limit == 0 || n <= 0 || v.stateBytes+n <= int64(limit) {
		return nil
	}
	return cluster.Errorf(cluster.CodeQuotaExceeded,
		"the state is full: it has %d bytes, %d more are needed, and %d are allowed here", v.stateBytes, n, limit)
}

// KeysFull reports whether the next large transaction may find no room for its keys.
func (v *View) KeysFull() bool {
	return v.roomForKeys(min(largeGrowth, int64(v.limits.StateBytes/keysReserve))) != nil
}

// largeGrowth is more than one transaction adds to the state, unless it has hundreds of small keys.
const largeGrowth = 2 << 20

// identified reports whether an owner is one token or certificate. Loopback without tokens, and insecure mode, are not.
func identified(owner string) bool {
	return owner != "" && owner != "operator loopback" && owner != "operator insecure"
}

// shareLeft returns CodeQuotaExceeded if an identity has reached a limit of what count selects.
func (w *txn) shareLeft(owner, what string, limit uint64, count func(share) int) *cluster.Error {
	if w.limits == (Limits{}) || !identified(owner) {
		return nil
	}
	s, _ := w.write.shares.get(owner)
	if n := count(s); uint64(n) >= limit {
		return cluster.Errorf(cluster.CodeQuotaExceeded, "identity %q has %d %s, and %d are allowed", owner, n, what,
			limit)
	}
	return nil
}

// addShare changes what an identity has by d.
func (w *txn) addShare(owner string, d share) {
	if owner == "" || d == (share{}) {
		return
	}
	s, _ := w.write.shares.get(owner)
	s = share{s.sessions + d.sessions, s.roles + d.roles, s.appNodes + d.appNodes}
	if s == (share{}) {
		w.write.shares.remove(owner)
	} else {
		w.write.shares.put(owner, s)
	}
}

// accountRole counts a role whose record changes from before to r; nil is none.
func (w *txn) accountRole(before, r *Role) {
	w.stateBytes += r.footprint() - before.footprint()
	if before != nil {
		w.addShare(before.owner, share{roles: -1})
	}
	if r != nil {
		r.owner = ownerOfRole(r, w.write.sessions.get)
		w.addShare(r.owner, share{roles: 1})
	}
}

// accountAppNode counts a node whose record changes from before to n; nil is none.
func (w *txn) accountAppNode(before, n *AppNode) {
	w.stateBytes += n.footprint() - before.footprint()
	if before != nil {
		w.addShare(before.owner, share{appNodes: -1})
	}
	if n != nil {
		w.addShare(n.owner, share{appNodes: 1})
	}
}

func ownerOf(session string, get func(string) (*Session, bool)) string {
	if s, ok := get(session); ok {
		return s.Owner
	}
	return ""
}

// ownerOfRole returns the identity to which a role's record counts: that of its holder, or of the first candidate.
func ownerOfRole(r *Role, get func(string) (*Session, bool)) string {
	if r.Current.Session == "" && len(r.Queue) > 0 {
		return ownerOf(r.Queue[0].Session, get)
	}
	return ownerOf(r.Current.Session, get)
}

// recount sets the measure, the shares, the numbers of keys and the index of leases of a view by its records. Roles
// with a holder or a candidate must not be published yet: recount sets their owners.
func (v *View) recount() {
	shares := map[string]share{}
	v.stateBytes = 0
	counts := new(tree[string, int]).edit()
	for it := range v.keys.after("") {
		v.stateBytes += it.footprint()
		if it.Session != "" {
			n, _ := counts.get(it.Session)
			counts.put(it.Session, n+1)
		}
	}
	leases := new(tree[uint64, *Session]).edit()
	for s := range v.SessionsAfter("") {
		v.stateBytes += s.footprint()
		if s.Lease != 0 {
			leases.put(leaseKey(s.Lease), s)
		}
		n := shares[s.Owner]
		n.sessions++
		shares[s.Owner] = n
	}
	for r := range v.RolesAfter("") {
		v.stateBytes += r.footprint()
		if owner := ownerOfRole(r, v.Session); owner != "" {
			r.owner = owner
			n := shares[owner]
			n.roles++
			shares[owner] = n
		}
	}
	for a := range v.AppNodesAfter("") {
		v.stateBytes += a.footprint()
		n := shares[a.owner]
		n.appNodes++
		shares[a.owner] = n
	}
	delete(shares, "")
	txn := new(tree[string, share]).edit()
	for owner, n := range shares {
		txn.put(owner, n)
	}
	v.shares, v.leases, v.keyCounts = txn.commit(), leases.commit(), counts.commit()
}
