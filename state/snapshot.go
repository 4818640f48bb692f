package state

import (
	"crypto/sha256"
	"fmt"
	"io"

	"northstar/cluster"
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
	if err := writeSections(f, c.view); err != nil {
		return f.n, fmt.Errorf("write snapshot: %w", err)
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

func writeSections(f *frameWriter, v *View) error {
	if err := f.record(sectionMeta, func(e *encoder) { encodeMeta(e, v) }); err != nil {
		return err
	}
	for i := range v.members {
		if err := f.record(sectionMembers, (*memberRecord)(&v.members[i]).encode); err != nil {
			return err
		}
	}
	for i := range v.elections {
		if err := f.record(sectionElections, v.elections[i].encode); err != nil {
			return err
		}
	}
	it := v.keys.Root().Iterator()
	for _, item, ok := it.Next(); ok; _, item, ok = it.Next() {
		if err := f.record(sectionKeys, item.encode); err != nil {
			return err
		}
	}
	for c := range v.history.changes.all {
		if err := f.record(sectionHistory, func(e *encoder) { c.encode(e, v) }); err != nil {
			return err
		}
	}
	for entry := range v.idempotency.order.all {
		if err := f.record(sectionIdempotency, entry.encode); err != nil {
			return err
		}
	}
	if err := writeRoleSections(f, v); err != nil {
		return err
	}
	err := f.record(sectionEnd, func(*encoder) {})
	f.flush()
	if err != nil {
		return err
	}
	return f.err
}

// writeRoleSections writes sessions, roles and what happened to the roles. What
// the sessions hold follows from these.
func writeRoleSections(f *frameWriter, v *View) error {
	for s := range v.SessionsAfter("") {
		if err := f.record(sectionSessions, s.encode); err != nil {
			return err
		}
	}
	for r := range v.RolesAfter("") {
		if err := f.record(sectionRoles, r.encode); err != nil {
			return err
		}
	}
	for c := range v.roleChanges.changes.all {
		if err := f.record(sectionRoleLog, c.item.encode); err != nil {
			return err
		}
	}
	return writeNodeSections(f, v)
}

// writeNodeSections writes the application nodes and what happened to them.
func writeNodeSections(f *frameWriter, v *View) error {
	for n := range v.AppNodesAfter("") {
		if err := f.record(sectionAppNodes, n.encode); err != nil {
			return err
		}
	}
	for c := range v.nodeChanges.changes.all {
		err := f.record(sectionNodeLog, func(e *encoder) {
			c.item.encode(e)
			e.boolOpt(fieldDeleted, c.deleted)
		})
		if err != nil {
			return err
		}
	}
	return writeAuditSections(f, v)
}

func writeAuditSections(f *frameWriter, v *View) error {
	for r := range v.AuditAfter(0) {
		if err := f.record(sectionAudit, r.encode); err != nil {
			return err
		}
	}
	for i := range v.audit.producers {
		if err := f.record(sectionProducers, v.audit.producers[i].encode); err != nil {
			return err
		}
	}
	return nil
}

// meta is what the first section says of the others.
type meta struct {
	view            View // without keys, history, members, elections
	keys            uint64
	keyBytes        uint64
	changes         uint64
	idempotencyKeys uint64
	members         uint64

	sessions, roles, roleChanges uint64
	appNodes, nodeChanges        uint64
	audit, producers             uint64
}

func encodeMeta(e *encoder, v *View) {
	e.stringOpt(1, v.clusterID)
	e.uintOpt(2, v.generation.Number)
	e.stringOpt(3, v.generation.RecoveryID)
	e.uintOpt(4, v.revision)
	e.uintOpt(5, v.index)
	e.uintOpt(6, v.term)
	e.uintOpt(7, uint64(v.now))
	e.uintOpt(8, v.epoch)
	e.uintOpt(9, uint64(v.version))
	e.uintOpt(10, v.history.floor)
	e.boolOpt(11, v.settings.AutoFailover)
	e.uintOpt(12, uint64(v.settings.PausedUntil))
	e.uintOpt(13, uint64(v.keys.Len()))
	e.uintOpt(14, uint64(v.bytes))
	e.uintOpt(15, uint64(v.history.changes.len()))
	e.uintOpt(16, uint64(v.idempotency.order.len()))
	e.uintOpt(17, uint64(len(v.members)))
	e.stringOpt(18, v.settings.Reason)
	e.stringOpt(19, v.settings.Operator)
	e.uintOpt(30, uint64(v.sessions.Len()))
	e.uintOpt(31, uint64(v.roles.Len()))
	e.uintOpt(32, uint64(v.roleChanges.changes.len()))
	e.uintOpt(33, v.roleChanges.floor)
	e.uintOpt(34, uint64(v.appNodes.Len()))
	e.uintOpt(35, uint64(v.nodeChanges.changes.len()))
	e.uintOpt(36, v.nodeChanges.floor)
	e.uintOpt(37, v.audit.seq)
	e.uintOpt(38, v.audit.lost)
	e.uintOpt(39, v.audit.rings[AuditClients].dropped)
	e.uintOpt(40, v.audit.rings[AuditOperators].dropped)
	e.uintOpt(41, uint64(v.audit.rings[AuditClients].records.len()+v.audit.rings[AuditOperators].records.len()))
	e.uintOpt(42, uint64(len(v.audit.producers)))
	e.uintOpt(43, uint64(v.clusterLockDelay))
}

func (m *meta) decode(f field) error {
	v := &m.view
	switch f.num {
	case 1:
		return setString(f, &v.clusterID)
	case 2:
		return setUint(f, &v.generation.Number)
	case 3:
		return setString(f, &v.generation.RecoveryID)
	case 4:
		return setUint(f, &v.revision)
	case 5:
		return setUint(f, &v.index)
	case 6:
		return setUint(f, &v.term)
	case 7:
		return setUint(f, &v.now)
	case 8:
		return setUint(f, &v.epoch)
	case 9:
		return setUint(f, &v.version)
	case 10:
		return setUint(f, &v.history.floor)
	case 11:
		return setBool(f, &v.settings.AutoFailover)
	case 12:
		return setUint(f, &v.settings.PausedUntil)
	case 13:
		return setUint(f, &m.keys)
	case 14:
		return setUint(f, &m.keyBytes)
	case 15:
		return setUint(f, &m.changes)
	case 16:
		return setUint(f, &m.idempotencyKeys)
	case 17:
		return setUint(f, &m.members)
	case 18:
		return setString(f, &v.settings.Reason)
	case 19:
		return setString(f, &v.settings.Operator)
	case 30:
		return setUint(f, &m.sessions)
	case 31:
		return setUint(f, &m.roles)
	case 32:
		return setUint(f, &m.roleChanges)
	case 33:
		return setUint(f, &v.roleChanges.floor)
	case 34:
		return setUint(f, &m.appNodes)
	case 35:
		return setUint(f, &m.nodeChanges)
	case 36:
		return setUint(f, &v.nodeChanges.floor)
	}
	return m.decodeAudit(f)
}

func (m *meta) decodeAudit(f field) error {
	v := &m.view
	switch f.num {
	case 37:
		return setUint(f, &v.audit.seq)
	case 38:
		return setUint(f, &v.audit.lost)
	case 39:
		return setUint(f, &v.audit.rings[AuditClients].dropped)
	case 40:
		return setUint(f, &v.audit.rings[AuditOperators].dropped)
	case 41:
		return setUint(f, &m.audit)
	case 42:
		return setUint(f, &m.producers)
	case 43:
		return setUint(f, &v.clusterLockDelay)
	}
	return nil
}

func (it *Item) encode(e *encoder) {
	e.string(1, it.Key)
	e.bytesOpt(2, it.Value)
	e.uint(3, it.Revision)
	e.uintOpt(4, it.CreateRevision)
	e.uintOpt(5, it.Version)
	e.stringOpt(6, it.Session)
}

func (it *Item) decode(f field) error {
	switch f.num {
	case 1:
		return setString(f, &it.Key)
	case 2:
		return setBytes(f, &it.Value)
	case 3:
		return setUint(f, &it.Revision)
	case 4:
		return setUint(f, &it.CreateRevision)
	case 5:
		return setUint(f, &it.Version)
	case 6:
		return setString(f, &it.Session)
	}
	return nil
}

// How a record of history tells what it is, beside the fields of an Item.
const (
	fieldDeleted = 16
	fieldCurrent = 17 // the value is that of the key, in sectionKeys
)

// encode leaves out the value of a change that is its key's present state, so
// that neither the snapshot nor the node that reads it holds the value twice.
func (c change) encode(e *encoder, v *View) {
	current, _ := v.keys.Get([]byte(c.item.Key))
	if current != nil && current.Revision == c.item.Revision {
		e.string(1, c.item.Key)
		e.uint(3, c.item.Revision)
		e.uint(fieldCurrent, 1)
		return
	}
	c.item.encode(e)
	e.boolOpt(fieldDeleted, c.deleted)
}

func (en *idempotencyEntry) encode(e *encoder) {
	e.string(1, en.key)
	e.bytesOpt(2, en.requestHash)
	e.uintOpt(3, uint64(en.at))
	e.uintOpt(4, en.result.Revision)
	e.boolOpt(5, en.result.Created)
	if err := en.result.Err; err != nil {
		e.record(6, func(e *encoder) { encodeError(e, err) })
	}
}

func (en *idempotencyEntry) decode(f field) error {
	switch f.num {
	case 1:
		return setString(f, &en.key)
	case 2:
		return setBytes(f, &en.requestHash)
	case 3:
		return setUint(f, &en.at)
	case 4:
		return setUint(f, &en.result.Revision)
	case 5:
		return setBool(f, &en.result.Created)
	case 6:
		en.result.Err = new(cluster.Error)
		return eachField(f.raw, func(f field) error { return decodeError(en.result.Err, f) })
	}
	return nil
}

func encodeError(e *encoder, err *cluster.Error) {
	e.uint(1, uint64(err.Code))
	e.stringOpt(2, err.Detail)
	e.uintOpt(3, uint64(err.Status))
	e.boolOpt(4, err.NoRetry)
	e.uintOpt(5, uint64(err.RetryAfter))
	e.uintOpt(6, err.Revision)
}

func decodeError(err *cluster.Error, f field) error {
	switch f.num {
	case 1:
		return setUint(f, &err.Code)
	case 2:
		return setString(f, &err.Detail)
	case 3:
		return setUint(f, &err.Status)
	case 4:
		return setBool(f, &err.NoRetry)
	case 5:
		return setUint(f, &err.RetryAfter)
	case 6:
		return setUint(f, &err.Revision)
	}
	return nil
}
