package state

import (
	"fmt"
	"iter"
	"regexp"
	"strconv"
	"strings"
	"time"

	"northstar/cluster"
)

// A lease is a session with a number (Session.Lease). Its keys are deleted in one revision when it ends. Its session ID
// is the revision at which it was granted, a tilde, the count of leases and its number. So it sorts behind the other
// sessions of that revision, as addition in order needs, and shows the number of a lease that has ended.

// MaxLeaseTTL is the longest TTL, in seconds, that may be asked for. A lease gets at most MaxSessionTTL.
const MaxLeaseTTL = 9_000_000_000

// minLeaseTTL is the shortest TTL that a lease gets, in seconds.
const minLeaseTTL = 1

// LeaseGrant makes a lease. Refusals: LeaseExists, LeaseTTLTooLarge. Result.Session is the lease, with the TTL that
// was granted: at least one second, at most MaxSessionTTL. It takes no revision.
type LeaseGrant struct {
	ID    int64 // not 0; drawn by the proposer if the client gives none
	TTL   int64 // seconds
	Owner string
}

// LeaseRevoke ends a lease and deletes its keys. Refusals: LeaseNotFound, LeaseNotOwned.
type LeaseRevoke struct {
	ID     int64
	Caller string // must be LeaseGrant.Owner, if both are set; "": an operator
}

// lease is what is known of a lease.
type lease struct {
	session *Session
	keys    int // that are attached to it
}

// mayUse reports whether a caller may use the lease. Its number alone does not tell: it can be used again.
func (l *lease) mayUse(caller string) bool {
	return l.session.Owner == "" || caller == "" || caller == l.session.Owner
}

func leaseSession(revision, seq uint64, id int64) string {
	return fmt.Sprintf("%0*x~%012x-%016x", SessionRevisionDigits, revision, seq, uint64(id))
}

// LeaseOf returns the number of the lease with a session ID, 0 if it is no lease.
func LeaseOf(session string) int64 {
	if len(session) <= SessionRevisionDigits || session[SessionRevisionDigits] != '~' {
		return 0
	}
	_, number, _ := strings.Cut(session[SessionRevisionDigits:], "-")
	id, err := strconv.ParseUint(number, 16, 64)
	if err != nil {
		return 0
	}
	return int64(id)
}

// sessionPattern is the form of every session ID: a revision, and the nonce of a session or the parts of a lease.
var sessionPattern = regexp.MustCompile(fmt.Sprintf(`^([0-9a-f]{%d})(?:%s|~([0-9a-f]{12})-[0-9a-f]{16})$`,
	SessionRevisionDigits, nonceForm))

// MadeBefore reports whether the session with an ID, if there ever was one, was made before this view. It has ended
// then, if the view does not have it. ok is false for an ID that no session can have.
func (v *View) MadeBefore(session string) (before, ok bool) {
	parts := sessionPattern.FindStringSubmatch(session)
	if parts == nil {
		return false, false
	}
	made, count, reached := parts[1], parts[2], v.revision
	if count != "" {
		made, reached = count, v.leaseSeq
	}
	n, err := strconv.ParseUint(made, 16, 64)
	return reached >= n, err == nil
}

// leaseKey is the key of a lease in the index: leases are in order of their numbers, also of negative ones.
func leaseKey(id int64) uint64 { return uint64(id) ^ 1<<63 }

// Lease returns the number of the lease that the key is attached to, 0 for none. A key of another session has none.
func (it *Item) Lease() int64 { return LeaseOf(it.Session) }

// Lease returns a live lease.
func (v *View) Lease(id int64) (*Session, bool) { return v.leases.get(leaseKey(id)) }

func (v *View) findLease(id int64) (lease, bool) {
	s, ok := v.Lease(id)
	if !ok {
		return lease{}, false
	}
	n, _ := v.keyCounts.get(s.ID)
	return lease{s, n}, true
}

// Leases yields the live leases in order of their numbers.
func (v *View) Leases() iter.Seq[*Session] {
	return func(yield func(*Session) bool) {
		for s := range v.leases.all() {
			if !yield(s) {
				return
			}
		}
	}
}

