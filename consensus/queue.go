package consensus

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"northstar/cluster"
	"northstar/consensus/raftnode"
	"northstar/state"
)

// Bounds of the queue. A batch becomes one log entry; up to MaxAppendEntries of them fit in one message.
const (
	maxQueued      = 8192
	maxQueuedBytes = 32 << 20
	maxBatchBytes  = raft.SuggestedMaxDataSize // or one command
	maxEntryBytes  = 8 << 20                   // more than any batch that the queue makes
)

// The stages of a proposal. It leaves the queue exactly once.
const (
	queued    int32 = iota
	submitted       // in a batch: from here on its outcome may be unknown
	finished        // answered, or withdrawn by its caller
)

type proposal struct {
	cmd  state.Command
	size int
	// the command version that all members must support for it
	needs uint32
	own   bool // this package's own command: it passes the gate
	// of a leader-start: the highest command version of users' writes that may be appended with it or directly behind;
	// 0: none
	piggybackVersion uint32
	stage            atomic.Int32
	done             chan outcome // capacity 1: finish never blocks

	traced    bool      // its steps are recorded
	submitted time.Time // when Raft got it; used by the proposer
	steps     *steps    // nil: unknown; used by the caller of propose
}

// mayPiggyback reports whether a user's proposal may be appended with start, before the gate opens. The effect of a
// write of a key depends only on the state that it is applied to.
func (p *proposal) mayPiggyback(start *proposal) bool {
	return p.cmd.Kind.WritesKeys() && p.needs <= start.piggybackVersion
}

type outcome struct {
	result state.Result
	err    error
	steps  *steps // nil: not traced
}

// finish answers the caller, unless it was answered before.
func (p *proposal) finish(o outcome) {
	if p.stage.Swap(finished) != finished {
		p.done <- o
	}
}

// withdraw takes back a proposal that was not submitted yet. The caller gets no answer then.
func (p *proposal) withdraw() bool { return p.stage.CompareAndSwap(queued, finished) }

// queue holds proposals until the proposer dequeues them, one batch after another. Users' proposals wait behind a gate,
// which is open while this node leads and is ready. This package's own pass it. Methods may be called from any
// goroutine, nextBatch and done from one. Only idle blocks.
type queue struct {
	mu       sync.Mutex
	own      []*proposal
	users    []*proposal
	bytes    int
	open     bool          // the gate
	frozen   bool          // nothing passes: the state is being replaced
	stopped  bool          // nothing is accepted
	inFlight []*proposal   // the batches in flight; nil: none
	idleCh   chan struct{} // closed when no batch is in flight; nil when no caller waits
	wake     chan struct{} // capacity 1
}

func newQueue() *queue { return &queue{wake: make(chan struct{}, 1)} }

// add queues a proposal; CodeBusy when there is no room.
func (q *queue) add(p *proposal) *cluster.Error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.stopped {
		return notLeader("not proposed: %w", errStopped)
	}
	if p.own {
		q.own = append(q.own, p)
	} else {
		if !q.room(p.size) {
			q.dequeue(&q.users, nil, 0, nothing) // drops the withdrawn ones
		}
		if !q.room(p.size) {
			return cluster.Errorf(cluster.CodeBusy, "%d writes of %d bytes in all are waiting already", len(q.users),
				q.bytes)
		}
		q.users = append(q.users, p)
		q.bytes += p.size
	}
	raftnode.Notify(q.wake)
	return nil
}

func (q *queue) room(size int) bool {
	return len(q.users) == 0 || len(q.users) < maxQueued && q.bytes+size <= maxQueuedBytes
}

// nextBatch returns the next batch, nil when there is nothing to propose. done must be called before the next call. A
// leader-start is followed by the writes that are piggybacked on it.
func (q *queue) nextBatch() []*proposal {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.frozen {
		return nil
	}
	batch, size := q.dequeue(&q.own, nil, 0, anything)
	switch start := piggybackStart(batch); {
	case start != nil:
		batch, _ = q.dequeue(&q.users, batch, size, func(p *proposal) bool { return p.mayPiggyback(start) })
	case batch == nil && q.open:
		batch, _ = q.dequeue(&q.users, nil, 0, anything)
	}
	q.inFlight = batch
	return batch
}

// dequeuePiggybacked returns the writes that may follow start, which is in flight, and that fit into an entry which has
// size bytes already. One call of done is for both.
func (q *queue) dequeuePiggybacked(start *proposal, size int) []*proposal {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.frozen || q.stopped {
		return nil
	}
	batch, _ := q.dequeue(&q.users, nil, size, func(p *proposal) bool { return p.mayPiggyback(start) })
	q.inFlight = append(slices.Clip(q.inFlight), batch...)
	return batch
}

