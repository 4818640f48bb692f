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

// maxRenewRequests bounds the requests of one client that renew sessions at the same time.
// It takes 64,000 sessions that all wait for a slow cluster to reach it.
const maxRenewRequests = 64

// errNotInResponse is why a session counts as not renewed: nobody said anything of it.
var errNotInResponse = errors.New("no answer names the session")

// renewer renews the sessions of one client. Each is due at its own time, and those
// that are nearly due go along in the same request. No request waits for another,
// unless there are maxRenewRequests.
type renewer struct {
	c    *Client
	wake chan struct{} // capacity 1

	mu       sync.Mutex
	entries  map[*Session]*renewalEntry
	inFlight int       // requests under way; the end of each wakes run
	running  bool      // run is, as long as there are sessions
	nextWake time.Time // when run looks again, unless it is woken
}

// renewalEntry is when a session is to be renewed. It is guarded by renewals.mu.
type renewalEntry struct {
	s          *Session
	due        time.Time
	renewing   bool // it is being renewed
	lastResult renewResult
}

// renewResult is what became of a session's last renewal. Only those of the same standing
// are renewed together, so that what one request fails of does not spread.
type renewResult int

const (
	renewSucceeded renewResult = iota
	renewFailed                // perhaps the whole cluster is slow: more requests would not help
	renewAlone                 // it was refused with others: the next request is for it alone
)

func newRenewer(c *Client) *renewer {
	return &renewer{c: c, wake: make(chan struct{}, 1), entries: map[*Session]*renewalEntry{}}
}

// add has a session renewed until drop.
func (r *renewer) add(s *Session) {
	r.mu.Lock()
	defer r.mu.Unlock()
	t := &renewalEntry{s: s, due: time.Now().Add(s.renewInterval())}
	r.entries[s] = t
	if !r.running {
		r.running = r.c.spawn(r.run)
	}
	r.wakeBefore(t.due)
}

func (r *renewer) drop(s *Session) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.entries, s)
	if len(r.entries) == 0 {
		r.wakeBefore(time.Time{})
	}
}

