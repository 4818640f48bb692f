package check

import (
	"slices"
	"time"
)

// AttachedSession is a session that its client attached to a connection and later detached.
type AttachedSession struct {
	Session, Node string
	DetachedAt    time.Duration
}

// FaultInterval is a period in which a fault affected a node. An empty node means all nodes.
type FaultInterval struct {
	Node     string
	From, To time.Duration
}

// reportTimeout is how long a node may take to report a closed connection to a leader that takes writes.
const reportTimeout = 3 * time.Second

// CheckAttachedSessionsEnd checks that no session outlives the connection that it was attached to. A node may fail
// before it reports the closed connection: that session falls back to its TTL. without lists, in order, the periods
// without an acknowledged write.
func CheckAttachedSessionsEnd(held []AttachedSession, alive map[string]bool, hits,
	without []FaultInterval,
) (violations []Violation) {
	for _, h := range held {
		by := reportDeadline(h.DetachedAt, without)
		hit := slices.ContainsFunc(hits, func(f FaultInterval) bool {
			return (f.Node == "" || f.Node == h.Node) && f.From <= by && f.To >= h.DetachedAt
		})
		if alive[h.Session] && !hit {
			violations = append(violations, Violationf(AttachedSessionEnds,
				"session %s lives on; its connection to %s ended at %v", h.Session, h.Node, h.DetachedAt))
		}
	}
	return violations
}

// reportDeadline returns the time by which a node must have reported what it knew at the given time.
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
