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

// maxRenewRequests bounds the renewal requests of one client that are in flight. With full batches, that is enough
// for 64,000 sessions.
const maxRenewRequests = 64

// errNotInResponse is the error of a session that the response does not mention.
var errNotInResponse = errors.New("response does not mention the session")

// renewer renews the sessions of one client. Each session is due at its own time; sessions that are nearly due join
// the same request. Requests do not wait for each other, up to maxRenewRequests.
type renewer struct {
	c    *Client
	wake chan struct{} // capacity 1

	mu       sync.Mutex
	entries  map[*Session]*renewalEntry
	inFlight int       // requests in flight; the end of each wakes run
	running  bool      // whether run is active: while there are sessions
	nextWake time.Time // when run continues unless it is woken
}

// renewalEntry is the schedule of one session. It is guarded by renewer.mu.
type renewalEntry struct {
	s          *Session
	due        time.Time
	renewing   bool // a request for it is in flight
	lastResult renewResult
}

// renewResult is the result of a session's last renewal. Only sessions with the same result share a request, so
// that a failure does not spread.
type renewResult int

const (
	renewSucceeded renewResult = iota
	renewFailed                // the whole cluster may be slow: more requests would not help
	renewAlone                 // a request for several was rejected: the next one is for this session alone
)

// add schedules a session for renewal until drop.
func (r *renewer) add(s *Session) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := &renewalEntry{s: s, due: time.Now().Add(s.renewInterval())}
	r.entries[s] = e
	if !r.running {
		r.running = r.c.spawn(r.run)
	}
	r.wakeBefore(e.due)
}

func (r *renewer) drop(s *Session) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.entries, s)
	if len(r.entries) == 0 {
		r.wakeBefore(time.Time{})
	}
}

// wakeBefore wakes run if it would continue later than due. The caller holds mu.
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

// run renews until no session is left or the client is closed.
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

// due returns the sessions to renew now, one batch for each request, and the time until the next check. more is
// false if no session is left; then run ends.
func (r *renewer) due(now time.Time) (batches [][]*renewalEntry, wait time.Duration, more bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.entries) == 0 {
		r.running = false
		return nil, 0, false
	}
	var idle []*renewalEntry
	for _, e := range r.entries {
		if !e.renewing {
			idle = append(idle, e)
		}
	}
	batches = planBatches(idle, now, maxRenewRequests-r.inFlight)
	r.inFlight += len(batches)
	for _, batch := range batches {
		for _, e := range batch {
			e.renewing = true
		}
	}
	r.nextWake = now.Add(time.Hour)
	for _, e := range idle {
		if !e.renewing && r.inFlight < maxRenewRequests && e.due.Before(r.nextWake) {
			r.nextWake = e.due
		}
	}
	return batches, r.nextWake.Sub(now), true
}

// planBatches returns the sessions to renew now, at most maxBatches batches. The first session of a batch is the
// due session with the shortest TTL. Others join a thirtieth of their TTL early, if that is at most twice as long: the
// timeout of a request is that of its first session.
func planBatches(idle []*renewalEntry, now time.Time, maxBatches int) (batches [][]*renewalEntry) {
	var ready []*renewalEntry
	for _, e := range idle {
		if !now.Before(e.due.Add(-e.s.confirmedTTL() / 30)) {
			ready = append(ready, e)
		}
	}
	slices.SortFunc(ready, func(a, b *renewalEntry) int {
		return cmp.Or(cmp.Compare(a.s.confirmedTTL(), b.s.confirmedTTL()), a.due.Compare(b.due))
	})
	for len(batches) < maxBatches {
		first := slices.IndexFunc(ready, func(e *renewalEntry) bool { return !now.Before(e.due) })
		if first < 0 {
			break
		}
		var batch []*renewalEntry
		batch, ready = fillBatch(ready, first)
		batches = append(batches, batch)
	}
	return batches
}

// fillBatch returns the batch of the session at i, and the sessions that remain.
func fillBatch(ready []*renewalEntry, i int) (batch, rest []*renewalEntry) {
	first := ready[i]
	batch, rest = []*renewalEntry{first}, ready[:i]
	for _, e := range ready[i+1:] {
		if e.lastResult == first.lastResult && e.lastResult != renewAlone &&
			e.s.confirmedTTL() <= 2*first.s.confirmedTTL() && len(batch) < apiv1.MaxRenewals {
			batch = append(batch, e)
		} else {
			rest = append(rest, e)
		}
	}
	return batch, rest
}