// LeaseKeys returns the keys of a lease, sorted.
func (v *View) LeaseKeys(id int64) []string {
	s, ok := v.Lease(id)
	if !ok {
		return nil
	}
	return ownedNames(v.ownership, s.ID, ownedKey)
}

// checkLeases rejects a snapshot in which two sessions have the number of one lease.
func checkLeases(v *View) error {
	n := 0
	for s := range v.SessionsAfter("") {
		if s.Lease != 0 {
			n++
		}
	}
	if n != v.leases.len() {
		return damaged("%d sessions have the numbers of %d leases", n, v.leases.len())
	}
	return nil
}

func (w *txn) findLease(id int64) (lease, bool) {
	s, ok := w.write.leases.get(leaseKey(id))
	if !ok {
		return lease{}, false
	}
	n, _ := w.write.keyCounts.get(s.ID)
	return lease{s, n}, true
}

func (p *LeaseGrant) check() *cluster.Error {
	switch {
	case p.ID == 0:
		return refused(LeaseNotFound)
	case p.TTL > MaxLeaseTTL:
		return refused(LeaseTTLTooLarge)
	}
	return checkUTF8("owner", p.Owner, MaxOwner)
}

func (p *LeaseRevoke) check() *cluster.Error { return checkUTF8("caller", p.Caller, MaxOwner) }

// granted returns the TTL that the lease gets.
func (p *LeaseGrant) granted() time.Duration {
	most := int64(MaxSessionTTL / time.Second)
	return time.Duration(min(max(p.TTL, minLeaseTTL), most)) * time.Second
}

func (p *LeaseGrant) apply(w *txn) Result {
	if _, exists := w.findLease(p.ID); exists {
		return Result{Err: refused(LeaseExists)}
	}
	id := leaseSession(w.revision, w.leaseSeq+1, p.ID)
	s := &Session{
		ID: id, Name: fmt.Sprintf("lease-%x", uint64(p.ID)), TTL: p.granted(), CreatedAt: w.now, Owner: p.Owner,
		Lease: p.ID,
	}
	if err := w.addSession(s); err != nil {
		return Result{Err: err}
	}
	w.leaseSeq++
	w.write.leases.put(leaseKey(p.ID), s)
	return Result{Revision: w.revision, Created: true, Session: s}
}

// replay adds to a recorded result what is not recorded.
func (p *LeaseGrant) replay(w *txn, recorded Result) Result {
	recorded.Session = &Session{TTL: p.granted(), Lease: p.ID}
	if s, ok := w.write.leases.get(leaseKey(p.ID)); ok {
		recorded.Session = s
	}
	return recorded
}

func (p *LeaseRevoke) apply(w *txn) Result {
	l, ok := w.findLease(p.ID)
	if !ok {
		return Result{Err: refused(LeaseNotFound)}
	}
	if !l.mayUse(p.Caller) {
		return Result{Err: refused(LeaseNotOwned)}
	}
	return (&SessionEnd{IDs: []string{l.session.ID}, Cause: CauseSessionEnded}).apply(w)
}

// Compact makes revisions below Revision unavailable to reads at a revision and to watches by revision. Refusals:
// Compacted, FutureRevision. The history of native watches has bounds of its own, and is not affected.
type Compact struct {
	Revision int64
}

func (p *Compact) check() *cluster.Error { return nil }

func (p *Compact) apply(w *txn) Result {
	switch {
	case p.Revision <= w.CompactRevision():
		return Result{Err: refused(Compacted)}
	case p.Revision > int64(w.revision):
		return Result{Err: refused(FutureRevision)}
	}
	w.compacted = uint64(p.Revision)
	return Result{Revision: w.revision}
}

// FirstRevision raises revision 0 to 1. Clients of etcd rely on an empty cluster having that. Later its only effect is
// that of every command of its version: changes begin to keep the items that they replace.
type FirstRevision struct{}

func (p *FirstRevision) check() *cluster.Error { return nil }

func (p *FirstRevision) apply(w *txn) Result {
	w.revision = max(w.revision, 1)
	return Result{Revision: w.revision}
}
