// Package roles keeps the timers of sessions and roles on the leader, in memory. It knows which sessions were not
// renewed for their TTL, which takeover delays are over, and which candidates still wait. The consequences go through
// the log as commands of package state, which decides who holds what. DESIGN.md explains why no session ends early.
package roles
