package state

import (
	"cmp"
	"slices"
	"time"

	"northstar/cluster"
)

// MaxGeneration is the last generation whose revisions stay below maxRevision.
const MaxGeneration = 1 << 12

// NextGeneration returns the number of the generation that a recovery begins. All its revisions are above revision, and
// so above those that lost nodes have given out: a restored backup may be of a cluster in a later generation.
func NextGeneration(current, revision uint64) uint64 {
	return max(current+1, min(revision>>revisionBits+2, MaxGeneration))
}

func checkGeneration(g cluster.Generation) *cluster.Error {
	if g.Number > MaxGeneration {
		return badRequest("generation: must be at most %d (got %d)", MaxGeneration, g.Number)
	}
	return checkText("recovery_id", g.RecoveryID)
}

func (p *Recovery) check() *cluster.Error {
	return firstError(
		checkRange("members", len(p.Voters)+len(p.Readmit), 0, 2*MaxMembers),
		checkEach(slices.Concat(p.Voters, p.Readmit),
			func(id cluster.NodeID) *cluster.Error { return checkNode("members", id) }),
		checkGeneration(p.Generation))
}

func (p *Recovery) apply(w *txn) Result {
	if !p.due(w) {
		return Result{}
	}
	w.write.commit()
	w.generation = p.Generation
	w.revision = max(w.revision, firstRevision(p.Generation.Number))
	w.keys, w.bytes = withoutSessionKeys(&w.View)
	required := w.version >= BoundsVersion
	if p.LockDelay {
		w.clusterLockDelay = max(w.clusterLockDelay, w.recoveryLockDelay())
		w.endSessions(CauseRecovered, w.candidatesTTL, required)
	} else {
		w.endSessions(CauseRecovered, func(r *Role) time.Duration { return r.LockDelay }, required)
	}
	w.recount()
	w.reassignRevisions()
	w.forgetHistory()
	w.roleChanges, w.nodeChanges = historyAfter(w.revision), historyAfter(w.revision)
	w.epoch++
	// A reader that saw the seq of a lost record continues behind it.
	w.audit.seq = max(w.audit.seq, firstRevision(p.Generation.Number))
	p.applyMembers(w)
	return Result{Created: true}
}

// due reports whether the recovery is newer than the generation.
func (p *Recovery) due(w *txn) bool {
	return w.clusterID != "" && p.Generation.Number > w.generation.Number
}

// applyMembers applies the recovery to the member records.
func (p *Recovery) applyMembers(w *txn) {
	for i, m := range w.members {
		if slices.Contains(p.Voters, m.ID) {
			m.Lifecycle = cluster.Joining
		}
		if slices.Contains(p.Readmit, m.ID) {
			m.Incarnation = ""
		}
		w.setMember(i, m)
	}
}

// reassignRevisions assigns every key a new revision above the present one, in the old order, and those of one
// transaction in order of keys. A lost write may have had the revision of one that is kept here, and a client that saw
// it must not confuse them.
func (w *txn) reassignRevisions() {
	byRevision := func(a, b *Item) int { return cmp.Compare(a.Revision, b.Revision) }
	for _, item := range slices.SortedStableFunc(w.write.keys.all(), byRevision) {
		w.revision++
		again := *item
		again.Revision = w.revision
		w.write.keys.put(item.Key, &again)
	}
}
