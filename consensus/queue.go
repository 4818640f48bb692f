package consensus

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/raft"

	"northstar/cluster"
	"northstar/state"
)

// Bounds of the proposer. A batch becomes one log entry; up to maxAppendEntries
// of them may travel in one message.
const (
	maxQueued      = 8192
	maxQueuedBytes = 32 << 20
	maxBatchBytes  = raft.SuggestedMaxDataSize // or one command
)

// A proposal's stages. It leaves the queue either way exactly once.
const (
	queued    int32 = iota
	submitted       // belongs to a batch: from here on its outcome may be unknown
	finished        // answered, or withdrawn by its caller
)

type proposal struct {
	cmd              state.Command
	size             int
	own              bool   // this package's own command: not held back by the gate
	piggybackVersion uint32 // of a leader-start: the highest command version of users' writes that may go with it, and directly behind; 0: none
	stage            atomic.Int32
	done             chan outcome // capacity 1: settle never blocks
}

// mayPiggyback says whether a user's proposal may go with start, ahead of the gate. What
// a write of a key does depends on nothing but the state that it is applied to.
func (p *proposal) mayPiggyback(start *proposal) bool {
	return (p.cmd.Kind == state.KindPut || p.cmd.Kind == state.KindDelete) && p.cmd.MinVersion() <= start.piggybackVersion
}

type outcome struct {
	result state.Result
	err    *cluster.Error
}

// finish answers the caller, if nobody has.
func (p *proposal) finish(o outcome) {
	if p.stage.Swap(finished) != finished {
		p.done <- o
	}
}

// withdraw takes a proposal back that was not handed over yet. The caller gets
// no answer then.
func (p *proposal) withdraw() bool { return p.stage.CompareAndSwap(queued, finished) }

// queue holds proposals until the proposer takes them, one batch after the
// other. Users' proposals wait behind a gate, which is open while this node leads
// and is ready; this package's own pass it. Methods may be called from any
// goroutine, take and done from one; only idle blocks.
type queue struct {
	mu       sync.Mutex
	own      []*proposal
	users    []*proposal
	bytes    int
	open     bool          // the gate
	frozen   bool          // nothing passes: the state is being replaced
	stopped  bool          // nothing is taken in any more
	inFlight []*proposal   // the batches that Raft has; nil: none
	idleCh   chan struct{} // closed when there is none; nil when nobody waits
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
			q.dropWithdrawn()
		}
		if !q.room(p.size) {
			return cluster.Errorf(cluster.CodeBusy, "%d writes of %d bytes in all are waiting already", len(q.users), q.bytes)
		}
		q.users = append(q.users, p)
		q.bytes += p.size
	}
	notify(q.wake)
	return nil
}

func (q *queue) room(size int) bool {
	return len(q.users) == 0 || len(q.users) < maxQueued && q.bytes+size <= maxQueuedBytes
}

// dropWithdrawn takes out what its callers have given up waiting for.
func (q *queue) dropWithdrawn() {
	q.users = slices.DeleteFunc(q.users, func(p *proposal) bool {
		gone := p.stage.Load() == finished
		if gone {
			q.bytes -= p.size
		}
		return gone
	})
}

// nextBatch gives the next batch, nil when there is nothing to propose. done must be
// called before the next. Behind a leader-start that leads stand the writes that
// ride with it.
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

// dequeuePiggybacked gives the writes that may go directly behind start, which is in
// flight; nil when there are none. done is for both.
func (q *queue) dequeuePiggybacked(start *proposal) []*proposal {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.frozen || q.stopped {
		return nil
	}
	batch, _ := q.dequeue(&q.users, nil, 0, func(p *proposal) bool { return p.mayPiggyback(start) })
	q.inFlight = append(slices.Clip(q.inFlight), batch...)
	return batch
}

// waiting is how many users' proposals are not taken yet.
func (q *queue) waiting() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.users)
}

func anything(*proposal) bool { return true }

// piggybackStart gives the leader-start of a batch that users' writes may go with,
// nil when there is none.
func piggybackStart(batch []*proposal) *proposal {
	if i := slices.IndexFunc(batch, func(p *proposal) bool { return p.piggybackVersion > 0 }); i >= 0 {
		return batch[i]
	}
	return nil
}

// dequeue adds to a batch of so many bytes what of a list may go and fits, and
// takes it out of the list with what was withdrawn. mu is held.
func (q *queue) dequeue(list *[]*proposal, batch []*proposal, size int, may func(*proposal) bool) ([]*proposal, int) {
	full := false
	rest := slices.DeleteFunc(*list, func(p *proposal) bool {
		if p.stage.Load() != finished {
			full = full || len(batch) > 0 && size+p.size > maxBatchBytes
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

// done says that no batch is in flight any more.
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
	notify(q.wake)
}

// freeze holds back everything, this package's own proposals too.
func (q *queue) freeze(frozen bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.frozen = frozen
	notify(q.wake)
}

// refuse closes the gate and answers everything that was not handed over.
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

// stop is refuse for good.
func (q *queue) stop() {
	q.mu.Lock()
	q.stopped = true
	q.mu.Unlock()
	q.refuse(notLeader("not proposed: %w", errStopped))
}

// abandon answers what is in flight as unknown, without waiting for Raft: the
// disk under it hangs.
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

// queuedBytes is about what a command takes in a log entry.
func queuedBytes(c *state.Command) int {
	n := 128
	if c.Put != nil {
		n += len(c.Put.Key) + len(c.Put.Value)
	}
	if c.Delete != nil {
		n += len(c.Delete.Key)
	}
	if c.Idempotency != nil {
		n += len(c.Idempotency.Key) + len(c.Idempotency.RequestHash)
	}
	return n
}
