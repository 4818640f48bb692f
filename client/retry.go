package client

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"
)

const (
	maxInFlight         = 3               // attempts of one call at the same time
	maxOutstanding      = 2 * maxInFlight // including cancelled attempts that have not returned
	firstAttemptTimeout = 2 * time.Second // timeout of the first attempts; doubled after each timeout
	maxAttemptTimeout   = 15 * time.Second
	// forwardGrace is how long a node that holds the request may take to forward it to a new leader. After that,
	// the client sends it to the new leader itself.
	forwardGrace    = 15 * time.Millisecond
	recheckInterval = 25 * time.Millisecond  // period of checks on silent attempts
	cancelWait      = 100 * time.Millisecond // how long to wait for cancelled attempts to report whether they were sent
)

// attempt is one request of a call in progress.
type attempt struct {
	node   string
	start  time.Time
	sent   atomic.Bool
	cancel context.CancelFunc
	lost   bool      // of a long poll: its node is hung, disconnected or without a leader
	a      *response // set when it has ended
}

// retrier makes the attempts of one call until a response is final or the context ends. It belongs to the caller's
// goroutine; each attempt has a goroutine of its own.
//
// The first attempt goes to the leader if it is known, else to any node. After a failed attempt, the next one goes
// to another node: immediately if some node is untried, else after a pause. An attempt that is silent for
// HedgeAfter starts the leader search, which all calls share. The request is sent beside that attempt only if another
// node leads or the node is hung. A local read starts no search: it is sent to another node as well.
//
// Each attempt has a limit, also at a node that works on it: its connection may have broken without a word. At the
// limit the attempt is cancelled, and the next one gets twice the time. A read, or a write with an idempotency key,
// that takes longer than firstAttemptTimeout is therefore sent more than once.
type retrier struct {
	c   *Client
	q   *call
	ctx context.Context

	results       chan *attempt
	outstanding   []*attempt
	tried         map[string]int
	backoffRounds int           // number of pauses so far
	limit         time.Duration // timeout of the next attempt
	maxQueueTime  time.Duration // longest time that a node held an attempt before rejecting it

	mayHaveApplied bool  // some completed attempt may have been applied
	last           error // most specific error of a failed attempt
	lastNoResponse bool  // last is from a node that did not respond

	watching    bool            // has acquired the leader finder
	leader      <-chan struct{} // closed when the leader changes; nil: the call does not follow it
	knownLeader string          // the leader that this call has reacted to

	retryAt, hedgeAt, forwardAt time.Time // zero: not planned

	lossChanges chan *attempt // of a long poll: attempts that are lost now, or no longer
}

// do makes a call. A success is a response with a 2xx status.
func (c *Client) do(ctx context.Context, q *call) (a *response, err error) {
	ctx, cancel := c.callContext(ctx)
	defer cancel()
	r := &retrier{
		c: c, q: q, ctx: ctx, tried: map[string]int{}, limit: firstAttemptTimeout,
		results: make(chan *attempt, maxOutstanding),
	}
	if q.retryClass == nonIdempotentWrite {
		r.limit = maxAttemptTimeout * 4 // a shorter timeout would only make the outcome unknown
	}
	if q.attemptTimeout > 0 {
		r.limit, r.lossChanges = q.attemptTimeout, make(chan *attempt)
	}
	defer r.end()
	if q.numbered {
		end := c.number(q)
		defer func() { end(err) }()
	}
	if !q.internal {
		c.startLeaderStream()
	}
	a, err = r.run()
	if err == nil {
		c.refreshIfStale(q, a)
	}
	return a, err
}

func (r *retrier) run() (*response, error) {
	if r.ctx.Err() != nil {
		return nil, r.deadlineError()
	}
	if r.q.retryClass != localRead && r.lossChanges == nil {
		r.knownLeader, r.leader = r.c.finder.leader()
	}
	r.launch(r.pick())
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		timer.Reset(r.timeToNextAction())
		select {
		case t := <-r.results:
			if done, err := r.handleResult(t); done {
				return t.a, err
			}
		case <-timer.C:
			r.tick(time.Now())
		case <-r.leader:
			r.onLeaderChange(time.Now())
		case t := <-r.lossChanges:
			r.onLossChange(t)
		case <-r.ctx.Done():
			return r.waitCancelled()
		}
	}
}

