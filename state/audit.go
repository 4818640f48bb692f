package state

import (
	"cmp"
	"iter"
	"slices"
	"time"
	"unicode/utf8"

	"northstar/cluster"
)

// Bounds of the audit log. They are the same on every node of every build: what
// is dropped must not depend on who looks.
const (
	MaxAuditRecords = 10_000              // of a class …
	MaxAuditBytes   = 4 << 20             // … in so many bytes …
	MaxAuditAge     = 90 * 24 * time.Hour // … and no older, as of the newest
	MaxAuditBatch   = 256                 // records of one AuditBatch
	MaxAuditText    = 2 << 10             // bytes of a field of an AuditRecord

	maxAuditProducers = 256 // processes whose place is remembered
	auditOverhead     = 256 // bytes that a record takes beside its texts, about
)

// AuditClass says which of the two logs a record is kept in, so that the many
// calls of clients do not push out the few of operators.
type AuditClass int

// The classes.
const (
	AuditClients   AuditClass = 0 // calls outside /admin, of nodes, and all that were forbidden
	AuditOperators AuditClass = 1 // calls of /admin
	auditClasses              = 2
)

// AuditRecord says who called what, from where, and what came of it.
type AuditRecord struct {
	Seq     uint64 // its place among all records, given when it is applied
	Class   AuditClass
	At      int64          // when it was answered, Unix nanoseconds; of a command: when that was proposed
	Node    cluster.NodeID // which answered it
	Who     string         // name of the token or certificate
	Role    string         // that this has
	From    string         // address that the call came from
	What    string         // method and path
	Request string         // what an operator asked for, as JSON
	Reason  string         // that the caller gave
	Status  int            // of the answer
	Code    cluster.Code   // of the problem; 0: none
	Detail  string         // of the problem
	DryRun  bool
	Delayed bool // it has waited in a node's spool
}

// AuditBatch brings the records of calls that proposed nothing themselves. Those
// of one process come in order; a batch that comes again adds nothing.
type AuditBatch struct {
	Producer string // of one process
	First    uint64 // place of the first record among those of the process, from 1
	Lost     uint64 // records that the process could not keep, so far
	Records  []AuditRecord
}

// auditLog is the audit log as a part of a View. Its copies are snapshots.
type auditLog struct {
	seq       uint64
	rings     [auditClasses]auditRing
	lost      uint64          // that never came, as their nodes say
	producers []auditProducer // by name; copied when changed
}

type auditRing struct {
	records queue[*AuditRecord]
	bytes   int
	dropped uint64
}

// auditProducer is how far the records of one process have come.
type auditProducer struct {
	name       string
	last, lost uint64
	at         int64 // when it last brought some
}

// AuditCounts says how much of the audit log there is, and how much is missing.
type AuditCounts struct {
	Records, Dropped [2]uint64 // by class; dropped: for age or size
	Lost             uint64    // that nodes could not keep until they were replicated
}

// AuditCounts counts the audit log.
func (v *View) AuditCounts() AuditCounts {
	c := AuditCounts{Lost: v.audit.lost}
	for i := range v.audit.rings {
		c.Records[i] = uint64(v.audit.rings[i].records.len())
		c.Dropped[i] = v.audit.rings[i].dropped
	}
	return c
}

// AuditAfter yields the records with a greater Seq than since, oldest first.
func (v *View) AuditAfter(since uint64) iter.Seq[*AuditRecord] {
	return func(yield func(*AuditRecord) bool) {
		var at [auditClasses]uint64 // position of the next record of each class
		for i := range at {
			at[i] = v.audit.rings[i].records.search(func(r *AuditRecord) bool { return r.Seq > since })
		}
		v.audit.merge(at, false, yield)
	}
}

// AuditBackward yields all records, newest first.
func (v *View) AuditBackward(yield func(*AuditRecord) bool) {
	var at [auditClasses]uint64 // position after the next record of each class
	for i := range at {
		at[i] = v.audit.rings[i].records.end
	}
	v.audit.merge(at, true, yield)
}

// merge yields the records of both classes in order of Seq, from the positions at on.
func (l *auditLog) merge(at [auditClasses]uint64, backward bool, yield func(*AuditRecord) bool) {
	for {
		var next *AuditRecord
		from := 0
		for i := range l.rings {
			q, pos := &l.rings[i].records, at[i]
			if backward {
				pos--
			}
			if pos < q.first || pos >= q.end || at[i] == 0 && backward {
				continue
			}
			if r := q.at(pos); next == nil || (r.Seq < next.Seq) != backward {
				next, from = r, i
			}
		}
		if next == nil || !yield(next) {
			return
		}
		if backward {
			at[from]--
		} else {
			at[from]++
		}
	}
}

