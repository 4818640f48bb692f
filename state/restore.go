package state

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"slices"

	iradix "github.com/hashicorp/go-immutable-radix/v2"

	"northstar/cluster"
)

// restoreRevisionGap is how far a restore moves the revision on. It is far more than the
// number of writes that can be on their way: on some node one of those may still
// be applied, and seen, just before the restored state replaces its effect, and
// no watcher may take up from such a revision as if nothing had happened.
const restoreRevisionGap = 1 << 20

// ReadFrom replaces the state by a snapshot, of which it returns the size. On
// any error nothing has changed. A snapshot that is cut short, altered or
// followed by more bytes wraps ErrDamaged; one that needs a newer build is an
// *UnknownCommandError. Until the end both states are in memory.
func (s *State) ReadFrom(r io.Reader) (int64, error) {
	v, n, err := load(r, s.options)
	if err != nil {
		return n, fmt.Errorf("read snapshot: %w", err)
	}
	s.view.Store(v)
	s.feed.replaced(v)
	s.roles.replaced(v)
	s.nodes.replaced(v)
	return n, nil
}

// Info describes a snapshot.
type Info struct {
	ClusterID       string             `json:"cluster_id"`
	Generation      cluster.Generation `json:"generation"`
	CommandVersion  uint32             `json:"command_version"` // that a build must read to use it
	Revision        uint64             `json:"revision"`
	AppliedIndex    uint64             `json:"applied_index"`
	AppliedTerm     uint64             `json:"applied_term"`
	RestoreEpoch    uint64             `json:"restore_epoch"`
	Keys            int                `json:"keys"`
	Bytes           int64              `json:"bytes"`            // of keys and values
	Changes         int                `json:"history_changes"`  // that watchers can still get
	IdempotencyKeys int                `json:"idempotency_keys"` // that are remembered
	Members         []cluster.Member   `json:"members"`
	Size            int64              `json:"size_bytes"` // of the snapshot
	SHA256          string             `json:"sha256"`     // of the snapshot, as sha256sum prints it
}

// Inspect reads and checks a whole snapshot without keeping it in memory. Its
// errors are those of State.ReadFrom, but for content that contradicts itself
// across sections under correct checksums, which only ReadFrom finds.
func Inspect(r io.Reader) (Info, error) {
	h := sha256.New()
	l := newLoader(Options{HistoryRevisions: 1, HistoryBytes: 1})
	l.discard = true
	n, err := l.read(io.TeeReader(r, h))
	if err != nil {
		return Info{}, fmt.Errorf("inspect snapshot: %w", err)
	}
	v := &l.meta.view
	return Info{
		ClusterID: v.clusterID, Generation: v.generation, CommandVersion: v.version, Revision: v.revision,
		AppliedIndex: v.index, AppliedTerm: v.term, RestoreEpoch: v.epoch,
		Keys: int(l.meta.keys), Bytes: int64(l.meta.keyBytes), Changes: int(l.meta.changes), IdempotencyKeys: int(l.meta.idempotencyKeys),
		Members: slices.Clone(v.members), Size: n, SHA256: hex.EncodeToString(h.Sum(nil)),
	}, nil
}

// Backup is a snapshot that was read and checked, to be restored.
type Backup struct{ view *View }

// ReadBackup reads and checks a whole backup, into memory. It touches no state,
// and may be called by any goroutine. Errors are those of State.ReadFrom; a
// revision too high to go on from is damage too.
func ReadBackup(r io.Reader) (*Backup, error) {
	v, _, err := load(r, Options{HistoryRevisions: 1, HistoryBytes: 1})
	if err == nil && v.revision >= maxRevision/2 {
		err = damaged("revision %d leaves no room to go on from", v.revision)
	}
	if err != nil {
		return nil, fmt.Errorf("read backup: %w", err)
	}
	return &Backup{view: v}, nil
}

// MergeBackup makes the state that restoring a backup gives: keys and settings
// are the backup's, everything else is current's. All sessions end, roles are
// vacated, and keys tied to a session are left out. The backup may be of another
// cluster. Keys keep the revisions that they have in the backup; the state's own
// revision goes beyond both, so that it never goes back. History is empty and
// the restore epoch is one higher, which ends all watches. Writes applied
// between the capture and the moment when the result replaces the state are
// lost: the caller holds writes back. Roles wait for who may still believe to hold
// them (Role.Await). It fails for a backup, or a result, that some member of current
// could not read.
func MergeBackup(current *Snapshot, backup *Backup) (*Snapshot, error) {
	v, from := *current.view, backup.view
	if from.version > v.MinSupportedVersion(v.present()) {
		return nil, fmt.Errorf("the backup needs command version %d, which not every member reads yet", from.version)
	}
	v.keys, v.bytes = withoutSessionKeys(from)
	v.settings = from.settings
	v.revision = max(v.revision, from.revision) + restoreRevisionGap
	v.version = max(v.version, from.version)
	v.history = history{floor: v.revision}
	v.endSessions(CauseRestored, v.holderTTL)
	if from.clusterID != v.clusterID || from.revision > current.view.revision {
		v.delayRolesOf(from)
	}
	if err := v.checkLockDelays(); err != nil {
		return nil, err
	}
	v.epoch++
	return &Snapshot{view: &v}, nil
}

