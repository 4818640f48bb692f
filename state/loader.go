package state

import (
	"io"
	"math"
	"slices"
	"strings"

	iradix "github.com/hashicorp/go-immutable-radix/v2"

	"northstar/cluster"
)

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
	discard     bool // check only: nothing is kept that is not small
	codec       codec
	meta        meta
	metaRead    bool
	keys        *iradix.Txn[*Item]
	idempotency *iradix.Txn[*idempotencyEntry]
	sessions    *iradix.Txn[*Session]
	roles       *iradix.Txn[*Role]
	appNodes    *iradix.Txn[*AppNode]

	got   counts                       // what was read so far
	names [sectionProducers + 1]string // of the last record of a section
	revs  [sectionProducers + 1]uint64 // revision, or place, of the last record of a section
}

func newLoader(keep Options) *loader {
	return &loader{
		options: keep, codec: codec{decoding: true}, keys: iradix.New[*Item]().Txn(), idempotency: iradix.New[*idempotencyEntry]().Txn(),
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
	if !l.metaRead {
		return f.n, damaged("snapshot has no first section")
	}
	if l.got != l.meta.counts {
		return f.n, damaged("snapshot incomplete: it holds %+v, its first section says %+v", l.got, l.meta.counts)
	}
	return f.n, nil
}

// add takes one record of a snapshot.
func (l *loader) add(s section, raw []byte) error {
	if s == sectionMeta {
		return l.addMeta(raw)
	}
	if !l.metaRead {
		return damaged("section %d comes first", s)
	}
	if int(s) < len(adders) && adders[s] != nil {
		return adders[s](l, raw)
	}
	if s == sectionEnd {
		return nil
	}
	return damaged("section %d is not known", s)
}

// adders take the records of each section but the first and the last.
var adders = [...]func(*loader, []byte) error{
	sectionMembers:     adder((*loader).addMember),
	sectionElections:   adder((*loader).addElection),
	sectionKeys:        adder((*loader).addKey),
	sectionHistory:     adder((*loader).addChange),
	sectionIdempotency: adder((*loader).addIdempotency),
	sectionSessions:    adder((*loader).addSession),
	sectionRoles:       adder((*loader).addRole),
	sectionRoleLog:     adder((*loader).addRoleChange),
	sectionAppNodes:    adder((*loader).addAppNode),
	sectionNodeLog:     adder((*loader).addNodeChange),
	sectionAudit:       adder((*loader).addAudit),
	sectionProducers:   adder((*loader).addSource),
}

// adder decodes a record and calls add with it.
func adder[T any, P recordPointer[T]](add func(*loader, P) error) func(*loader, []byte) error {
	return func(l *loader, raw []byte) error {
		v := P(new(T))
		if err := l.codec.decode(raw, v); err != nil {
			return err
		}
		return add(l, v)
	}
}

// named reports whether a name is greater than that of the record before.
func (l *loader) named(s section, name string) bool {
	ok := name > l.names[s]
	l.names[s] = name
	return ok
}

// numbered reports whether a number is greater than that of the record before, and not
// greater than limit.
func (l *loader) numbered(s section, n, limit uint64) bool {
	ok := n > l.revs[s] && n <= limit
	l.revs[s] = n
	return ok
}

// insert adds a record to a tree, and counts it.
func insert[T any](l *loader, to *iradix.Txn[T], key string, v T, count *uint64, limit uint64) error {
	if *count++; *count > limit {
		return damaged("more than %d records of a kind", limit)
	}
	if !l.discard {
		to.Insert([]byte(key), v)
	}
	return nil
}

func (l *loader) addMeta(raw []byte) error {
	if l.metaRead {
		return damaged("two first sections")
	}
	l.metaRead = true
	if err := l.codec.decode(raw, &l.meta); err != nil {
		return err
	}
	v := &l.meta.view
	switch {
	case v.version > CommandVersion:
		return &UnknownCommandError{Version: v.version}
	case v.clusterLockDelay < 0 || v.clusterLockDelay > MaxSessionTTL:
		return damaged("roles wait for %v", v.clusterLockDelay)
	case max(v.history.floor, v.roleChanges.floor, v.nodeChanges.floor) > v.revision || v.revision >= maxRevision:
		return damaged("revision %d is out of bounds", v.revision)
	}
	v.bytes = int64(l.meta.keyBytes)
	l.revs[sectionHistory], l.revs[sectionRoleLog], l.revs[sectionNodeLog] = v.history.floor, v.roleChanges.floor, v.nodeChanges.floor
	return nil
}

func (l *loader) addMember(m *memberRecord) error {
	v := &l.meta.view
	if n := len(v.members); n >= MaxMembers || n > 0 && v.members[n-1].ID >= m.ID {
		return damaged("member %q is out of order, or one too many", m.ID)
	}
	v.members = append(v.members, cluster.Member(*m))
	l.got.members++
	return nil
}

func (l *loader) addElection(e *Election) error {
	v := &l.meta.view
	if len(v.elections) >= MaxElections {
		return damaged("more than %d elections", MaxElections)
	}
	v.elections = append(v.elections, *e)
	return nil
}

func (l *loader) addKey(it *Item) error {
	if err := CheckKey(it.Key); err != nil {
		return damaged("%s", err.Detail)
	}
	if !l.named(sectionKeys, it.Key) || it.Revision == 0 || it.Revision > l.meta.view.revision || len(it.Value) > MaxValue {
		return damaged("key %q is out of order or out of bounds", it.Key)
	}
	l.got.keyBytes += uint64(it.size())
	return insert(l, l.keys, it.Key, it, &l.got.keys, math.MaxUint64)
}

func (l *loader) addChange(c *keyChange) error {
	if err := CheckKey(c.item.Key); err != nil {
		return damaged("%s", err.Detail)
	}
	if len(c.item.Value) > MaxValue {
		return damaged("change of revision %d is out of bounds", c.item.Revision)
	}
	if c.current && !l.discard {
		it, ok := l.keys.Get([]byte(c.item.Key))
		if !ok || it.Revision != c.item.Revision {
			return damaged("change of revision %d names a key that does not have it", c.item.Revision)
		}
		c.item = it
	}
	return l.addToHistory(sectionHistory, c.change, &l.meta.view.history, &l.got.changes)
}

func (l *loader) addRoleChange(it *Item) error {
	if _, err := DecodeRoleEvent(it.Value); err != nil {
		return err
	}
	return l.addToHistory(sectionRoleLog, change{item: it}, &l.meta.view.roleChanges, &l.got.roleChanges)
}

func (l *loader) addNodeChange(c *change) error {
	if _, err := DecodeAppNode(c.item.Value); err != nil {
		return err
	}
	return l.addToHistory(sectionNodeLog, *c, &l.meta.view.nodeChanges, &l.got.nodeChanges)
}

func (l *loader) addToHistory(s section, c change, to *history, count *uint64) error {
	if rev := c.item.Revision; !l.numbered(s, rev, l.meta.view.revision) || len(c.item.Key) > MaxKey {
		return damaged("change of revision %d in section %d is out of order or out of bounds", rev, s)
	}
	*count++
	if !l.discard {
		to.push(c, l.options)
	}
	return nil
}

func (l *loader) addIdempotency(e *idempotencyEntry) error {
	if l.got.idem++; l.got.idem > maxIdempotencyKeys {
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

func (l *loader) addSession(s *Session) error {
	if CheckSession("session", s.ID) != nil || !l.named(sectionSessions, s.ID) || s.TTL < MinSessionTTL || s.TTL > MaxSessionTTL || strings.Contains(s.ID, "\x00") {
		return damaged("session %q is out of order or out of bounds", s.ID)
	}
	return insert(l, l.sessions, s.ID, s, &l.got.sessions, MaxSessions)
}

func (l *loader) addRole(r *Role) error {
	last := uint64(0)
	grows := true
	for _, t := range append(slices.Clone(r.History), r.Current) {
		grows = grows && (t.Token > last || t.Token == 0 && t.Session == "")
		last = max(last, t.Token)
	}
	switch {
	case CheckRole(r.Name) != nil, !l.named(sectionRoles, r.Name), len(r.Queue) > MaxCandidates, len(r.History) > MaxTenures:
		return damaged("role %q is out of order or out of bounds", r.Name)
	case !grows, r.StateRevision < last, r.StateRevision > l.meta.view.revision:
		return damaged("role %q has tokens out of order or out of bounds", r.Name)
	case r.RevokedFrom != "" && (r.Held() || len(r.History) == 0):
		return damaged("role %q is held, or was never, and waits for who held it before", r.Name)
	case r.LockDelay < 0 || r.LockDelay > MaxSessionTTL || r.LockDelay > 0 && (r.Held() || r.RevokedFrom != "" || r.TakeoverPending):
		return damaged("role %q is held, or waits for somebody else, and waits %v for who may hold it", r.Name, r.LockDelay)
	}
	return insert(l, l.roles, r.Name, r, &l.got.roles, MaxRoles)
}

func (l *loader) addAppNode(n *AppNode) error {
	if CheckAppNode(n.ID) != nil || !l.named(sectionAppNodes, n.ID) || n.Revision > l.meta.view.revision || (n.Session == "") != (n.Status == AppDead) {
		return damaged("application node %q is out of order or out of bounds", n.ID)
	}
	return insert(l, l.appNodes, n.ID, n, &l.got.appNodes, MaxAppNodes)
}

func (l *loader) addAudit(r *AuditRecord) error {
	log := &l.meta.view.audit
	if r.check() != nil || !l.numbered(sectionAudit, r.Seq, log.seq) {
		return damaged("audit record %d is out of order or out of bounds", r.Seq)
	}
	if l.got.audit++; l.got.audit > auditClasses*MaxAuditRecords {
		return damaged("more than %d audit records", auditClasses*MaxAuditRecords)
	}
	if !l.discard {
		log.add(r) // the limits that the writer applied are not applied again
	}
	return nil
}

func (l *loader) addSource(s *auditProducer) error {
	v := &l.meta.view
	if n := len(v.audit.producers); n >= maxAuditProducers || n > 0 && v.audit.producers[n-1].name >= s.name {
		return damaged("audit source %q is out of order, or one too many", s.name)
	}
	v.audit.producers = append(v.audit.producers, *s)
	l.got.sources++
	return nil
}
