// Package audit adds the records of calls to the replicated audit log. A call that proposes a command has its
// record in that command, so the log contains both or neither. This package is for all other calls: those that were
// rejected, and those that transfer leadership or change the membership.
//
// The records of one process are numbered and sent in order, one batch after the other, until the leader has
// accepted them. Without a leader they wait in a file of the data directory, the spool. The next process sends what
// the spool holds. The state knows the last record of each process, so a repeated batch adds nothing.
package audit

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/time/rate"

	"northstar/state"
)

const (
	flushInterval  = 50 * time.Millisecond  // delay that collects records into one batch
	retryInterval  = 500 * time.Millisecond // delay between attempts, unless the leader changes
	durableTimeout = 3 * time.Second        // maximum delay of a response by its record
	lostInterval   = 10 * time.Second       // between writes of the spool for the number of lost records alone
	batchBytes     = 256 << 10
)

// Bounds of the queue. Each class has a queue of its own, so rejected clients cannot use the room of operators.
const (
	maxQueued = 1024
	maxBytes  = 1 << 20
)

// Deps are the dependencies of a Recorder.
type Deps struct {
	Source string // name of this process, never reused
	// Send puts a batch through the log. Without an error it was applied; with one it may have been.
	Send func(ctx context.Context, batch state.Command) error
	// SendWithin is the timeout of one Send.
	SendWithin time.Duration
	// Changed returns a channel that is closed at the next change of the leader.
	Changed func() <-chan struct{}
	// Load reads what Save has stored, or returns fs.ErrNotExist. Save is durable when it returns.
	Load func() ([]byte, error)
	Save func([]byte) error
	// Count counts records by result: replicated, spooled, lost.
	Count  func(result string, n int)
	Logger hclog.Logger
}

type entry struct {
	source  string
	seq     uint64
	record  state.AuditRecord
	durable chan struct{} // closed when the record is replicated or spooled; nil: no caller waits
}

// Recorder adds records to the log. Any goroutine may call its methods.
type Recorder struct {
	deps       Deps
	log        hclog.Logger
	wake       chan struct{} // capacity 1
	urgent     chan struct{} // capacity 1: a caller waits
	logLimiter *rate.Limiter // for log lines about lost records
	spooled    bool          // the file is not empty; only New and Run use it
	spooledAt  time.Time     // only Run uses it

	mu     sync.Mutex
	queue  []entry
	queued [2]int // records of each class in the queue
	bytes  [2]int
	seq    uint64            // of the last record of this process
	lost   map[string]uint64 // number of lost records by source
	dirty  bool              // the queue holds records that the file does not
	more   bool              // more records are lost than the file says
}

// New loads the spool of an earlier process. One that cannot be read is dropped: the node must start.
func New(d Deps) *Recorder {
	r := &Recorder{
		deps: d, log: d.Logger.Named("audit"), wake: make(chan struct{}, 1), urgent: make(chan struct{}, 1),
		logLimiter: rate.NewLimiter(rate.Every(time.Second), 5), lost: map[string]uint64{},
	}
	data, err := d.Load()
	switch {
	case errors.Is(err, fs.ErrNotExist), err == nil && len(data) == 0:
		return r
	case err == nil:
		err = r.loadSpool(data)
	}
	if err != nil {
		r.log.Error("cannot read audit spool, its records are lost", "error", err)
	}
	return r
}

func (r *Recorder) loadSpool(data []byte) error {
	batches, err := state.DecodeBatch(data)
	if err != nil {
		return err
	}
	r.spooled = true
	for i := range batches {
		b := batches[i].AuditBatch
		if b == nil || b.Producer == r.deps.Source {
			return fmt.Errorf("unexpected command of kind %d", batches[i].Kind)
		}
		r.lost[b.Producer] = b.Lost
		for j := range b.Records {
			sanitize(&b.Records[j])
			r.add(entry{source: b.Producer, seq: b.First + uint64(j), record: b.Records[j]})
		}
	}
	notify(r.wake)
	return nil
}

// Record queues a record and returns immediately.
func (r *Recorder) Record(rec state.AuditRecord) { r.enqueue(rec, nil) }

// RecordDurable queues a record and returns when it is replicated or spooled, after durableTimeout at the latest.
func (r *Recorder) RecordDurable(ctx context.Context, rec state.AuditRecord) {
	durable := make(chan struct{})
	if !r.enqueue(rec, durable) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, durableTimeout)
	defer cancel()
	select {
	case <-durable:
	case <-ctx.Done():
		r.log.Warn("responding before the audit record is durable", "what", rec.What, "who", rec.Who)
	}
}

func (r *Recorder) enqueue(rec state.AuditRecord, durable chan struct{}) bool {
	sanitize(&rec)
	r.mu.Lock()
	full := r.queued[rec.Class] >= maxQueued || r.bytes[rec.Class]+size(&rec) > maxBytes
	if full {
		r.lost[r.deps.Source]++
		r.more = true
	} else {
		r.seq++
		r.add(entry{source: r.deps.Source, seq: r.seq, record: rec, durable: durable})
		r.dirty = true
	}
	r.mu.Unlock()
	if full {
		r.deps.Count("lost", 1)
		if r.logLimiter.Allow() {
			r.log.Warn("audit buffer full, record dropped",
				"what", rec.What, "who", rec.Who, "from", rec.From, "status", rec.Status)
		}
		return false
	}
	notify(r.wake)
	if durable != nil {
		notify(r.urgent)
	}
	return true
}

