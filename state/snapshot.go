package state

import (
	"crypto/sha256"
	"fmt"
	"io"
)

// Snapshot is the state at one moment, to be written out while the State goes
// on. It may be used by any goroutine.
type Snapshot struct {
	view *View
}

// Snapshot takes a snapshot of what has been applied. It costs nothing.
func (s *State) Snapshot() *Snapshot { return &Snapshot{view: s.view.Load()} }

// View is the captured state.
func (c *Snapshot) View() *View { return c.view }

// WriteTo writes the snapshot. Beside the state itself it needs little more than
// one value's memory. Equal states give equal bytes.
func (c *Snapshot) WriteTo(w io.Writer) (int64, error) {
	f := newFrameWriter(w)
	writeSections(f, c.view)
	if f.err != nil {
		return f.n, fmt.Errorf("write snapshot: %w", f.err)
	}
	return f.n, nil
}

// RequestHash is a digest of the whole state: views of nodes that applied the
// same log up to the same index, with the same Options, have the same. It takes
// as long as writing a snapshot.
func (v *View) Fingerprint() [sha256.Size]byte {
	h := sha256.New()
	_, _ = (&Snapshot{view: v}).WriteTo(h) // a hash does not fail
	return [sha256.Size]byte(h.Sum(nil))
}

func writeSections(f *frameWriter, v *View) {
	f.record(sectionMeta, metaOf(v))
	for i := range v.members {
		f.record(sectionMembers, (*memberRecord)(&v.members[i]))
	}
	for i := range v.elections {
		f.record(sectionElections, &v.elections[i])
	}
	for item := range values(v.keys.Root()) {
		f.record(sectionKeys, item)
	}
	// A change that is its key's present state is written without its value, so that
	// neither the snapshot nor the node that reads it holds the value twice.
	var k keyChange
	for k.change = range v.history.changes.all {
		item, _ := v.keys.Get([]byte(k.item.Key))
		k.current = item != nil && item.Revision == k.item.Revision
		f.record(sectionHistory, &k)
	}
	for entry := range v.idempotency.order.all {
		f.record(sectionIdempotency, entry)
	}
	// What the sessions own follows from keys, roles and nodes, and is not written.
	for s := range v.SessionsAfter("") {
		f.record(sectionSessions, s)
	}
	for r := range v.RolesAfter("") {
		f.record(sectionRoles, r)
	}
	for c := range v.roleChanges.changes.all {
		f.record(sectionRoleLog, c.item)
	}
	for n := range v.AppNodesAfter("") {
		f.record(sectionAppNodes, n)
	}
	var n change
	for n = range v.nodeChanges.changes.all {
		f.record(sectionNodeLog, &n)
	}
	for r := range v.AuditAfter(0) {
		f.record(sectionAudit, r)
	}
	for i := range v.audit.producers {
		f.record(sectionProducers, &v.audit.producers[i])
	}
	f.record(sectionEnd, endRecord{})
	f.flush()
}

// endRecord is the one record of sectionEnd.
type endRecord struct{}

func (endRecord) fields(*codec) {}

// meta is the record of the first section.
type meta struct {
	view View // without keys, history, members, elections
	counts
}

// counts says how much a snapshot holds. Elections are not counted.
type counts struct {
	keys, keyBytes, changes, idem, members uint64
	sessions, roles, roleChanges           uint64
	appNodes, nodeChanges                  uint64
	audit, sources                         uint64
}

func metaOf(v *View) *meta {
	rings := &v.audit.rings
	return &meta{view: *v, counts: counts{
		keys: uint64(v.keys.Len()), keyBytes: uint64(v.bytes), changes: uint64(v.history.changes.len()),
		idem: uint64(v.idempotency.order.len()), members: uint64(len(v.members)),
		sessions: uint64(v.sessions.Len()), roles: uint64(v.roles.Len()), roleChanges: uint64(v.roleChanges.changes.len()),
		appNodes: uint64(v.appNodes.Len()), nodeChanges: uint64(v.nodeChanges.changes.len()),
		audit: uint64(rings[AuditClients].records.len() + rings[AuditOperators].records.len()), sources: uint64(len(v.audit.producers)),
	}}
}
