package client

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"northstar/api/apiv1"
	"northstar/cluster"
)

// renewAtOnce bounds the requests of one client that renew sessions at the same time.
// It takes 64,000 sessions that all wait for a slow cluster to reach it.
const renewAtOnce = 64

// errNotNamed is why a session counts as not renewed: nobody said anything of it.
var errNotNamed = errors.New("no answer names the session")

// renewals renews the sessions of one client. Each is due at its own time, and those
// that are nearly due go along in the same request. No request waits for another,
// unless there are renewAtOnce.
type renewals struct {
	c    *Client
	wake chan struct{} // capacity 1

	mu      sync.Mutex
	turns   map[*Session]*turn
	flying  int       // requests under way; the end of each wakes run
	running bool      // run is, as long as there are sessions
	next    time.Time // when run looks again, unless it is woken
}

// turn is when a session is to be renewed. It is guarded by renewals.mu.
type turn struct {
	s      *Session
	due    time.Time
	flying bool // it is being renewed
	last   standing
}

// standing is what became of a session's last renewal. Only those of the same standing
// are renewed together, so that what one request fails of does not spread.
type standing int

const (
	healthy standing = iota
	failed           // perhaps the whole cluster is slow: more requests would not help
	alone            // it was refused with others: the next request is for it alone
)

func newRenewals(c *Client) *renewals {
	return &renewals{c: c, wake: make(chan struct{}, 1), turns: map[*Session]*turn{}}
}

// add has a session renewed until drop.
func (r *renewals) add(s *Session) {
	r.mu.Lock()
	defer r.mu.Unlock()
	t := &turn{s: s, due: time.Now().Add(s.every())}
	r.turns[s] = t
	if !r.running {
		r.running = r.c.spawn(r.run)
	}
	r.stir(t.due)
}

func (r *renewals) drop(s *Session) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.turns, s)
	if len(r.turns) == 0 {
		r.stir(time.Time{})
	}
}

// stir wakes run where it would look later than due. The caller holds mu.
func (r *renewals) stir(due time.Time) {
	if !due.Before(r.next) {
		return
	}
	r.next = due
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// run renews until there is no session left, or the client is closed.
func (r *renewals) run() {
	ctx, cancel := context.WithCancel(r.c.ctx)
	var requests sync.WaitGroup
	defer requests.Wait()
	defer cancel()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		batches, wait, more := r.take(time.Now())
		if !more {
			return
		}
		for _, batch := range batches {
			requests.Go(func() { r.renew(ctx, batch) })
		}
		timer.Reset(wait)
		select {
		case <-timer.C:
		case <-r.wake:
		case <-ctx.Done():
			return
		}
	}
}

// take gives what is to be renewed now, a request each, and how long to wait before
// the next look; more is false when no session is left, and run ends.
func (r *renewals) take(now time.Time) (batches [][]*turn, wait time.Duration, more bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.turns) == 0 {
		r.running = false
		return nil, 0, false
	}
	var idle []*turn
	for _, t := range r.turns {
		if !t.flying {
			idle = append(idle, t)
		}
	}
	batches = together(idle, now, renewAtOnce-r.flying)
	r.flying += len(batches)
	for _, batch := range batches {
		for _, t := range batch {
			t.flying = true
		}
	}
	r.next = now.Add(time.Hour)
	for _, t := range idle {
		if !t.flying && r.flying < renewAtOnce && t.due.Before(r.next) {
			r.next = t.due
		}
	}
	return batches, r.next.Sub(now), true
}

// together decides which sessions are renewed now, and which in the same request: at
// most so many requests, each for the session with the shortest TTL of those that are
// due, and others that nearly are. Their TTL is not shorter and at most twice as long,
// since a request is given the time that its first session has: so nobody waits longer
// for the sake of others, or gives up much earlier.
func together(idle []*turn, now time.Time, most int) (batches [][]*turn) {
	var ready []*turn
	for _, t := range idle {
		if !now.Before(t.due.Add(-t.s.early())) {
			ready = append(ready, t)
		}
	}
	slices.SortFunc(ready, func(a, b *turn) int {
		return cmp.Or(cmp.Compare(a.s.granted(), b.s.granted()), a.due.Compare(b.due))
	})
	for len(batches) < most {
		first := slices.IndexFunc(ready, func(t *turn) bool { return !now.Before(t.due) })
		if first < 0 {
			break
		}
		var batch []*turn
		batch, ready = along(ready, first)
		batches = append(batches, batch)
	}
	return batches
}

