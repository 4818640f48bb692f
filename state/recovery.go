package state

import (
	"cmp"
	"slices"
	"time"

	"northstar/cluster"
)

// maxGeneration is the last generation whose revisions stay below maxRevision.
const maxGeneration = 1 << 12

func checkGeneration(g cluster.Generation) *cluster.Error {
	if g.Number > maxGeneration {
		return cluster.Errorf(cluster.CodeBadRequest, "generation: %d would take revisions beyond 2^53", g.Number)
	}
	return checkText("recovery_id", g.RecoveryID)
}

func (p *Recovery) check() *cluster.Error {
	if len(p.Voters)+len(p.Readmit) > 2*MaxMembers {
		return cluster.Errorf(cluster.CodeBadRequest, "members: want at most %d", MaxMembers)
	}
	for _, id := range slices.Concat(p.Voters, p.Readmit) {
		if err := checkNode("members", id); err != nil {
			return err
		}
	}
	return checkGeneration(p.Generation)
}

func (p *Recovery) apply(w *txn) Result {
	if w.clusterID == "" || p.Generation.Number <= w.generation.Number {
		return Result{}
	}
	w.commit()
	*w = txn{View: w.View, options: w.options}
	w.generation = p.Generation
	w.revision = max(w.revision, firstRevision(p.Generation.Number))
	w.keys, w.bytes = withoutSessionKeys(&w.View)
	if p.LockDelay {
		w.clusterLockDelay = max(w.clusterLockDelay, w.recoveryLockDelay())
		w.endSessions(CauseRecovered, w.candidatesTTL)
	} else {
		w.endSessions(CauseRecovered, func(r *Role) time.Duration { return r.LockDelay })
	}
	w.reassignRevisions()
	w.history = history{floor: w.revision}
	w.roleChanges, w.nodeChanges = history{floor: w.revision}, history{floor: w.revision}
	w.epoch++
	// Whoever saw the seq of a record that is lost goes on behind it.
	w.audit.seq = max(w.audit.seq, firstRevision(p.Generation.Number))
	for i, m := range w.members {
		if slices.Contains(p.Voters, m.ID) {
			m.Lifecycle = cluster.Joining
		}
		if slices.Contains(p.Readmit, m.ID) {
			m.Incarnation = ""
		}
		w.setMember(i, m)
	}
	return Result{Created: true}
}

// reassignRevisions gives every key a revision of its own again, above the present one, in
// the order of those that they have. A write that was lost may have had the same
// revision as one that is kept here: whoever saw it must not take the one for the
// other.
func (w *txn) reassignRevisions() {
	items := values(w.writeKeys().Root())
	for _, item := range slices.SortedFunc(items, func(a, b *Item) int { return cmp.Compare(a.Revision, b.Revision) }) {
		w.revision++
		again := *item
		again.Revision = w.revision
		w.keysTxn.Insert([]byte(item.Key), &again)
	}
}