// end cancels the attempts in progress. Their results stay in the buffer of results, unread.
func (r *retrier) end() {
	for _, t := range r.outstanding {
		t.cancel()
	}
	r.unwatch()
}

func (r *retrier) inUse(node string) bool {
	return slices.ContainsFunc(r.outstanding, func(t *attempt) bool { return t.node == node })
}

// inProgress reports whether an answer is still expected. One of a lost attempt may never come, and the limit of a long
// poll is far away.
func (r *retrier) inProgress() bool {
	return slices.ContainsFunc(r.outstanding, func(t *attempt) bool { return !t.lost })
}

// pick returns a node for the next attempt: one without an attempt, or else one whose attempts are lost; "" if there is
// none.
func (r *retrier) pick() string {
	if node := r.c.pick(r.q, r.tried, r.inUse); node != "" {
		return node
	}
	return r.c.pick(r.q, r.tried, func(node string) bool {
		return slices.ContainsFunc(r.outstanding, func(t *attempt) bool { return t.node == node && !t.lost })
	})
}

// onLossChange notes that an attempt is lost, or no longer. A lost one stays, since its node may answer yet. Another is
// made beside it.
func (r *retrier) onLossChange(t *attempt) {
	if t.lost = !t.lost; !t.lost {
		r.c.nodes.markUp(t.node)
		return
	}
	r.c.nodes.markDown(t.node, time.Now())
	r.launch(r.pick())
}

// launch starts an attempt at a node. If maxInFlight attempts are in progress, it cancels the oldest lost one, or else
// the oldest.
func (r *retrier) launch(node string) {
	if node == "" || len(r.outstanding) >= maxOutstanding || r.deadlineTooClose() {
		return
	}
	if len(r.outstanding) >= maxInFlight {
		lost := slices.IndexFunc(r.outstanding, func(t *attempt) bool { return t.lost })
		r.outstanding[max(0, lost)].cancel()
	}
	now := time.Now()
	ctx, cancel := context.WithTimeout(r.ctx, r.limit)
	t := &attempt{node: node, start: now, cancel: cancel}
	r.outstanding = append(r.outstanding, t)
	r.tried[node]++
	r.retryAt, r.forwardAt = time.Time{}, time.Time{}
	switch {
	case r.q.retryClass == nonIdempotentWrite:
		r.hedgeAt = time.Time{}
	case r.lossChanges != nil: // a silent long poll stays while its node responds and knows a leader
		r.hedgeAt = now.Add(checkInterval)
		c, changes := r.c, r.lossChanges
		c.spawn(func() { c.watchNode(ctx, t, changes) })
	default:
		r.hedgeAt = now.Add(r.c.cfg.HedgeAfter*7/8 + rand.N(r.c.cfg.HedgeAfter/4+1))
	}
	var sent *atomic.Bool
	if r.q.retryClass.write() {
		sent = &t.sent
	}
	results := r.results
	if !r.c.spawn(func() {
		defer cancel()
		t.a = r.c.doAttempt(ctx, r.q, node, sent)
		results <- t
	}) {
		cancel()
		t.a = &response{node: node, err: ErrClosed}
		results <- t
	}
}

// deadlineTooClose reports whether a node would probably hold another attempt until after the deadline. The outcome
// of a write without an idempotency key is then known; another attempt could only make it unknown.
func (r *retrier) deadlineTooClose() bool {
	if r.q.retryClass != nonIdempotentWrite || r.q.hasTimeoutParam {
		return false
	}
	deadline, ok := r.ctx.Deadline()
	return ok && time.Until(deadline) < r.maxQueueTime*3/2
}

// handleResult processes the result of an attempt. done reports that the call ends with err.
func (r *retrier) handleResult(t *attempt) (done bool, err error) {
	r.remove(t)
	if t.a.err != nil && r.ctx.Err() != nil {
		r.mayHaveApplied = r.mayHaveApplied || t.a.sent
		return false, nil // run sees that the context ended
	}
	v := r.c.classify(r.q, t.a)
	r.updateNodes(t, v)
	elsewhere := v.notNorthStar && mayResend(r.q, v.mayHaveApplied)
	switch {
	case v.err == nil:
		return true, nil
	case v.retryable, elsewhere && r.c.nodes.hasUntried(time.Now(), r.tried, r.inUse):
		r.mayHaveApplied = r.mayHaveApplied || (v.mayHaveApplied && r.q.retryClass.write())
		if t.a.err == nil {
			r.maxQueueTime = max(r.maxQueueTime, time.Since(t.start))
		}
		if !v.noResponse || r.last == nil || r.lastNoResponse { // a node's response is more specific than a missing one
			r.last, r.lastNoResponse = r.q.failed(t.a, v.err), v.noResponse
		}
		r.scheduleRetry(v)
		return false, nil
	case r.q.retryClass.write() && (v.mayHaveApplied || (!v.final && r.outcomeUncertain())):
		return true, r.q.unknown(v.err)
	}
	return true, r.q.failed(t.a, v.err)
}

