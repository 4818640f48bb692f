package check

import (
	"slices"
	"time"
)

// AttachedSession is a session that its client held by a connection to a node, until it let
// go of it.
type AttachedSession struct {
	Session, Node string
	DetachedAt    time.Duration
}

// FaultInterval is a time in which something was wrong with a node; "": with all.
type FaultInterval struct {
	Node     string
	From, To time.Duration
}

// reportTimeout is how long after the end of a connection the node that served it may
// still have to tell a leader that takes writes.
const reportTimeout = 3 * time.Second

// CheckAttachedSessionsEnd checks that no session goes on living when the connection that held it is
// gone. A node that was hit before it had time to tell may have forgotten it: that
// session falls back to its TTL. Without are the times in which no write was
// acknowledged, in their order.
func CheckAttachedSessionsEnd(held []AttachedSession, alive map[string]bool, hits, without []FaultInterval) (violations []Violation) {
	for _, h := range held {
		by := reportDeadline(h.DetachedAt, without)
		hit := slices.ContainsFunc(hits, func(f FaultInterval) bool {
			return (f.Node == "" || f.Node == h.Node) && f.From <= by && f.To >= h.DetachedAt
		})
		if alive[h.Session] && !hit {
			violations = append(violations, Violationf(AttachedSessionEnds, "session %s lives on; its connection to %s ended at %v", h.Session, h.Node, h.DetachedAt))
		}
	}
	return violations
}

// reportDeadline is when what a node knows from a moment on must have been told.
func reportDeadline(at time.Duration, without []FaultInterval) time.Duration {
	left := reportTimeout
	for _, w := range without {
		if w.To <= at {
			continue
		}
		if w.From >= at+left {
			break
		}
		left -= max(0, w.From-at)
		at = w.To
	}
	return at + left
}
