// Package state is the replicated state of a NorthStar cluster as plain values:
// keys with revisions, member records, the leader-start of each term, settings,
// and the feed of changes. Every node gives the same log entries to
// State.Apply, in the same order, and so has the same state; DESIGN.md says how
// that is kept true.
//
// The package has no clock (time comes in the command), does no I/O of its own
// and starts no goroutine.
package state