func (r *retrier) remove(t *attempt) {
	r.outstanding = slices.DeleteFunc(r.outstanding, func(x *attempt) bool { return x == t })
}

// outcomeUncertain reports whether some attempt, completed or in progress, may have been applied.
func (r *retrier) outcomeUncertain() bool {
	return r.mayHaveApplied ||
		slices.ContainsFunc(r.outstanding, func(t *attempt) bool { return t.sent.Load() })
}

// updateNodes records in the client's shared state what an attempt showed about its node.
func (r *retrier) updateNodes(t *attempt, v classification) {
	now := time.Now()
	switch {
	case v.notNorthStar:
		r.c.nodes.markDown(t.node, now)
	case !v.noResponse:
		r.c.nodes.markUp(t.node)
	case errors.Is(t.a.err, context.DeadlineExceeded):
		// The node may be slow, not down. An attempt that may take longer keeps its limit after a silent dial.
		r.limit = max(r.limit, min(2*r.limit, maxAttemptTimeout))
	case !errors.Is(t.a.err, context.Canceled):
		r.c.nodes.markDown(t.node, now)
		r.c.finder.markSuspect(t.node, now)
	}
	if v.leader != "" {
		r.c.nodes.add(v.leader)
	}
}

// scheduleRetry plans the next attempt after a failed one.
func (r *retrier) scheduleRetry(v classification) {
	if r.q.retryClass != localRead {
		r.watch()
	}
	if r.inProgress() {
		return // another attempt
	}
	now := time.Now()
	if v.wait == 0 && r.c.nodes.hasUntried(now, r.tried, r.inUse) {
		r.launch(r.pick())
		return
	}
	if v.leader != "" {
		if leader, ok := r.c.nodes.add(v.leader); ok && r.tried[leader] == 0 {
			r.launch(leader)
			return
		}
	}
	r.retryAt = now.Add(backoff(r.backoffRounds, v.wait))
	r.backoffRounds++
}

// timeToNextAction returns the time until the earliest planned action.
func (r *retrier) timeToNextAction() time.Duration {
	next := time.Hour
	for _, at := range []time.Time{r.retryAt, r.hedgeAt, r.forwardAt} {
		if !at.IsZero() {
			next = min(next, time.Until(at))
		}
	}
	return max(next, 0)
}

func (r *retrier) tick(now time.Time) {
	due := func(at *time.Time) bool {
		if at.IsZero() || now.Before(*at) {
			return false
		}
		*at = time.Time{}
		return true
	}
	if due(&r.retryAt) && !r.inProgress() {
		r.launch(r.pick())
	}
	if due(&r.forwardAt) {
		r.launch(r.knownLeader)
	}
	if due(&r.hedgeAt) {
		r.hedge(now)
	}
}

// waitCancelled ends a call whose context has ended. It waits at most cancelWait for the cancelled attempts, to
// learn which of them were sent. One of them may even have succeeded.
func (r *retrier) waitCancelled() (*response, error) {
	tooLate := time.After(cancelWait)
	for len(r.outstanding) > 0 {
		select {
		case t := <-r.results:
			r.remove(t)
			v := r.c.classify(r.q, t.a)
			if v.err == nil || v.final {
				return t.a, v.err
			}
			r.mayHaveApplied = r.mayHaveApplied || v.mayHaveApplied
		case <-tooLate:
			return nil, r.deadlineError()
		}
	}
	return nil, r.deadlineError()
}

// deadlineError returns the error of a call whose context ended. A write that may have been applied is always
// reported as ErrOutcomeUnknown.
func (r *retrier) deadlineError() error {
	err := context.Cause(r.ctx)
	if r.q.retryClass.write() && r.outcomeUncertain() {
		if r.last != nil {
			err = interrupted(r.q.op, err, r.last)
		}
		return r.q.unknown(err)
	}
	return interrupted(r.q.op, err, r.last)
}
