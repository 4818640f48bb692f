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
	share                 int64
	callers               *semaphore.Weighted // the places without the reserve
	node                  *semaphore.Weighted // all places
	addresses, identities sync.Map            // of *semaphore.Weighted: the shares, by the counters of a shareholder
}

// maxReturning bounds the writes in progress of another protocol that return values. The leader sends these before they
// can be counted, at most state.MaxTxnReadBytes for each.
const maxReturning = 32

func newTurns(limit, share int64) *turns {
	return &turns{
		share: share, callers: semaphore.NewWeighted(limit), node: semaphore.NewWeighted(limit + limit/4),
	}
}

// await waits for a place, until leave is called, once. If ctx ends before, it returns the cause.
//
// The address comes first: what waits for its identity holds a place of its address alone. An identity's calls from
// other addresses do not wait for that one.
func (t *turns) await(ctx context.Context, by shareholder) (leave func(), err error) {
	queues := make([]*semaphore.Weighted, 0, 4)
	if !by.unshared {
		queues = append(queues, t.shareOf(&t.addresses, by.address), t.shareOf(&t.identities, by.identity))
	}
	if !by.reserve {
		queues = append(queues, t.callers)
	}
	queues = append(queues, t.node)
	for i, queue := range queues {
		if queue.Acquire(ctx, 1) != nil {
			release(queues[:i])
			return nil, context.Cause(ctx)
		}
	}
	return func() { release(queues) }, nil
}

func release(queues []*semaphore.Weighted) {
	for _, queue := range queues {
		queue.Release(1)
	}
}

func (t *turns) shareOf(all *sync.Map, by counters) *semaphore.Weighted {
	counter := by[0] // of the whole pair there would be too many
	share, ok := all.Load(counter)
	if !ok {
		share, _ = all.LoadOrStore(counter, semaphore.NewWeighted(t.share))
	}
	return share.(*semaphore.Weighted)
}

// AwaitPlace waits for a place among the writes in progress that return values, until leave is called, once. If ctx
// ends before, it returns the cause.
func (k *Call) AwaitPlace(ctx context.Context) (leave func(), err error) {
	return k.c.s.returning.await(ctx, k.c.holder())
}
