package check

import (
	"fmt"
	"sync"

	"northstar/cluster"
)

// Revisions checks, while operations run, that revisions only grow and that no read is stale. It compares each response
// with what was acknowledged when its operation began. Its methods may be called from any goroutine.
type Revisions struct {
	report func(Violation)

	mu    sync.Mutex
	acked uint64 // the highest revision acknowledged to any client
}

// NewRevisions returns a checker that calls report for each violation.
func NewRevisions(report func(Violation)) *Revisions { return &Revisions{report: report} }

// Begin must be called before an operation. Its result is passed to Wrote or Read.
func (r *Revisions) Begin() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.acked
}

// Wrote reports that a write was acknowledged with a revision.
func (r *Revisions) Wrote(what string, begin, revision uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if revision <= begin {
		r.report(Violationf(RevisionsGrow, "%s got revision %d, after %d had been acknowledged", what, revision, begin))
	}
	r.acked = max(r.acked, revision)
}

// Read reports that a linearizable read was served from a state of that revision.
func (r *Revisions) Read(what string, begin, revision uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if revision < begin {
		r.report(Violationf(FreshReads, "%s was served at revision %d, after %d had been acknowledged", what, revision,
			begin))
	}
}

// Acknowledged returns the highest acknowledged revision.
func (r *Revisions) Acknowledged() uint64 { return r.Begin() }

// NodeState is the state of a node at the end of a run, when nothing changes anymore.
type NodeState struct {
	Node      cluster.NodeID
	Leader    cluster.NodeID // the leader that it follows
	Applied   uint64
	Revision  uint64
	StateHash uint64 // hash of the whole state
}

// Converged reports why the nodes disagree, or "". Nodes agree if they follow one leader and have applied the same
// index. They must also hold at least what was acknowledged.
func Converged(nodes []NodeState, acknowledged uint64) string {
	if len(nodes) == 0 {
		return "no nodes"
	}
	first := nodes[0]
	for _, n := range nodes {
		switch {
		case n.Leader == "":
			return fmt.Sprintf("%s knows no leader", n.Node)
		case n.Leader != first.Leader:
			return fmt.Sprintf("%s follows %s, %s follows %s", first.Node, first.Leader, n.Node, n.Leader)
		case n.Applied != first.Applied:
			return fmt.Sprintf("%s has applied %d, %s %d", first.Node, first.Applied, n.Node, n.Applied)
		case n.Revision != first.Revision || n.StateHash != first.StateHash:
			return fmt.Sprintf("at index %d %s is at revision %d (%x), %s at revision %d (%x)", n.Applied, first.Node,
				first.Revision, first.StateHash, n.Node, n.Revision, n.StateHash)
		case n.Revision < acknowledged:
			return fmt.Sprintf("%s is at revision %d, %d was acknowledged", n.Node, n.Revision, acknowledged)
		}
	}
	return ""
}