// along gives who is renewed with the session at i, and who remains.
func along(ready []*turn, i int) (batch, rest []*turn) {
	first := ready[i]
	batch, rest = []*turn{first}, ready[:i]
	for _, t := range ready[i+1:] {
		if t.last == first.last && t.last != alone && t.s.granted() <= 2*first.s.granted() && len(batch) < apiv1.MaxRenewals {
			batch = append(batch, t)
		} else {
			rest = append(rest, t)
		}
	}
	return batch, rest
}

// renew makes one request. Each session counts from before that was sent.
func (r *renewals) renew(ctx context.Context, batch []*turn) {
	limit, cancel := context.WithTimeout(ctx, batch[0].s.patience())
	defer cancel()
	ids, sent := make([]string, len(batch)), make([]time.Duration, len(batch))
	for i, t := range batch {
		ids[i], sent[i] = t.s.id, t.s.deadline.Now()
	}
	errs, last := r.c.renewEach(limit, ids)
	again := make(map[*turn]time.Duration, len(batch))
	var heeding sync.WaitGroup
	defer heeding.Wait()
	for i, t := range batch {
		if errors.Is(errs[i], ErrFenced) {
			heeding.Go(func() { r.back(0, last, map[*turn]time.Duration{t: t.s.heedTaken(ctx)}) })
		} else {
			again[t] = t.s.renewed(sent[i], errs[i])
		}
	}
	r.back(1, last, again)
}

// back makes sessions due again, each after its time, all at once, so that they stay
// together. So many requests have ended.
func (r *renewals) back(requests int, last standing, after map[*turn]time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.flying -= requests
	now := time.Now()
	for t, d := range after {
		t.flying, t.last, t.due = false, last, now.Add(d)
	}
	r.stir(time.Time{})
}

// renewEach renews sessions in one request and gives for each why it was not. An error
// of a request for several is no word on any of them.
func (c *Client) renewEach(ctx context.Context, ids []string) (errs []error, last standing) {
	errs = make([]error, len(ids))
	if len(ids) == 1 {
		_, errs[0] = c.RenewSession(ctx, ids[0])
		return errs, standingOf(errs[0], 1)
	}
	got, err := c.RenewSessions(ctx, ids)
	named := make(map[string]error, len(ids))
	for _, id := range got.Renewed {
		named[id] = nil
	}
	for _, id := range got.Ended {
		named[id] = notRenewed(id, cluster.CodeSessionEnded, "it does not live")
	}
	for _, p := range got.Revoked {
		named[p.SessionID] = notRenewed(p.SessionID, cluster.CodeFenced, "role "+p.Role+" was taken from it")
	}
	for i, id := range ids {
		e, ok := named[id]
		if !ok {
			e = errNotNamed
		}
		errs[i] = e
	}
	return errs, standingOf(err, len(ids))
}

// standingOf judges a request for n sessions.
func standingOf(err error, n int) standing {
	switch {
	case err == nil, errors.Is(err, ErrFenced):
		return healthy
	case n > 1 && refused(err):
		return alone
	}
	return failed
}

// notRenewed is what the answer for one session alone would have been.
func notRenewed(id string, code cluster.Code, why string) error {
	return &Error{Op: "renew session " + id, Problem: cluster.Errorf(code, "%s", why)}
}

// renewed takes the answer to a renewal and gives the time until the next one. sent is
// when it was sent, by the session's clock.
func (s *Session) renewed(sent time.Duration, err error) time.Duration {
	switch {
	case err == nil:
		s.deadline.Extend(sent, s.lifetime())
		return max(0, s.every()-(s.deadline.Now()-sent))
	case errors.Is(err, ErrSessionEnded):
		s.lost(err)
	}
	return s.again()
}

// every is the time between two renewals that succeed.
func (s *Session) every() time.Duration { return jitter(s.granted() / 3) }

// early is how long before its time a session may go along with others.
func (s *Session) early() time.Duration { return s.granted() / 30 }

// again is the time from one that failed to the next: less, unless it is too late
// anyway.
func (s *Session) again() time.Duration {
	d := min(max(s.granted()/10, 50*time.Millisecond), time.Second)
	if s.deadline.ValidFor() == 0 {
		d = time.Second
	}
	return jitter(d)
}

// patience is what one renewal may take: a third of what it would give, so that
// there is time for a second, but long enough to find another node meanwhile.
func (s *Session) patience() time.Duration {
	return min(max(s.granted()/3, min(2*s.c.cfg.HedgeAfter, s.granted()/2)), renewLimit)
}
