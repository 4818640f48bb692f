package state

import (
	"io"
	"math"
	"slices"
	"strings"

	"northstar/cluster"
)

func load(r io.Reader, keep Options) (*View, int64, error) {
	l := newLoader(keep)
	n, err := l.read(r)
	if err != nil {
		return nil, n, err
	}
	v := l.view()
	l.write.commit()
	if v.ownership, err = ownershipOf(v); err != nil {
		return nil, n, err
	}
	v.recount()
	if err := checkLeases(v); err != nil {
		return nil, n, err
	}
	return v, n, nil
}

// loader builds a View from the records of a snapshot.
type loader struct {
	options  Options
	discard  bool // check only: large content is not kept
	codec    codec
	meta     *meta
	metaRead bool
	write    writers

	got     counts                  // records read so far
	sender  *sender                 // the last one
	puts    map[string]*Item        // of the history, by key, unless the key was deleted after it
	names   [sectionLast + 1]string // name of the last record of each section
	numbers [sectionLast + 1]uint64 // revision or sequence number of the last record of each section
}

func newLoader(keep Options) *loader {
	l := &loader{
		options: keep, codec: codec{decoding: true}, meta: &meta{view: *emptyView()}, puts: map[string]*Item{},
	}
	l.meta.view.settings = Settings{}
	l.write = writersOf(l.view())
	return l
}

func (l *loader) view() *View { return &l.meta.view }

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
	l.got.records[sectionElections] = 0
	if l.got != l.meta.counts {
		return f.n, damaged("snapshot incomplete: it holds %+v, its first section says %+v", l.got, l.meta.counts)
	}
	return f.n, nil
}

// add adds one record of a snapshot.
func (l *loader) add(s section, raw []byte) error {
	switch {
	case s == sectionMeta:
		return l.addMeta(raw)
	case !l.metaRead:
		return damaged("section %d comes first", s)
	case s == sectionEnd:
		return nil
	case int(s) >= len(adders) || adders[s].add == nil:
		return damaged("section %d is not known", s)
	}
	if l.got.records[s]++; l.got.records[s] > adders[s].most {
		return damaged("more than %d records in section %d", adders[s].most, s)
	}
	return adders[s].add(l, raw)
}

// adders add the records of each section except the first and the last.
var adders = [...]struct {
	most uint64 // records of the section
	add  func(*loader, []byte) error
}{
	sectionMembers: {MaxMembers, adder((*loader).addMember)},
	sectionElections: {MaxElections, adder(func(l *loader, e *Election) error {
		l.view().elections = append(l.view().elections, *e)
		return nil
	})},
	sectionKeys:        {math.MaxUint64, adder((*loader).addKey)},
	sectionHistory:     {math.MaxUint64, adder((*loader).addChange)},
	sectionIdempotency: {2 * maxIdempotencyKeys, adder((*loader).addIdempotency)},
	sectionSessions:    {MaxSessions, adder((*loader).addSession)},
	sectionRoles:       {MaxRoles, adder((*loader).addRole)},
	sectionRoleLog:     {math.MaxUint64, adder((*loader).addRoleChange)},
	sectionAppNodes:    {MaxAppNodes, adder((*loader).addAppNode)},
	sectionNodeLog:     {math.MaxUint64, adder((*loader).addNodeChange)},
	sectionAudit:       {auditClasses * MaxAuditRecords, adder((*loader).addAudit)},
	sectionProducers:   {maxAuditProducers, adder((*loader).addProducer)},
	sectionSenders:     {math.MaxUint64, adder((*loader).addSender)},
}

// adder returns a function that decodes a record and calls add with it.
func adder[T any, P recordPointer[T]](add func(*loader, P) error) func(*loader, []byte) error {
	return func(l *loader, raw []byte) error {
		v := P(new(T))
		if err := l.codec.decode(raw, v); err != nil {
			return err
		}
		return add(l, v)
	}
}

// named reports whether a name is greater than that of the previous record.
func (l *loader) named(s section, name string) bool {
	ok := name > l.names[s]
	l.names[s] = name
	return ok
}

// numbered reports whether a number is greater than that of the previous record, and not greater than limit.
func (l *loader) numbered(s section, n, limit uint64) bool {
	ok := n > l.numbers[s] && n <= limit
	l.numbers[s] = n
	return ok
}

