package leadercall

import (
	"context"
	"math"
	"sync"
	"time"

	"northstar/cluster"
)

// rounds collects callers. All callers that wait when a round begins share its question to the leader.
type rounds struct {
	wake chan struct{} // capacity 1

	mu   sync.Mutex
	next *round // nil when no caller waits
}

type round struct {
	ids   []string      // may hold one twice
	begun chan struct{} // closed when no ID is added any more
	done  chan struct{} // closed when the fields below are set
	left  map[string]time.Duration
	err   error
}

func newRounds() *rounds { return &rounds{wake: make(chan struct{}, 1)} }

// maxRound bounds the IDs of one round.
const maxRound = 10_000

// join adds IDs to the next round that has room, and returns the answer about all IDs of the round.
func (r *rounds) join(ctx context.Context, ids ...string) (left map[string]time.Duration, err error) {
	if len(ids) > maxRound {
		return nil, cluster.Errorf(cluster.CodeBusy, "%d renewals are more than %d", len(ids), maxRound)
	}
	unanswered := func() error {
		return cluster.Errorf(cluster.CodeNoLeader, "the leader has not answered in time: %w", context.Cause(ctx))
	}
	next, joined := r.add(ids)
	for !joined { // after a failover many wait for the new leader
		select {
		case <-next.begun:
			next, joined = r.add(ids)
		case <-ctx.Done():
			return nil, unanswered()
		}
	}
	select {
	case r.wake <- struct{}{}:
	default:
	}
	select {
	case <-next.done:
		return next.left, next.err
	case <-ctx.Done():
		return nil, unanswered()
	}
}

// add adds IDs to the next round if it has room, and returns that round.
func (r *rounds) add(ids []string) (next *round, added bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.next == nil {
		r.next = &round{begun: make(chan struct{}), done: make(chan struct{})}
	}
	if len(r.next.ids)+len(ids) > maxRound {
		return r.next, false
	}
	r.next.ids = append(r.next.ids, ids...)
	return r.next, true
}

func (r *rounds) begin() *round {
	r.mu.Lock()
	defer r.mu.Unlock()
	next := r.next
	if r.next = nil; next != nil {
		close(next.begun)
	}
	return next
}

// run asks one question after another until ctx ends. An answer is waited for until the leader changes, and at most for
// twice timeout-max: a leader without a majority has stepped down by then.
func (r *rounds) run(ctx context.Context, leader func() context.Context, limit time.Duration,
	ask func(ctx context.Context, ids []string) (left map[string]time.Duration, err error),
) {
	for {
		select {
		case <-r.wake:
		case <-ctx.Done():
			if q := r.begin(); q != nil {
				q.finish(nil, cluster.Errorf(cluster.CodeNoLeader, "this node is stopping"))
			}
			return
		}
		if q := r.begin(); q != nil {
			asking, cancel := context.WithTimeout(ctx, limit)
			stop := context.AfterFunc(leader(), cancel)
			q.finish(ask(asking, q.ids))
			stop()
			cancel()
		}
	}
}

func (q *round) finish(left map[string]time.Duration, err error) {
	q.left, q.err = left, err
	close(q.done)
}

// Run asks the leader for those who wait, until ctx ends.
func (c *Calls) Run(ctx context.Context) error {
	leader := func() context.Context { return c.Forward.Leader.Current().Changed }
	var loops sync.WaitGroup
	loops.Go(func() { c.reads.run(ctx, leader, 2*c.TimeoutMax, c.readIndexRound) })
	loops.Go(func() { c.renews.run(ctx, leader, 2*c.TimeoutMax, c.renewRound) })
	if c.Call != nil {
		loops.Go(func() { c.subscribe(ctx) })
	}
	loops.Wait()
	return nil
}

// readIndexRound asks for the read index and waits until this node has applied it.
func (c *Calls) readIndexRound(ctx context.Context, _ []string) (map[string]time.Duration, error) {
	index, err := c.leadersIndex(ctx, c.Forward.Leader.Current().ID)
	if err != nil {
		return nil, err
	}
	if err := c.Consensus.AwaitApplied(ctx, index); err != nil {
		return nil, cluster.Errorf(cluster.CodeNoLeader, "this node has not applied index %d in time: %w", index, err)
	}
	return nil, nil
}

// Renewed is what a session has left that was renewed: its TTL.
const Renewed time.Duration = math.MaxInt64

// renewRound renews sessions, here or at the leader, and returns how long those that live have left at least.
func (c *Calls) renewRound(ctx context.Context, ids []string) (map[string]time.Duration, error) {
	leader, got, err := c.Forward.Leader.Current().ID, message{}, error(nil)
	if leader == c.Forward.Self {
		got, err = c.renewHere(ctx, ids)
	} else {
		got, err = c.ask(ctx, leader, renew, message{IDs: ids})
	}
	left := make(map[string]time.Duration, len(got.IDs)+len(got.Revoked))
	for _, id := range got.IDs {
		left[id] = Renewed
	}
	for id, ms := range got.Revoked {
		left[id] = time.Duration(ms) * time.Millisecond
	}
	return left, err
}

// renewHere renews sessions. One with a revoked role is not renewed before it acknowledges.
func (c *Calls) renewHere(ctx context.Context, ids []string) (out message, err error) {
	renewed, err := c.Sessions.Renew(ctx, ids)
	for _, s := range renewed.Alive {
		out.IDs = append(out.IDs, s.ID)
	}
	for _, r := range renewed.Revoked {
		if left, lives := c.remainingOf(r.Session); lives {
			if out.Revoked == nil {
				out.Revoked = map[string]int64{}
			}
			out.Revoked[r.Session] = left.Milliseconds()
		}
	}
	return out, err
}
