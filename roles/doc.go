// Package roles keeps the time of sessions and of the roles that they hold: when
// a session has not been renewed for its TTL, when a takeover delay is over,
// which candidates still wait. All of it is known to the leader only, in memory;
// what follows from it goes through the log as commands of package state, which
// decides who holds what. DESIGN.md says why no session ends early by this.
package roles