// renew makes one request. Each session's lease counts from before the request was sent.
func (r *renewer) renew(ctx context.Context, batch []*renewalEntry) {
	limit, cancel := context.WithTimeout(ctx, batch[0].s.renewTimeout())
	defer cancel()
	ids, sent := make([]string, len(batch)), make([]time.Duration, len(batch))
	for i, e := range batch {
		ids[i], sent[i] = e.s.id, e.s.deadline.Now()
	}
	errs, last := r.c.renewEach(limit, ids)
	next := make(map[*renewalEntry]time.Duration, len(batch))
	var revocations sync.WaitGroup
	defer revocations.Wait()
	for i, e := range batch {
		if errors.Is(errs[i], ErrFenced) {
			revocations.Go(func() {
				r.reschedule(0, last, map[*renewalEntry]time.Duration{e: e.s.handleRevocation(ctx)})
			})
		} else {
			next[e] = e.s.renewed(sent[i], errs[i])
		}
	}
	r.reschedule(1, last, next)
}

// reschedule sets when sessions are due again, in one step, so that they stay in one batch. requests is the number
// of requests that have ended.
func (r *renewer) reschedule(requests int, last renewResult, after map[*renewalEntry]time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.inFlight -= requests
	now := time.Now()
	for e, d := range after {
		e.renewing, e.lastResult, e.due = false, last, now.Add(d)
	}
	r.wakeBefore(time.Time{})
}

// renewEach renews sessions in one request and returns the error of each. An error of a request for several
// sessions is not evidence about any of them.
func (c *Client) renewEach(ctx context.Context, ids []string) (errs []error, last renewResult) {
	errs = make([]error, len(ids))
	if len(ids) == 1 {
		_, errs[0] = c.renewSession(ctx, ids[0], true)
		return errs, classifyRenewal(errs[0], 1)
	}
	got, err := c.renewSessions(ctx, ids, true)
	named := make(map[string]error, len(ids))
	for _, id := range got.Renewed {
		named[id] = nil
	}
	for _, id := range got.Ended {
		named[id] = notRenewed(id, cluster.CodeSessionEnded, "not alive")
	}
	for _, p := range got.Revoked {
		named[p.SessionID] = notRenewed(p.SessionID, cluster.CodeFenced, "role "+p.Role+" was revoked")
	}
	for i, id := range ids {
		var ok bool
		if errs[i], ok = named[id]; !ok {
			errs[i] = errNotInResponse
		}
	}
	return errs, classifyRenewal(err, len(ids))
}

// classifyRenewal returns the result of a request for n sessions.
func classifyRenewal(err error, n int) renewResult {
	switch {
	case err == nil, errors.Is(err, ErrFenced):
		return renewSucceeded
	case n > 1 && isPermanent(err):
		return renewAlone
	}
	return renewFailed
}

// notRenewed returns the error that a request for this session alone would have had.
func notRenewed(id string, code cluster.Code, why string) error {
	return &Error{Op: "renew session " + id, Problem: cluster.Errorf(code, "%s", why)}
}

// renewed processes the result of a renewal and returns the time until the next one. sent is when the request was
// sent, by the session's clock.
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

// renewInterval returns the time between two successful renewals.
func (s *Session) renewInterval() time.Duration { return jitter(s.confirmedTTL() / 3) }

// retryDelay returns the pause after a failed renewal. It is shorter than renewInterval, unless the lease has
// lapsed already.
func (s *Session) retryDelay() time.Duration {
	d := min(max(s.confirmedTTL()/10, 50*time.Millisecond), time.Second)
	if s.deadline.ValidFor() == 0 {
		d = time.Second
	}
	return jitter(d)
}

// renewTimeout returns the timeout of one renewal: a third of the TTL, so that there is time for a second one. It
// leaves enough time to find another node.
func (s *Session) renewTimeout() time.Duration {
	return min(max(s.confirmedTTL()/3, min(2*s.c.cfg.HedgeAfter, s.confirmedTTL()/2)), maxRenewTimeout)
}
