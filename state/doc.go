// Package state is the replicated state of a NorthStar cluster as plain values: keys with revisions, sessions, roles,
// member records, elections, settings, the audit log and the feeds of changes. Every node gives the same log entries
// to State.Apply in the same order, and so has the same state. DESIGN.md explains how the package ensures that.
//
// The package has no clock (commands carry the time), does no I/O of its own and starts no goroutine.
package state