func load(r io.Reader, keep Options) (*View, int64, error) {
	l := newLoader(keep)
	n, err := l.read(r)
	if err != nil {
		return nil, n, err
	}
	v := l.meta.view
	v.keys = l.keys.CommitOnly()
	v.idempotency.byKey = l.idempotency.CommitOnly()
	v.sessions, v.roles, v.appNodes = l.sessions.CommitOnly(), l.roles.CommitOnly(), l.appNodes.CommitOnly()
	if v.ownership, err = ownershipOf(&v); err != nil {
		return nil, n, err
	}
	return &v, n, nil
}

// loader builds a View from the records of a snapshot.
type loader struct {
	options     Options
	discard     bool // check only: keys, history and idempotency keys are not kept
	meta        meta
	metaRead    bool
	keys        *iradix.Txn[*Item]
	idempotency *iradix.Txn[*idempotencyEntry]
	sessions    *iradix.Txn[*Session]
	roles       *iradix.Txn[*Role]
	appNodes    *iradix.Txn[*AppNode]
	counts      meta // what was read so far
	lastKey     string
	lastRev     uint64

	lastSession, lastRole string
	lastRoleRev           uint64
	lastNode              string
	lastNodeRev           uint64
	lastAudit             uint64
}

func newLoader(keep Options) *loader {
	return &loader{
		options: keep, keys: iradix.New[*Item]().Txn(), idempotency: iradix.New[*idempotencyEntry]().Txn(),
		sessions: iradix.New[*Session]().Txn(), roles: iradix.New[*Role]().Txn(), appNodes: iradix.New[*AppNode]().Txn(),
	}
}

func (l *loader) read(r io.Reader) (int64, error) {
	f := newFrameReader(r)
	if err := f.start(); err != nil {
		return f.n, err
	}
	for f.section != sectionEnd {
		if err := f.next(); err != nil {
			return f.n, err
		}
		if err := f.records(l.add); err != nil {
			return f.n, err
		}
	}
	if err := f.end(); err != nil {
		return f.n, err
	}
	return f.n, l.complete()
}

// complete checks that all that the first section announced has come.
func (l *loader) complete() error {
	got, want := l.counts, l.meta
	switch {
	case !l.metaRead:
		return damaged("snapshot has no first section")
	case got.keys != want.keys || got.keyBytes != want.keyBytes || got.changes != want.changes || got.idempotencyKeys != want.idempotencyKeys || got.members != want.members:
		return damaged("snapshot does not hold what it says: %d keys of %d, %d changes of %d", got.keys, want.keys, got.changes, want.changes)
	case got.sessions != want.sessions || got.roles != want.roles || got.roleChanges != want.roleChanges:
		return damaged("snapshot does not hold what it says: %d sessions of %d, %d roles of %d", got.sessions, want.sessions, got.roles, want.roles)
	case got.appNodes != want.appNodes || got.nodeChanges != want.nodeChanges:
		return damaged("snapshot does not hold what it says: %d application nodes of %d", got.appNodes, want.appNodes)
	case got.audit != want.audit || got.producers != want.producers:
		return damaged("snapshot does not hold what it says: %d audit records of %d", got.audit, want.audit)
	}
	return nil
}

func (l *loader) add(s section, rec []byte) error {
	if s == sectionMeta {
		return l.addMeta(rec)
	}
	if !l.metaRead {
		return damaged("section %d comes first", s)
	}
	switch s {
	case sectionMembers:
		return l.addMember(rec)
	case sectionElections:
		return l.addElection(rec)
	case sectionKeys:
		return l.addKey(rec)
	case sectionHistory:
		return l.addChange(rec)
	case sectionIdempotency:
		return l.addIdempotency(rec)
	case sectionSessions:
		return l.addSession(rec)
	case sectionRoles:
		return l.addRole(rec)
	case sectionRoleLog:
		return l.addRoleChange(rec)
	case sectionAppNodes:
		return l.addAppNode(rec)
	case sectionNodeLog:
		return l.addNodeChange(rec)
	case sectionAudit:
		return l.addAudit(rec)
	case sectionProducers:
		return l.addProducer(rec)
	case sectionEnd:
		return nil
	}
	return damaged("section %d is not known", s)
}

