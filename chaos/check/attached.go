package check

import (
	"fmt"
	"slices"
	"time"
)

// Held is a session that its client held by a connection to a node, until it let
// go of it.
type Held struct {
	Session, Node string
	LetGo         time.Duration
}

// Hit is a time in which something was wrong with a node; "": with all.
type Hit struct {
	Node     string
	From, To time.Duration
}

// notice is how long after the end of a connection the node that served it may
// still have to tell a leader that takes writes.
const notice = 3 * time.Second

// LetGo checks that no session goes on living when the connection that held it is
// gone. A node that was hit before it had time to tell may have forgotten it: that
// session falls back to its TTL. Without are the times in which no write was
// acknowledged, in their order.
func LetGo(held []Held, alive map[string]bool, hits, without []Hit) (violations []Violation) {
	for _, h := range held {
		by := told(h.LetGo, without)
		hit := slices.ContainsFunc(hits, func(f Hit) bool {
			return (f.Node == "" || f.Node == h.Node) && f.From <= by && f.To >= h.LetGo
		})
		if alive[h.Session] && !hit {
			violations = append(violations, Violation{Invariant: AttachedEnds, Detail: fmt.Sprintf("session %s lives on; its connection to %s ended at %v", h.Session, h.Node, h.LetGo)})
		}
	}
	return violations
}

// told is when what a node knows from a moment on must have been told.
func told(at time.Duration, without []Hit) time.Duration {
	left := notice
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
