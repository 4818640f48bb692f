package roles

import (
	"container/heap"
	"context"
	"time"

	"northstar/cluster"
	"northstar/state"
)

const (
	turnEvery  = 50 * time.Millisecond  // between two looks at what is due, at the least
	turnAtMost = 250 * time.Millisecond // and at the most: new sessions are taken in then
	endAtOnce  = 500                    // sessions that one command ends
	retryEnd   = 100 * time.Millisecond // after an end of which it is not known whether it was proposed
)

// keepTime looks again and again at what is due until ctx ends.
func (k *Keeper) keepTime(ctx context.Context, r *reign) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-r.early:
		case <-ctx.Done():
			return
		}
		wait, pause := k.turn(r)
		if pause > time.Second {
			k.logger.Warn("this leader was paused: sessions get that time on top", "pause", pause)
		}
		timer.Reset(wait)
	}
}

// turn moves the clock on, and hands over what is due. It gives the time until
// the next turn, and the length of a pause that has just ended.
func (k *Keeper) turn(r *reign) (wait, pause time.Duration) {
	view := k.deps.Consensus.View()
	raw := k.deps.Clock()
	k.mu.Lock()
	defer k.mu.Unlock()
	now := r.clock.read(raw)
	r.expire(now, view)
	wait = turnAtMost
	if len(r.due) > 0 {
		wait = min(wait, r.due[0].key-now)
	}
	if len(r.vacant) > 0 {
		wait = turnEvery
	}
	wait = max(wait, turnEvery)
	pause = r.clock.turn(raw, wait)
	r.takeIn(view, now)
	if len(r.ending) > 0 {
		notify(r.reap)
	}
	if len(r.vacant) > 0 || len(r.suspects) > 0 {
		notify(r.tend)
	}
	return wait, pause
}

// expire moves the sessions whose time is over to ending. The heap is ordered by
// what the deadlines were when it was last looked at: renewals only make them
// later, and do not touch it.
func (r *reign) expire(now time.Duration, view *state.View) {
	for len(r.due) > 0 && r.due[0].key <= now {
		e := r.due[0]
		switch _, lives := view.Session(e.id); {
		case !lives:
			heap.Pop(&r.due)
			delete(r.sessions, e.id)
		case e.deadline > now:
			r.due.move(e, e.deadline)
		case e.pending > 0 && len(view.Revocations(e.id)) == 0: // else they will not renew it
			r.due.move(e, now+turnEvery)
		default:
			r.endNow(e)
		}
	}
}

// endNow begins to end a session.
func (r *reign) endNow(e *entry) {
	r.due.remove(e)
	e.end = &ending{done: make(chan struct{})}
	r.ending = append(r.ending, e)
}

// reapAll proposes the ends of sessions until ctx ends.
func (k *Keeper) reapAll(ctx context.Context, r *reign) {
	for {
		select {
		case <-r.reap:
		case <-ctx.Done():
			return
		}
		for ctx.Err() == nil {
			batch, cause := k.nextEnding(r)
			if batch == nil {
				break
			}
			k.endSessions(ctx, r, batch, cause)
		}
	}
}

// nextEnding takes sessions to be ended by one command.
func (k *Keeper) nextEnding(r *reign) (batch []*entry, cause state.Cause) {
	k.mu.Lock()
	defer k.mu.Unlock()
	rest := r.ending[:0]
	for _, e := range r.ending {
		if len(batch) == 0 {
			cause = e.cause
		}
		if e.cause == cause && len(batch) < endAtOnce {
			batch = append(batch, e)
		} else {
			rest = append(rest, e)
		}
	}
	clear(r.ending[len(rest):])
	r.ending = rest
	return batch, cause
}

// endSessions ends sessions through the log. While it is not known whether the
// command takes effect, they neither live on nor have ended: it is proposed until
// that is known, or the reign is over.
func (k *Keeper) endSessions(ctx context.Context, r *reign, batch []*entry, cause state.Cause) {
	cmd := state.Command{Kind: state.KindSessionEnd, SessionEnd: &state.SessionEnd{Cause: cause}}
	for _, e := range batch {
		cmd.SessionEnd.IDs = append(cmd.SessionEnd.IDs, e.id)
	}
	unknown := false
	for {
		_, err := k.deps.Consensus.Propose(ctx, cmd)
		if err == nil {
			// Refused only when none of them lives any more.
			k.settleEnd(r, batch, true)
			k.logger.Debug("sessions ended", "cause", cause, "sessions", len(batch))
			return
		}
		unknown = unknown || cluster.IsCode(err, cluster.CodeOutcomeUnknown)
		if !unknown {
			k.settleEnd(r, batch, false)
			return
		}
		if !sleep(ctx, retryEnd) {
			return // finish tells who waits
		}
	}
}

// settleEnd tells what became of the end of sessions. Those that live on are
// looked at again soon.
func (k *Keeper) settleEnd(r *reign, batch []*entry, ended bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := r.clock.read(k.deps.Clock())
	for _, e := range batch {
		e.end.ended = ended
		close(e.end.done)
		e.end = nil
		if ended {
			delete(r.sessions, e.id)
			continue
		}
		e.key = now + turnEvery
		r.due.push(e)
	}
}

// sleep waits for d; false when ctx ended before.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// dueHeap orders entries by key.
type dueHeap []*entry

func (h dueHeap) Len() int           { return len(h) }
func (h dueHeap) Less(i, j int) bool { return h[i].key < h[j].key }
func (h dueHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

// Push is for container/heap.
func (h *dueHeap) Push(x any) {
	e := x.(*entry)
	e.index = len(*h)
	*h = append(*h, e)
}

// Pop is for container/heap.
func (h *dueHeap) Pop() any {
	old := *h
	e := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	e.index = -1
	return e
}

func (h *dueHeap) push(e *entry) { heap.Push(h, e) }

func (h *dueHeap) remove(e *entry) { heap.Remove(h, e.index) }

func (h *dueHeap) move(e *entry, key time.Duration) {
	e.key = key
	heap.Fix(h, e.index)
}
