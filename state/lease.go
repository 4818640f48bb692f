package state

import "iter"

// A lease is a session with a number (Session.Lease). Its keys are deleted when it ends, in one revision.

// LeaseGrant makes a lease. Refusals: LeaseExists, LeaseTTLTooLarge. Result.Session is the lease, with the TTL that
// was granted: at least one second, at most MaxSessionTTL. It takes no revision.
type LeaseGrant struct {
	ID    int64 // not 0; drawn by the proposer if the client gives none
	TTL   int64 // seconds
	Owner string
}

// LeaseRevoke ends a lease and deletes its keys. Refusal: LeaseNotFound.
type LeaseRevoke struct {
	ID int64
}

// Compact makes revisions below Revision unavailable to reads at a revision and to watches by revision. Refusals:
// Compacted, FutureRevision.
type Compact struct {
	Revision int64
}

// Lease returns the lease that the key is attached to, 0 for none. A key of another session has none.
func (it *Item) Lease() int64 { return LeaseOf(it.Session) }

// LeaseOf returns the number of the lease with a session ID, 0 if it is no lease.
func LeaseOf(session string) int64 { return 0 }

// Lease returns a live lease.
func (v *View) Lease(id int64) (*Session, bool) { return nil, false }

// Leases yields the live leases in order of their numbers.
func (v *View) Leases() iter.Seq[*Session] { return func(func(*Session) bool) {} }

// LeaseKeys returns the keys of a lease, sorted.
func (v *View) LeaseKeys(id int64) []string { return nil }