// insert adds a record to a tree.
func insert[T any](l *loader, to *treeWriter[string, T], key string, v T) error {
	if !l.discard {
		to.put(key, v)
	}
	return nil
}

func (l *loader) addMeta(raw []byte) error {
	if l.metaRead {
		return damaged("two first sections")
	}
	l.metaRead = true
	if err := l.codec.decode(raw, l.meta); err != nil {
		return err
	}
	v := l.view()
	switch {
	case v.version > CommandVersion:
		return &UnknownCommandError{Version: v.version}
	case v.clusterLockDelay < 0 || v.clusterLockDelay > MaxSessionTTL:
		return damaged("lock delay of %v", v.clusterLockDelay)
	case max(v.compacted, v.valuesSince) > v.revision:
		return damaged("revision of a compaction is out of bounds")
	case v.limits.StateBytes > MaxStateBytes || v.limits.SessionsPerIdentity > MaxSessions ||
		v.limits.KeysPerSession > MaxStateBytes:
		return damaged("limits %+v are out of bounds", v.limits)
	case max(v.history.floor, v.roleChanges.floor, v.nodeChanges.floor) > v.revision || v.revision >= maxRevision:
		return damaged("revision %d is out of bounds", v.revision)
	}
	v.bytes = int64(l.meta.keyBytes)
	v.history.readable.floor = v.history.floor
	l.numbers[sectionHistory], l.numbers[sectionRoleLog], l.numbers[sectionNodeLog] =
		v.history.floor, v.roleChanges.floor, v.nodeChanges.floor
	return nil
}

func (l *loader) addMember(m *memberRecord) error {
	if !l.named(sectionMembers, string(m.ID)) && len(l.view().members) > 0 {
		return damaged("member %q is out of order", m.ID)
	}
	l.view().members = append(l.view().members, cluster.Member(*m))
	return nil
}

func (l *loader) addKey(it *Item) error {
	if err := CheckKey(it.Key); err != nil {
		return damaged("%s", err.Detail)
	}
	if !l.named(sectionKeys, it.Key) || it.Revision == 0 || it.Revision > l.view().revision ||
		len(it.Value) > MaxTxnBytes {
		return damaged("key %q is out of order or out of bounds", it.Key)
	}
	l.got.keyBytes += uint64(it.size())
	return insert(l, &l.write.keys, it.Key, it)
}

func (l *loader) addChange(c *keyChange) error {
	if c.item == nil {
		return damaged("change without an item")
	}
	if err := CheckKey(c.item.Key); err != nil {
		return damaged("%s", err.Detail)
	}
	if len(c.item.Value) > MaxTxnBytes || c.prev != nil && (c.prev.Key != c.item.Key ||
		c.prev.Revision > c.item.Revision || len(c.prev.Value) > MaxTxnBytes) {
		return damaged("change of revision %d is out of bounds", c.item.Revision)
	}
	if c.prevKept && !l.discard {
		if c.prev = l.puts[c.item.Key]; c.prev == nil {
			return damaged("change of revision %d replaces an item that is missing", c.item.Revision)
		}
	}
	if c.current && !l.discard {
		it, ok := l.write.keys.get(c.item.Key)
		if !ok || it.Revision != c.item.Revision {
			return damaged("change of revision %d names a key that does not have it", c.item.Revision)
		}
		c.item = it
	}
	if delete(l.puts, c.item.Key); !c.deleted && !l.discard {
		l.puts[c.item.Key] = c.item
	}
	// The changes of one transaction share a revision.
	same := c.item.Revision == l.numbers[sectionHistory] && l.got.records[sectionHistory] > 1
	if same && l.view().version >= txnVersion {
		l.numbers[sectionHistory]--
	}
	return l.addToHistory(sectionHistory, c.change, &l.view().history)
}

func (l *loader) addRoleChange(it *Item) error {
	if _, err := DecodeRoleEvent(it.Value); err != nil {
		return err
	}
	return l.addToHistory(sectionRoleLog, change{item: it}, &l.view().roleChanges)
}

func (l *loader) addNodeChange(c *change) error {
	if c.item == nil {
		return damaged("change without an item")
	}
	if _, err := DecodeAppNode(c.item.Value); err != nil {
		return err
	}
	return l.addToHistory(sectionNodeLog, *c, &l.view().nodeChanges)
}

