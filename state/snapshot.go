package state

import (
	"crypto/sha256"
	"fmt"
	"io"
	"iter"

	"northstar/cluster"
)

// Snapshot is the state at one moment, to be written while the State goes on. Any goroutine may use it.
type Snapshot struct {
	view *View
}

// Snapshot returns a snapshot of what has been applied. It costs nothing.
func (s *State) Snapshot() *Snapshot { return &Snapshot{view: s.view.Load()} }

// WriteTo writes the snapshot with little more than the memory of one value. Equal states write equal bytes.
func (c *Snapshot) WriteTo(w io.Writer) (int64, error) {
	f := newFrameWriter(w)
	writeSections(f, c.view)
	if f.err != nil {
		return f.n, fmt.Errorf("write snapshot: %w", f.err)
	}
	return f.n, nil
}

// Fingerprint returns a digest of the whole state, equal on nodes that applied the same log with the same Options.
func (v *View) Fingerprint() [sha256.Size]byte {
	h := sha256.New()
	_, _ = (&Snapshot{view: v}).WriteTo(h) // a hash does not fail
	return [sha256.Size]byte(h.Sum(nil))
}

func writeSections(f *frameWriter, v *View) {
	f.record(sectionMeta, metaOf(v))
	writeRecords(f, sectionMembers, mapped(pointers(v.members),
		func(m *cluster.Member) *memberRecord { return (*memberRecord)(m) }))
	writeRecords(f, sectionElections, pointers(v.elections))
	writeRecords(f, sectionKeys, v.keys.after(""))
	// A change that is the present state of its key is written without its value, and an item that was replaced only if
	// its own change is not in the history. So neither the snapshot nor the node that reads it holds a value twice.
	var k keyChange
	writeRecords(f, sectionHistory, mapped(v.history.changes.all, func(c change) *keyChange {
		item, _ := v.Get(c.item.Key)
		k.change, k.current = c, !c.deleted && item.Revision == c.item.Revision
		k.prevKept = c.prev != nil && c.prev.Revision > v.history.floor
		return &k
	}))
	writeRecords(f, sectionIdempotency, v.idempotency.order.all)
	writeRecords(f, sectionIdempotency, v.idempotency.nodeOrder.all)
	// The ownership index follows from keys, roles and nodes, and is not written.
	writeRecords(f, sectionSessions, v.SessionsAfter(""))
	writeRecords(f, sectionRoles, v.RolesAfter(""))
	writeRecords(f, sectionRoleLog, mapped(v.roleChanges.changes.all, func(c change) *Item { return c.item }))
	writeRecords(f, sectionAppNodes, v.AppNodesAfter(""))
	writeRecords(f, sectionNodeLog, mapped(v.nodeChanges.changes.all, func(c change) *change { return &c }))
	writeRecords(f, sectionAudit, v.AuditAfter(0))
	writeRecords(f, sectionProducers, pointers(v.audit.producers))
	writeRecords(f, sectionSenders, v.senders.records)
	f.record(sectionEnd, endRecord{})
	f.flush()
}

// writeRecords writes one section. It stops at the first write error.
func writeRecords[R record](f *frameWriter, s section, all iter.Seq[R]) {
	for r := range all {
		if !f.record(s, r) {
			return
		}
	}
}

// pointers yields a pointer to each element.
func pointers[T any](list []T) iter.Seq[*T] {
	return func(yield func(*T) bool) {
		for i := range list {
			if !yield(&list[i]) {
				return
			}
		}
	}
}

func mapped[T, R any](all iter.Seq[T], as func(T) R) iter.Seq[R] {
	return func(yield func(R) bool) {
		for v := range all {
			if !yield(as(v)) {
				return
			}
		}
	}
}

// endRecord is the one record of sectionEnd.
type endRecord struct{}

func (endRecord) fields(*codec) {}

// meta is the record of the first section.
type meta struct {
	view View // only the fields that are in no other section
	counts
}

// counts is the content of a snapshot by number.
type counts struct {
	records  [sectionLast + 1]uint64 // by section; elections are not counted
	keyBytes uint64
}

func metaOf(v *View) *meta {
	rings := &v.audit.rings
	return &meta{view: *v, counts: counts{keyBytes: uint64(v.bytes), records: [...]uint64{
		sectionMembers: uint64(len(v.members)), sectionKeys: uint64(v.keys.len()),
		sectionHistory:     uint64(v.history.changes.len()),
		sectionIdempotency: uint64(v.idempotency.len()),
		sectionSessions:    uint64(v.sessions.len()), sectionRoles: uint64(v.roles.len()),
		sectionRoleLog:  uint64(v.roleChanges.changes.len()),
		sectionAppNodes: uint64(v.appNodes.len()), sectionNodeLog: uint64(v.nodeChanges.changes.len()),
		sectionAudit:     uint64(rings[AuditClients].records.len() + rings[AuditOperators].records.len()),
		sectionProducers: uint64(len(v.audit.producers)), sectionSenders: v.senders.countRecords(),
	}}}
}