func (l *loader) addMeta(rec []byte) error {
	if l.metaRead {
		return damaged("two first sections")
	}
	l.metaRead = true
	if err := eachField(rec, l.meta.decode); err != nil {
		return err
	}
	v := &l.meta.view
	if v.version > CommandVersion {
		return &UnknownCommandError{Version: v.version}
	}
	if v.clusterLockDelay < 0 || v.clusterLockDelay > MaxSessionTTL {
		return damaged("roles wait for %v", v.clusterLockDelay)
	}
	if v.history.floor > v.revision || v.roleChanges.floor > v.revision || v.nodeChanges.floor > v.revision || v.revision >= maxRevision {
		return damaged("revision %d is out of bounds", v.revision)
	}
	v.bytes = int64(l.meta.keyBytes)
	l.lastRev, l.lastRoleRev, l.lastNodeRev = v.history.floor, v.roleChanges.floor, v.nodeChanges.floor
	return nil
}

func (l *loader) addAudit(rec []byte) error {
	r := new(AuditRecord)
	if err := eachField(rec, r.decode); err != nil {
		return err
	}
	log := &l.meta.view.audit
	if r.check() != nil || r.Seq <= l.lastAudit || r.Seq > log.seq {
		return damaged("audit record %d is out of order or out of bounds", r.Seq)
	}
	l.lastAudit = r.Seq
	if l.counts.audit++; l.counts.audit > auditClasses*MaxAuditRecords {
		return damaged("more than %d audit records", auditClasses*MaxAuditRecords)
	}
	if !l.discard {
		log.add(r) // nothing is dropped now that was kept then
	}
	return nil
}

func (l *loader) addProducer(rec []byte) error {
	var s auditProducer
	if err := eachField(rec, s.decode); err != nil {
		return err
	}
	v := &l.meta.view
	if n := len(v.audit.producers); n >= maxAuditProducers || n > 0 && v.audit.producers[n-1].name >= s.name {
		return damaged("audit source %q is out of order, or one too many", s.name)
	}
	v.audit.producers = append(v.audit.producers, s)
	l.counts.producers++
	return nil
}

func (l *loader) addMember(rec []byte) error {
	var m cluster.Member
	if err := eachField(rec, (*memberRecord)(&m).decode); err != nil {
		return err
	}
	v := &l.meta.view
	if n := len(v.members); n >= MaxMembers || n > 0 && v.members[n-1].ID >= m.ID {
		return damaged("member %q is out of order, or one too many", m.ID)
	}
	v.members = append(v.members, m)
	l.counts.members++
	return nil
}

func (l *loader) addElection(rec []byte) error {
	var e Election
	if err := eachField(rec, e.decode); err != nil {
		return err
	}
	v := &l.meta.view
	if len(v.elections) >= MaxElections {
		return damaged("more than %d elections", MaxElections)
	}
	v.elections = append(v.elections, e)
	return nil
}

func (l *loader) addKey(rec []byte) error {
	it := new(Item)
	if err := eachField(rec, it.decode); err != nil {
		return err
	}
	if err := CheckKey(it.Key); err != nil {
		return damaged("%s", err.Detail)
	}
	if it.Key <= l.lastKey || it.Revision == 0 || it.Revision > l.meta.view.revision || len(it.Value) > MaxValue {
		return damaged("key %q is out of order or out of bounds", it.Key)
	}
	l.lastKey = it.Key
	l.counts.keys++
	l.counts.keyBytes += uint64(it.size())
	if !l.discard {
		l.keys.Insert([]byte(it.Key), it)
	}
	return nil
}

func (l *loader) addChange(rec []byte) error {
	c := change{item: new(Item)}
	current := false
	err := eachField(rec, func(f field) error {
		switch f.num {
		case fieldDeleted:
			return setBool(f, &c.deleted)
		case fieldCurrent:
			return setBool(f, &current)
		}
		return c.item.decode(f)
	})
	if err != nil {
		return err
	}
	if err := CheckKey(c.item.Key); err != nil {
		return damaged("%s", err.Detail)
	}
	if c.item.Revision <= l.lastRev || c.item.Revision > l.meta.view.revision || len(c.item.Value) > MaxValue {
		return damaged("change of revision %d is out of order or out of bounds", c.item.Revision)
	}
	l.lastRev = c.item.Revision
	l.counts.changes++
	if l.discard {
		return nil
	}
	if current {
		it, ok := l.keys.Get([]byte(c.item.Key))
		if !ok || it.Revision != c.item.Revision {
			return damaged("change of revision %d names a key that does not have it", c.item.Revision)
		}
		c.item = it
	}
	l.meta.view.history.push(c, l.options)
	return nil
}

func (l *loader) addIdempotency(rec []byte) error {
	e := new(idempotencyEntry)
	if err := eachField(rec, e.decode); err != nil {
		return err
	}
	l.counts.idempotencyKeys++
	if l.counts.idempotencyKeys > maxIdempotencyKeys {
		return damaged("more than %d idempotency keys", maxIdempotencyKeys)
	}
	if l.discard {
		return nil
	}
	if _, known := l.idempotency.Insert([]byte(e.key), e); known {
		return damaged("idempotency key %q comes twice", e.key)
	}
	l.meta.view.idempotency.order.push(e, false)
	return nil
}
