package api

import (
	"context"
	"sync"

	"golang.org/x/sync/semaphore"
)

// turns are places of one thing in progress. As with a budget, a caller gets a share of them, and operators find
// limit/4 more. But who finds none waits, in order of arrival: among those of the address, of the identity, and of all.
// So no caller waits for another one beyond its share. Methods may be called by any goroutine.
type turns struct {
	share   int64
	callers *semaphore.Weighted // the places without the reserve
	node    *semaphore.Weighted // all places

	mu                    sync.Mutex // guards what follows
	addresses, identities map[counters]*turnShare
}

// turnShare is the share of one caller, which exists while a call of it waits or has a place.
type turnShare struct {
	*semaphore.Weighted
	calls int
}

// maxReturning bounds the writes in progress of another protocol that return values. The leader sends these before they
// can be counted, at most state.MaxTxnReadBytes for each.
const maxReturning = 32

func newTurns(limit, share int64) *turns {
	return &turns{
		share: share, callers: semaphore.NewWeighted(limit), node: semaphore.NewWeighted(limit + limit/4),
		addresses: map[counters]*turnShare{}, identities: map[counters]*turnShare{},
	}
}

// await waits for a place, until leave is called, once. If ctx ends before, it returns the cause.
//
// The address comes first: what waits for its identity holds a place of its address alone. An identity's calls from
// other addresses do not wait for that one.
func (t *turns) await(ctx context.Context, by shareholder) (leave func(), err error) {
	queues := make([]*semaphore.Weighted, 0, 4)
	left := func() {}
	if !by.unshared {
		queues = append(queues, t.join(t.addresses, by.address), t.join(t.identities, by.identity))
		left = func() {
			t.leave(t.addresses, by.address)
			t.leave(t.identities, by.identity)
		}
	}
	if !by.reserve {
		queues = append(queues, t.callers)
	}
	queues = append(queues, t.node)
	for i, queue := range queues {
		if queue.Acquire(ctx, 1) != nil {
			release(queues[:i])
			left()
			return nil, context.Cause(ctx)
		}
	}
	return func() { release(queues); left() }, nil
}

func release(queues []*semaphore.Weighted) {
	for _, queue := range queues {
		queue.Release(1)
	}
}

// join returns the share of a caller for one more call, until leave.
func (t *turns) join(all map[counters]*turnShare, by counters) *semaphore.Weighted {
	t.mu.Lock()
	defer t.mu.Unlock()
	if all[by] == nil {
		all[by] = &turnShare{Weighted: semaphore.NewWeighted(t.share)}
	}
	all[by].calls++
	return all[by].Weighted
}

func (t *turns) leave(all map[counters]*turnShare, by counters) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if all[by].calls--; all[by].calls == 0 {
		delete(all, by)
	}
}

// AwaitPlace waits for a place among the writes in progress that return values, until leave is called, once. If ctx
// ends before, it returns the cause.
func (k *Call) AwaitPlace(ctx context.Context) (leave func(), err error) {
	return k.c.s.returning.await(ctx, k.c.holder())
}