// wake wakes run where it would look later than due. The caller holds mu.
func (r *renewer) wakeBefore(due time.Time) {
	if !due.Before(r.nextWake) {
		return
	}
	r.nextWake = due
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// run renews until there is no session left, or the client is closed.
func (r *renewer) run() {
	ctx, cancel := context.WithCancel(r.c.ctx)
	var requests sync.WaitGroup
	defer requests.Wait()
	defer cancel()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		batches, wait, more := r.due(time.Now())
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

// handleResult gives what is to be renewed now, a request each, and how long to wait before
// the next look; more is false when no session is left, and run ends.
func (r *renewer) due(now time.Time) (batches [][]*renewalEntry, wait time.Duration, more bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.entries) == 0 {
		r.running = false
		return nil, 0, false
	}
	var idle []*renewalEntry
	for _, t := range r.entries {
		if !t.renewing {
			idle = append(idle, t)
		}
	}
	batches = planBatches(idle, now, maxRenewRequests-r.inFlight)
	r.inFlight += len(batches)
	for _, batch := range batches {
		for _, t := range batch {
			t.renewing = true
		}
	}
	r.nextWake = now.Add(time.Hour)
	for _, t := range idle {
		if !t.renewing && r.inFlight < maxRenewRequests && t.due.Before(r.nextWake) {
			r.nextWake = t.due
		}
	}
	return batches, r.nextWake.Sub(now), true
}

// planBatches decides which sessions are renewed now, and which in the same request: at
// most so many requests, each for the session with the shortest TTL of those that are
// due, and others that nearly are. Their TTL is not shorter and at most twice as long,
// since a request is given the time that its first session has: so nobody waits longer
// for the sake of others, or gives up much earlier.
func planBatches(idle []*renewalEntry, now time.Time, most int) (batches [][]*renewalEntry) {
	var ready []*renewalEntry
	for _, t := range idle {
		if !now.Before(t.due.Add(-t.s.earlyWindow())) {
			ready = append(ready, t)
		}
	}
	slices.SortFunc(ready, func(a, b *renewalEntry) int {
		return cmp.Or(cmp.Compare(a.s.confirmedTTL(), b.s.confirmedTTL()), a.due.Compare(b.due))
	})
	for len(batches) < most {
		first := slices.IndexFunc(ready, func(t *renewalEntry) bool { return !now.Before(t.due) })
		if first < 0 {
			break
		}
		var batch []*renewalEntry
		batch, ready = fillBatch(ready, first)
		batches = append(batches, batch)
	}
	return batches
}

// fillBatch gives who is renewed with the session at i, and who remains.
func fillBatch(ready []*renewalEntry, i int) (batch, rest []*renewalEntry) {
	first := ready[i]
	batch, rest = []*renewalEntry{first}, ready[:i]
	for _, t := range ready[i+1:] {
		if t.lastResult == first.lastResult && t.lastResult != renewAlone && t.s.confirmedTTL() <= 2*first.s.confirmedTTL() && len(batch) < apiv1.MaxRenewals {
			batch = append(batch, t)
		} else {
			rest = append(rest, t)
		}
	}
	return batch, rest
}

// renew makes one request. Each session counts from before that was sent.
func (r *renewer) renew(ctx context.Context, batch []*renewalEntry) {
	limit, cancel := context.WithTimeout(ctx, batch[0].s.renewTimeout())
	defer cancel()
	ids, sent := make([]string, len(batch)), make([]time.Duration, len(batch))
	for i, t := range batch {
		ids[i], sent[i] = t.s.id, t.s.deadline.Now()
	}
	errs, last := r.c.renewEach(limit, ids)
	again := make(map[*renewalEntry]time.Duration, len(batch))
	var heeding sync.WaitGroup
	defer heeding.Wait()
	for i, t := range batch {
		if errors.Is(errs[i], ErrFenced) {
			heeding.Go(func() { r.reschedule(0, last, map[*renewalEntry]time.Duration{t: t.s.handleRevocation(ctx)}) })
		} else {
			again[t] = t.s.renewed(sent[i], errs[i])
		}
	}
	r.reschedule(1, last, again)
}

// reschedule makes sessions due again, each after its time, all at once, so that they stay
// together. So many requests have ended.
func (r *renewer) reschedule(requests int, last renewResult, after map[*renewalEntry]time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.inFlight -= requests
	now := time.Now()
	for t, d := range after {
		t.renewing, t.lastResult, t.due = false, last, now.Add(d)
	}
	r.wakeBefore(time.Time{})
}

// renewEach renews sessions in one request and gives for each why it was not. An error
// of a request for several is no word on any of them.
func (c *Client) renewEach(ctx context.Context, ids []string) (errs []error, last renewResult) {
	errs = make([]error, len(ids))
	if len(ids) == 1 {
		_, errs[0] = c.RenewSession(ctx, ids[0])
		return errs, classifyRenewal(errs[0], 1)
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
			e = errNotInResponse
		}
		errs[i] = e
	}
	return errs, classifyRenewal(err, len(ids))
}

// classifyRenewal judges a request for n sessions.
func classifyRenewal(err error, n int) renewResult {
	switch {
	case err == nil, errors.Is(err, ErrFenced):
		return renewSucceeded
	case n > 1 && isPermanent(err):
		return renewAlone
	}
	return renewFailed
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
		return max(0, s.renewInterval()-(s.deadline.Now()-sent))
	case errors.Is(err, ErrSessionEnded):
		s.markEnded(err)
	}
	return s.retryDelay()
}

// renewInterval is the time between two renewals that succeed.
func (s *Session) renewInterval() time.Duration { return jitter(s.confirmedTTL() / 3) }

// earlyWindow is how long before its time a session may go along with others.
func (s *Session) earlyWindow() time.Duration { return s.confirmedTTL() / 30 }

// scheduleRetry is the time from one that failed to the next: less, unless it is too late
// anyway.
func (s *Session) retryDelay() time.Duration {
	d := min(max(s.confirmedTTL()/10, 50*time.Millisecond), time.Second)
	if s.deadline.ValidFor() == 0 {
		d = time.Second
	}
	return jitter(d)
}

// attemptTimeout is what one renewal may take: a third of what it would give, so that
// there is time for a second, but long enough to find another node meanwhile.
func (s *Session) renewTimeout() time.Duration {
	return min(max(s.confirmedTTL()/3, min(2*s.c.cfg.HedgeAfter, s.confirmedTTL()/2)), maxRenewTimeout)
}
