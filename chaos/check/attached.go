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
// still have to tell the leader.
const notice = 3 * time.Second

// LetGo checks that no session goes on living when the connection that held it is
// gone. A node that was hit just then may have forgotten it: that session falls
// back to its TTL.
func LetGo(held []Held, alive map[string]bool, hits []Hit) (violations []Violation) {
	for _, h := range held {
		hit := slices.ContainsFunc(hits, func(f Hit) bool {
			return (f.Node == "" || f.Node == h.Node) && f.From <= h.LetGo+notice && f.To >= h.LetGo
		})
		if alive[h.Session] && !hit {
			violations = append(violations, Violation{Invariant: AttachedEnds, Detail: fmt.Sprintf("session %s lives on; its connection to %s ended at %v", h.Session, h.Node, h.LetGo)})
		}
	}
	return violations
}