func (r *Recorder) add(e entry) {
	r.queue = append(r.queue, e)
	r.queued[e.record.Class]++
	r.bytes[e.record.Class] += size(&e.record)
}

func notify(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// queueLength returns the number of records that are not replicated yet.
func (r *Recorder) queueLength() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.queue)
}

// Run sends records to the log until ctx ends. Then it spools the rest.
func (r *Recorder) Run(ctx context.Context) error {
	for {
		select {
		case <-r.wake:
		case <-ctx.Done():
			r.spool(0)
			return nil
		}
		pause(ctx, flushInterval, r.urgent, nil)
		for ctx.Err() == nil {
			changed := r.deps.Changed() // before the attempt, so that no change is missed
			err := r.sendAll(ctx)
			if err == nil {
				break
			}
			r.spool(lostInterval)
			r.log.Debug("cannot replicate audit records, retrying", "records", r.queueLength(), "error", err)
			pause(ctx, retryInterval, r.urgent, changed)
		}
	}
}

// pause waits for d, or until one of the channels is ready.
func pause(ctx context.Context, d time.Duration, urgent, changed <-chan struct{}) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-urgent:
	case <-changed:
	case <-ctx.Done():
	}
}

func (r *Recorder) sendAll(ctx context.Context) error {
	for {
		r.mu.Lock()
		if len(r.queue) == 0 {
			r.dirty, r.more = false, false
			r.mu.Unlock()
			if !r.spooled {
				return nil
			}
			err := r.deps.Save(nil) // all that it holds is replicated
			r.spooled = err != nil
			return err
		}
		batch := r.batchAt(0)
		r.mu.Unlock()
		within, cancel := context.WithTimeout(ctx, r.deps.SendWithin)
		err := r.deps.Send(within, state.Command{Kind: state.KindAudit, AuditBatch: batch})
		cancel()
		if err != nil {
			return err
		}
		r.deps.Count("replicated", len(batch.Records))
		r.ack(len(batch.Records))
	}
}

// batchAt returns a batch of records of one process, beginning at index i of the queue. The caller holds mu.
func (r *Recorder) batchAt(i int) *state.AuditBatch {
	first := &r.queue[i]
	b := &state.AuditBatch{Producer: first.source, First: first.seq, Lost: r.lost[first.source]}
	total := 0
	for ; i < len(r.queue); i++ {
		e := &r.queue[i]
		total += size(&e.record)
		if e.source != first.source || len(b.Records) == state.MaxAuditBatch || len(b.Records) > 0 &&
			total > batchBytes {
			break
		}
		b.Records = append(b.Records, e.record)
	}
	return b
}

// ack removes the first n records, which are replicated.
func (r *Recorder) ack(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range r.queue[:n] {
		e := &r.queue[i]
		r.queued[e.record.Class]--
		r.bytes[e.record.Class] -= size(&e.record)
		if e.durable != nil {
			close(e.durable)
		}
	}
	clear(r.queue[:n])
	r.queue = r.queue[n:]
	if len(r.queue) == 0 {
		r.queue = nil
	}
}

// spool writes the whole queue to the file. For the number of lost records alone it does so once in an interval: during
// a flood each call would write all records again.
func (r *Recorder) spool(interval time.Duration) {
	r.mu.Lock()
	if !r.dirty && (!r.more || time.Since(r.spooledAt) < interval) {
		r.mu.Unlock()
		return
	}
	r.dirty, r.more = false, false
	fresh := 0
	for i := range r.queue {
		if e := &r.queue[i]; !e.record.Delayed {
			e.record.Delayed = true
			fresh++
		}
	}
	n := len(r.queue)
	var batches []state.Command
	for i := 0; i < n; {
		b := r.batchAt(i)
		batches = append(batches, state.Command{Kind: state.KindAudit, AuditBatch: b})
		i += len(b.Records)
	}
	r.mu.Unlock()
	data, err := state.EncodeBatch(batches)
	if err == nil {
		err = r.deps.Save(data)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		r.dirty = true
		r.log.Error("cannot write audit spool", "records", n, "error", err)
		return
	}
	r.spooled, r.spooledAt = true, time.Now()
	r.deps.Count("spooled", fresh)
	for i := range r.queue[:n] { // only Run removes records, and Run called spool
		if e := &r.queue[i]; e.durable != nil {
			close(e.durable)
			e.durable = nil
		}
	}
}

func size(r *state.AuditRecord) int {
	return 64 + len(r.Who) + len(r.From) + len(r.What) + len(r.Request) + len(r.Reason) + len(r.Detail)
}

// sanitize truncates every text of a record to what the log accepts.
func sanitize(r *state.AuditRecord) {
	for _, text := range []*string{&r.Who, &r.Role, &r.From, &r.What, &r.Reason, &r.Detail} {
		*text = strings.ToValidUTF8((*text)[:min(len(*text), state.MaxAuditText)], "")
	}
	r.Request = strings.ToValidUTF8(r.Request, "\uFFFD") // the body as it came; it stays JSON
	if len(r.Request) > state.MaxAuditText {             // a part of it would not be JSON
		r.Request = ""
	}
}
