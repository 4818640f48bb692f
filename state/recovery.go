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
	var items []*Item
	it := w.writeKeys().Root().Iterator()
	for _, item, ok := it.Next(); ok; _, item, ok = it.Next() {
		items = append(items, item)
	}
	slices.SortFunc(items, func(a, b *Item) int { return cmp.Compare(a.Revision, b.Revision) })
	for _, item := range items {
		w.revision++
		again := *item
		again.Revision = w.revision
		w.keysTxn.Insert([]byte(item.Key), &again)
	}
}

func (p *Recovery) encode(e *encoder) {
	e.uintOpt(16, p.Generation.Number)
	e.stringOpt(17, p.Generation.RecoveryID)
	for _, id := range p.Voters {
		e.string(18, string(id))
	}
	for _, id := range p.Readmit {
		e.string(19, string(id))
	}
	e.boolOpt(20, p.LockDelay)
}

func (p *Recovery) decode(f field) error {
	switch f.num {
	case 16:
		return setUint(f, &p.Generation.Number)
	case 17:
		return setString(f, &p.Generation.RecoveryID)
	case 18:
		return appendString(f, &p.Voters)
	case 19:
		return appendString(f, &p.Readmit)
	case 20:
		return setBool(f, &p.LockDelay)
	}
	return nil
}

// appendString decodes one of the fields that make a list.
func appendString[T ~string](f field, to *[]T) error {
	var s T
	err := setString(f, &s)
	*to = append(*to, s)
	return err
}
