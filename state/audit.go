package state

import (
	"cmp"
	"iter"
	"slices"
	"time"

	"northstar/cluster"
)

// Bounds of the audit log, the same on every node and in every build: eviction must not depend on the node.
const (
	MaxAuditRecords = 10_000              // of a class …
	MaxAuditBytes   = 4 << 20             // … in so many bytes …
	MaxAuditAge     = 90 * 24 * time.Hour // … and not older than this, compared with the newest
	MaxAuditBatch   = 256                 // records of one AuditBatch
	MaxAuditText    = 2 << 10             // bytes of a field of an AuditRecord

	maxAuditProducers = 256 // processes whose last sequence number is kept
	auditOverhead     = 256 // approximate bytes of a record besides its texts
)

// AuditClass selects one of two logs. The many calls of clients must not evict the few calls of operators.
type AuditClass int

// The classes.
const (
	AuditClients   AuditClass = 0 // calls outside /admin, calls of nodes, and all rejected calls
	AuditOperators AuditClass = 1 // calls of /admin
	auditClasses              = 2
)

// AuditRecord is one call: the caller, the call and its result.
type AuditRecord struct {
	Seq     uint64 // sequence number among all records, set by apply
	Class   AuditClass
	At      int64          // time of the response, Unix nanoseconds; for a command: time of the proposal
	Node    cluster.NodeID // node that sent the response
	Who     string         // name of the token or certificate
	Role    string         // role of that token or certificate
	From    string         // address of the caller
	What    string         // method and path
	Request string         // request of an operator as JSON
	Reason  string         // reason given by the caller
	Status  int            // HTTP status of the response
	Code    cluster.Code   // of the problem; 0: none
	Detail  string         // of the problem
	DryRun  bool
	Delayed bool // it waited in a node's spool
}

// AuditBatch carries records of calls without a command of their own. The records of one process come in order. A
// repeated batch adds nothing.
type AuditBatch struct {
	Producer string // unique name of the process
	First    uint64 // sequence number of the first record within the process, from 1
	Lost     uint64 // number of records that the process has lost so far
	Records  []AuditRecord
}

// auditLog is the audit log of a View. Its copies are snapshots.
type auditLog struct {
	seq       uint64
	rings     [auditClasses]auditRing
	lost      uint64          // records lost by the nodes
	producers []auditProducer // sorted by name; copied before a change
}

type auditRing struct {
	records queue[*AuditRecord]
	bytes   int
	dropped uint64
}

// auditProducer is the progress of one process.
type auditProducer struct {
	name       string
	last, lost uint64
	at         int64 // time of its last batch
}

// AuditCounts is the number of records in the audit log and of missing ones.
type AuditCounts struct {
	Records, Dropped [2]uint64 // by class; dropped because of age or size
	Lost             uint64    // lost by nodes before replication
}

func (v *View) AuditCounts() AuditCounts {
	c := AuditCounts{Lost: v.audit.lost}
	for i := range v.audit.rings {
		c.Records[i] = uint64(v.audit.rings[i].records.len())
		c.Dropped[i] = v.audit.rings[i].dropped
	}
	return c
}

// AuditAfter yields the records with a Seq greater than since, oldest first.
func (v *View) AuditAfter(since uint64) iter.Seq[*AuditRecord] {
	return func(yield func(*AuditRecord) bool) {
		a, b := &v.audit.rings[0].records, &v.audit.rings[1].records
		later := func(r *AuditRecord) bool { return r.Seq > since }
		for i, j := a.search(later), b.search(later); i < a.end || j < b.end; {
			var next *AuditRecord
			if j == b.end || i < a.end && a.at(i).Seq < b.at(j).Seq {
				next = a.at(i)
				i++
			} else {
				next = b.at(j)
				j++
			}
			if !yield(next) {
				return
			}
		}
	}
}