func (l *loader) addToHistory(s section, c change, to *history) error {
	if rev := c.item.Revision; !l.numbered(s, rev, l.view().revision) || len(c.item.Key) > MaxKey {
		return damaged("change of revision %d in section %d is out of order or out of bounds", rev, s)
	}
	if !l.discard {
		to.push(c, l.options)
	}
	return nil
}

func (l *loader) addIdempotency(e *idempotencyEntry) error {
	if l.discard {
		return nil
	}
	if _, known := l.write.idempotency.get(e.key); known {
		return damaged("idempotency key %q comes twice", e.key)
	}
	e.result = l.view().recorded(e.result)
	l.write.idempotency.put(e.key, e)
	l.view().idempotency.add(e)
	return nil
}

// addSender adds a sender, or a result to the last one.
func (l *loader) addSender(rec *senderRecord) error {
	r, to := rec.result, l.sender
	switch {
	case r == nil && (!l.named(sectionSenders, rec.key) || rec.key == ""):
		return damaged("sender %q is out of order", rec.key)
	case r == nil:
		l.numbers[sectionSenders] = 0
		to = &sender{key: rec.key, answered: rec.answered, index: rec.index}
		if l.sender = to; to.ofNode() {
			l.view().senders.nodes++
		}
		return insert(l, &l.write.senders, to.key, to)
	case rec.key != "" || to == nil || r.number < to.answered || len(to.results) >= to.maxResults() ||
		!l.numbered(sectionSenders, r.number, math.MaxUint64):
		return damaged("result %d of a sender is out of order or out of bounds", r.number)
	}
	if !l.discard {
		r.result = l.view().recorded(r.result) // builds of before have written all of it
		to.results = append(to.results, *r)
		if !to.ofNode() {
			l.view().senders.results++
		}
	}
	return nil
}

func (l *loader) addSession(s *Session) error {
	if CheckSession("session", s.ID) != nil || strings.Contains(s.ID, "\x00") || !l.named(sectionSessions, s.ID) ||
		s.TTL < MinSessionTTL || s.TTL > MaxSessionTTL || s.Lease != LeaseOf(s.ID) {
		return damaged("session %q is out of order or out of bounds", s.ID)
	}
	return insert(l, &l.write.sessions, s.ID, s)
}

func (l *loader) addRole(r *Role) error {
	last := uint64(0)
	grows := true
	for _, t := range append(slices.Clone(r.History), r.Current) {
		grows = grows && (t.Token > last || t.Token == 0 && t.Session == "")
		last = max(last, t.Token)
	}
	held := r.Held() || r.RevokedFrom != "" || r.TakeoverPending
	switch {
	case CheckRole(r.Name) != nil, !l.named(sectionRoles, r.Name), len(r.Queue) > MaxCandidates,
		len(r.History) > MaxTenures:
		return damaged("role %q is out of order or out of bounds", r.Name)
	case !grows, r.StateRevision < last, r.StateRevision > l.view().revision:
		return damaged("role %q has tokens out of order or out of bounds", r.Name)
	case r.RevokedFrom != "" && (r.Held() || len(r.History) == 0):
		return damaged("role %q has a revoked holder, but is held or never was", r.Name)
	case r.LockDelay < 0 || r.LockDelay > MaxSessionTTL || r.LockDelay > 0 && held:
		return damaged("role %q has a lock delay of %v, which its state does not allow", r.Name, r.LockDelay)
	}
	return insert(l, &l.write.roles, r.Name, r)
}

func (l *loader) addAppNode(n *AppNode) error {
	if CheckAppNode(n.ID) != nil || !l.named(sectionAppNodes, n.ID) || n.Revision > l.view().revision ||
		(n.Session == "") != (n.Status == AppDead) {
		return damaged("application node %q is out of order or out of bounds", n.ID)
	}
	return insert(l, &l.write.appNodes, n.ID, n)
}

func (l *loader) addAudit(r *AuditRecord) error {
	log := &l.view().audit
	if r.check() != nil || !l.numbered(sectionAudit, r.Seq, log.seq) {
		return damaged("audit record %d is out of order or out of bounds", r.Seq)
	}
	if !l.discard {
		log.add(r) // without eviction: the writer has applied the limits already
	}
	return nil
}

func (l *loader) addProducer(p *auditProducer) error {
	producers := &l.view().audit.producers
	if !l.named(sectionProducers, p.name) && len(*producers) > 0 {
		return damaged("audit producer %q is out of order", p.name)
	}
	*producers = append(*producers, *p)
	return nil
}