func (r *AuditRecord) size() int {
	return auditOverhead + len(r.Node) + len(r.Who) + len(r.Role) + len(r.From) + len(r.What) + len(r.Request) + len(r.Reason) + len(r.Detail)
}

// add adds a record.
func (l *auditLog) add(r *AuditRecord) *auditRing {
	ring := &l.rings[r.Class]
	ring.records.push(r, false)
	ring.bytes += r.size()
	return ring
}

// push adds a record, and drops what is too old or too much of its class.
func (l *auditLog) push(r *AuditRecord) {
	ring := l.add(r)
	for oldest := ring.records.at(ring.records.first); ring.records.len() > MaxAuditRecords || ring.bytes > MaxAuditBytes ||
		r.At-oldest.At > int64(MaxAuditAge); oldest = ring.records.at(ring.records.first) {
		ring.records.pop()
		ring.bytes -= oldest.size()
		ring.dropped++
	}
}

// record adds what came of a command to the audit log.
func (w *txn) record(c *Command, result Result) {
	r := *c.Audit
	r.At, r.Status = c.Now, 200
	if err := result.Err; err != nil {
		r.Status, r.Code, r.Detail = err.HTTPStatus(), err.Code, clip(err.Detail)
	}
	w.audit.seq++
	r.Seq = w.audit.seq
	w.audit.push(&r)
}

func (b *AuditBatch) apply(w *txn) Result {
	i, known := slices.BinarySearchFunc(w.audit.producers, b.Producer, func(s auditProducer, name string) int { return cmp.Compare(s.name, name) })
	sources := slices.Clone(w.audit.producers) // older Views share it
	if !known {
		sources = slices.Insert(sources, i, auditProducer{name: b.Producer})
	}
	from := &sources[i]
	from.at = w.now
	if b.Lost > from.lost {
		w.audit.lost += b.Lost - from.lost
		from.lost = b.Lost
	}
	for j := range b.Records {
		place := b.First + uint64(j)
		if place <= from.last {
			continue
		}
		from.last = place
		r := b.Records[j]
		w.audit.seq++
		r.Seq = w.audit.seq
		w.audit.push(&r)
	}
	w.audit.producers = evictAuditProducer(sources, i)
	return Result{}
}

// evictAuditProducer drops the source that has been silent for longest when there is
// one too many; not that at keep, which has just spoken.
func evictAuditProducer(sources []auditProducer, keep int) []auditProducer {
	if len(sources) <= maxAuditProducers {
		return sources
	}
	oldest := -1
	for i, s := range sources {
		if i != keep && (oldest < 0 || s.at < sources[oldest].at) {
			oldest = i
		}
	}
	return slices.Delete(sources, oldest, oldest+1)
}

func (b *AuditBatch) check() *cluster.Error {
	switch {
	case b.Producer == "" || len(b.Producer) > MaxKey:
		return cluster.Errorf(cluster.CodeBadRequest, "source: want 1 to %d bytes, got %d", MaxKey, len(b.Producer))
	case len(b.Records) > MaxAuditBatch:
		return cluster.Errorf(cluster.CodeBadRequest, "records: want at most %d, got %d", MaxAuditBatch, len(b.Records))
	case b.First == 0 && len(b.Records) > 0 || b.First >= maxRevision || b.Lost >= maxRevision:
		return cluster.Errorf(cluster.CodeBadRequest, "first: want 1 to %d, got %d", uint64(maxRevision), b.First)
	}
	for i := range b.Records {
		if err := b.Records[i].check(); err != nil {
			return err
		}
	}
	return nil
}

func (r *AuditRecord) check() *cluster.Error {
	if r.Class < 0 || r.Class >= auditClasses {
		return cluster.Errorf(cluster.CodeBadRequest, "class: want 0 or 1, got %d", r.Class)
	}
	for _, text := range []string{string(r.Node), r.Who, r.Role, r.From, r.What, r.Request, r.Reason, r.Detail} {
		if len(text) > MaxAuditText || !utf8.ValidString(text) {
			return cluster.Errorf(cluster.CodeBadRequest, "audit: want at most %d bytes of UTF-8 in each text, got %d bytes", MaxAuditText, len(text))
		}
	}
	return nil
}