// AuditBackward yields all records, newest first.
func (v *View) AuditBackward(yield func(*AuditRecord) bool) {
	a, b := &v.audit.rings[0].records, &v.audit.rings[1].records
	for i, j := a.end, b.end; i > a.first || j > b.first; {
		var next *AuditRecord
		if j == b.first || i > a.first && a.at(i-1).Seq > b.at(j-1).Seq {
			i--
			next = a.at(i)
		} else {
			j--
			next = b.at(j)
		}
		if !yield(next) {
			return
		}
	}
}

func (r *AuditRecord) size() int {
	return auditOverhead + len(r.Node) + len(r.Who) + len(r.Role) + len(r.From) + len(r.What) + len(r.Request) +
		len(r.Reason) + len(r.Detail)
}

func (l *auditLog) add(r *AuditRecord) *auditRing {
	ring := &l.rings[r.Class]
	ring.records.push(r, false)
	ring.bytes += r.size()
	return ring
}

// push adds a record with the next Seq. It drops the records of the class that are too many, and up to aged others that
// are too old.
func (l *auditLog) push(r *AuditRecord, aged int) {
	l.seq++
	r.Seq = l.seq
	ring := l.add(r)
	for {
		oldest := ring.records.at(ring.records.first)
		if ring.records.len() <= MaxAuditRecords && ring.bytes <= MaxAuditBytes {
			if aged == 0 || r.At-oldest.At <= int64(MaxAuditAge) {
				return
			}
			aged--
		}
		ring.records.pop()
		ring.bytes -= oldest.size()
		ring.dropped++
	}
}

// record adds a command's call and result to the audit log.
func (w *txn) record(c *Command, result Result) {
	r := *c.Audit
	r.At, r.Status = c.Now, 200
	if err := result.Err; err != nil {
		r.Status, r.Code, r.Detail = err.HTTPStatus(), err.Code, truncate(err.Detail)
	}
	w.audit.push(&r, w.agedOut())
}

func (b *AuditBatch) apply(w *txn) Result {
	byName := func(p auditProducer, name string) int { return cmp.Compare(p.name, name) }
	producers := slices.Clone(w.audit.producers) // older Views share the list
	i, known := slices.BinarySearchFunc(producers, b.Producer, byName)
	if !known && len(producers) >= maxAuditProducers { // evict the one that sent its last batch first
		oldest := slices.MinFunc(producers, func(a, b auditProducer) int { return cmp.Compare(a.at, b.at) })
		producers = slices.DeleteFunc(producers, func(p auditProducer) bool { return p.name == oldest.name })
		i, _ = slices.BinarySearchFunc(producers, b.Producer, byName)
	}
	if !known {
		producers = slices.Insert(producers, i, auditProducer{name: b.Producer})
	}
	from := &producers[i]
	from.at = w.now
	if b.Lost > from.lost {
		w.audit.lost += b.Lost - from.lost
		from.lost = b.Lost
	}
	for j := range b.Records {
		seq := b.First + uint64(j)
		if seq <= from.last {
			continue
		}
		from.last = seq
		r := b.Records[j]
		w.audit.push(&r, w.agedOut())
	}
	w.audit.producers = producers
	return Result{}
}

func (b *AuditBatch) check() *cluster.Error {
	if b.First == 0 && len(b.Records) > 0 || b.First >= maxRevision || b.Lost >= maxRevision {
		return badRequest("first: must be 1 to %d (got %d)", uint64(maxRevision), b.First)
	}
	return firstError(
		checkBytes("producer", b.Producer, MaxKey), checkRange("records", len(b.Records), 0, MaxAuditBatch),
		checkEach(b.Records, func(r AuditRecord) *cluster.Error { return r.check() }))
}

func (r *AuditRecord) check() *cluster.Error {
	texts := []string{string(r.Node), r.Who, r.Role, r.From, r.What, r.Request, r.Reason, r.Detail}
	return firstError(
		checkRange("class", int(r.Class), 0, auditClasses-1),
		checkEach(texts, func(text string) *cluster.Error { return checkUTF8("audit", text, MaxAuditText) }))
}