func (q *queue) waiting() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.users)
}

func anything(*proposal) bool { return true }
func nothing(*proposal) bool  { return false }

// piggybackStart returns the leader-start of a batch that users' writes may be appended with, nil when there is none.
func piggybackStart(batch []*proposal) *proposal {
	if i := slices.IndexFunc(batch, func(p *proposal) bool { return p.piggybackVersion > 0 }); i >= 0 {
		return batch[i]
	}
	return nil
}

// dequeue adds to a batch the proposals of a list that are allowed and fit into an entry which has size bytes already.
// It removes them from the list, with the withdrawn ones. The caller holds mu.
func (q *queue) dequeue(list *[]*proposal, batch []*proposal, size int, may func(*proposal) bool) ([]*proposal, int) {
	full := false
	rest := slices.DeleteFunc(*list, func(p *proposal) bool {
		if p.stage.Load() != finished {
			full = full || size > 0 && size+p.size > maxBatchBytes
			if full || !may(p) {
				return false
			}
		}
		if !p.own {
			q.bytes -= p.size
		}
		if p.stage.CompareAndSwap(queued, submitted) {
			batch = append(batch, p)
			size += p.size
		}
		return true
	})
	if len(rest) == 0 {
		rest = nil
	}
	*list = rest
	return batch, size
}

// sizeOf returns how many bytes proposals have in a log entry.
func sizeOf(batch []*proposal) (size int) {
	for _, p := range batch {
		size += p.size
	}
	return size
}

func (q *queue) done() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.inFlight = nil
	if q.idleCh != nil {
		close(q.idleCh)
		q.idleCh = nil
	}
}

func (q *queue) isOpen() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.open
}

// setGate opens or closes the gate. Closing leaves proposals in the queue.
func (q *queue) setGate(open bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.open = open && !q.stopped
	raftnode.Notify(q.wake)
}

// freeze holds back everything, also this package's own proposals.
func (q *queue) freeze(frozen bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.frozen = frozen
	raftnode.Notify(q.wake)
}

// refuse closes the gate and rejects everything that was not submitted.
func (q *queue) refuse(err *cluster.Error) {
	q.mu.Lock()
	waiting := append(q.own, q.users...)
	q.own, q.users, q.bytes, q.open = nil, nil, 0, false
	q.mu.Unlock()
	for _, p := range waiting {
		if p.stage.CompareAndSwap(queued, submitted) {
			p.finish(outcome{err: err})
		}
	}
}

// stop is refuse, permanently.
func (q *queue) stop() {
	q.mu.Lock()
	q.stopped = true
	q.mu.Unlock()
	q.refuse(notLeader("not proposed: %w", errStopped))
}

// abandon answers what is in flight as unknown without waiting for Raft, whose disk hangs.
func (q *queue) abandon(cause error) {
	q.mu.Lock()
	flying := q.inFlight
	q.mu.Unlock()
	for _, p := range flying {
		p.finish(outcome{err: unknownOutcome(cause)})
	}
}

// idle returns once no batch is in flight.
func (q *queue) idle(ctx context.Context) error {
	q.mu.Lock()
	if q.inFlight == nil {
		q.mu.Unlock()
		return nil
	}
	if q.idleCh == nil {
		q.idleCh = make(chan struct{})
	}
	ch := q.idleCh
	q.mu.Unlock()
	select {
	case <-ch:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// queuedBytes estimates the size of a command in a log entry. It must not be much less than that: followers refuse an
// entry that is too large, and nothing more would be committed.
func queuedBytes(c *state.Command) int {
	n := 128
	if !c.Kind.WritesKeys() { // few are of these kinds, and some are large
		if raw, err := state.EncodeBatch([]state.Command{*c}); err == nil {
			return n + len(raw)
		}
	}
	if c.Put != nil {
		n += len(c.Put.Key) + len(c.Put.Value) + len(c.Put.Session)
	}
	if c.Delete != nil {
		n += len(c.Delete.Key)
	}
	if c.Txn != nil {
		n += c.Txn.Size()
	}
	if c.Idempotency != nil {
		n += len(c.Idempotency.Key) + len(c.Idempotency.RequestHash)
	}
	if c.Fence != nil {
		n += len(c.Fence.Role)
	}
	if a := c.Audit; a != nil {
		n += len(a.What) + len(a.From) + len(a.Who) + len(a.Request) + len(a.Reason)
	}
	return n
}
