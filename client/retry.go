package client

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync/atomic"
	"time"
)

const (
	maxInFlight         = 3                      // tries of one call at the same time
	maxOutstanding      = 2 * maxInFlight        // with those cancelled that have not returned yet
	maxAttempts         = 200                    // of one call, should its deadline be very far
	firstAttemptTimeout = 2 * time.Second        // deadline of the first tries; doubled as they run out
	maxAttemptTimeout   = 15 * time.Second       //
	forwardGrace        = 15 * time.Millisecond  // a node that holds the request gets this long to forward it to a new leader, before this client sends it there itself
	recheckInterval     = 25 * time.Millisecond  // how often a call whose tries are silent looks again
	cancelWait          = 100 * time.Millisecond // for cancelled tries to say whether they were sent
)

// attempt is one request of a call that is under way.
type attempt struct {
	node   string
	start  time.Time
	sent   atomic.Bool
	cancel context.CancelFunc
}

type outcome struct {
	t *attempt
	a *response
}

// retrier takes one call through its tries until an answer settles it or its
// context ends. It belongs to the goroutine of the caller; each try has a
// goroutine that ends with it.
//
// The tries: the first goes to the leader when it is known, else to any node,
// which forwards it, or holds it while there is no leader. A try that fails is
// followed by one at another node, at once as long as some node has not been
// tried, else after a pause. A try that is silent for HedgeAfter starts a
// look-out for the leader, shared by all calls: the request is sent a second
// time only when that shows another leader, or that the node is hung. A slow
// cluster is thus never burdened with copies of what it is working on.
type retrier struct {
	c   *Client
	q   *call
	ctx context.Context

	results       chan outcome
	outstanding   []*attempt
	tried         map[string]int
	attempts      int
	backoffRounds int           // pauses taken so far
	limit         time.Duration // deadline of the next try
	maxQueueTime  time.Duration // longest time that a node kept a try before it turned it away

	mayHaveApplied bool  // some ended try may have taken effect
	last           error // of a failed try, the most telling
	lastNoResponse bool  // last is from a node that did not answer

	watching    bool            // has entered the finder
	leader      <-chan struct{} // closed when the leader changes; nil while not watching
	knownLeader string          // the leader this flight has reacted to

	retryAt, hedgeAt, forwardAt time.Time // zero: not planned

	lostAttempts chan *attempt // of a patient call: whose node is hung or has lost the cluster
}

// do takes a call through; a success is an answer with a 2xx status.
func (c *Client) do(ctx context.Context, q *call) (*response, error) {
	ctx, cancel := c.callContext(ctx)
	defer cancel()
	f := &retrier{c: c, q: q, ctx: ctx, results: make(chan outcome, maxOutstanding), tried: map[string]int{}, limit: firstAttemptTimeout}
	if q.retryClass == nonIdempotentWrite {
		f.limit = maxAttemptTimeout * 4 // cutting it short would only make its outcome unknown
	}
	if q.attemptTimeout > 0 {
		f.limit, f.lostAttempts = q.attemptTimeout, make(chan *attempt, maxAttempts)
	}
	defer f.end()
	a, err := f.run()
	if err == nil {
		c.refreshIfStale(q, a)
	}
	return a, err
}

func (f *retrier) run() (*response, error) {
	if f.ctx.Err() != nil {
		return nil, f.deadlineError()
	}
	f.launch(f.pick())
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		timer.Reset(f.timeToNextAction())
		select {
		case o := <-f.results:
			if done, err := f.handleResult(o); done {
				return o.a, err
			}
		case <-timer.C:
			f.tick(time.Now())
		case <-f.leader:
			f.onLeaderChange(time.Now())
		case t := <-f.lostAttempts:
			f.retryElsewhere(t, time.Now())
		case <-f.ctx.Done():
			return f.waitCancelled()
		}
	}
}

// end cancels what is still under way. The answers land in the buffer of
// results, where nobody reads them.
func (f *retrier) end() {
	for _, t := range f.outstanding {
		t.cancel()
	}
	f.unwatch()
}

func (f *retrier) inUse(node string) bool {
	for _, t := range f.outstanding {
		if t.node == node {
			return true
		}
	}
	return false
}

func (f *retrier) pick() string {
	leader := ""
	if f.q.retryClass != localRead {
		leader, _ = f.c.finder.leader()
	}
	return f.c.nodes.pick(time.Now(), leader, f.tried, f.inUse)
}

// launch starts a try at a node. A fourth at the same time ends the oldest,
// whose outcome then counts as any cancelled try's.
func (f *retrier) launch(node string) {
	if node == "" || f.attempts >= maxAttempts || len(f.outstanding) >= maxOutstanding || f.deadlineTooClose() {
		return
	}
	if len(f.outstanding) >= maxInFlight {
		f.outstanding[0].cancel()
	}
	now := time.Now()
	ctx, cancel := context.WithTimeout(f.ctx, f.limit)
	t := &attempt{node: node, start: now, cancel: cancel}
	f.outstanding = append(f.outstanding, t)
	f.tried[node]++
	f.attempts++
	f.retryAt, f.forwardAt = time.Time{}, time.Time{}
	switch {
	case f.q.retryClass == nonIdempotentWrite:
		f.hedgeAt = time.Time{}
	case f.lostAttempts != nil:
		f.hedgeAt = now.Add(checkInterval)
		f.monitorNode(ctx, t)
	default:
		f.hedgeAt = now.Add(f.c.cfg.HedgeAfter*7/8 + rand.N(f.c.cfg.HedgeAfter/4+1))
	}
	var sent *atomic.Bool
	if f.q.retryClass.write() {
		sent = &t.sent
	}
	results := f.results
	ok := f.c.spawn(func() {
		defer cancel()
		results <- outcome{t, f.c.doAttempt(ctx, f.q, node, sent)}
	})
	if !ok {
		cancel()
		results <- outcome{t, &response{node: node, err: ErrClosed}}
	}
}

// deadlineTooClose says that a node that holds the request for as long as the last ones did
// would not answer before the deadline. A write that must not be sent twice is
// then known not to have happened; another try would only make that unknown.
func (f *retrier) deadlineTooClose() bool {
	if f.q.retryClass != nonIdempotentWrite || f.q.hasTimeoutParam {
		return false
	}
	deadline, ok := f.ctx.Deadline()
	return ok && time.Until(deadline) < f.maxQueueTime*3/2
}

// handleResult judges an answer. done says that the call is over, with err.
func (f *retrier) handleResult(o outcome) (done bool, err error) {
	f.remove(o.t)
	if o.a.err != nil && f.ctx.Err() != nil {
		f.mayHaveApplied = f.mayHaveApplied || o.a.sent
		return false, nil // the loop sees that the context ended
	}
	v := classify(f.q, o.a)
	f.updateNodes(o, v)
	switch {
	case v.err == nil:
		return true, nil
	case v.retryable, v.notNorthStar && f.c.nodes.hasUntried(time.Now(), f.tried, f.inUse):
		f.mayHaveApplied = f.mayHaveApplied || (v.mayHaveApplied && f.q.retryClass.write())
		if o.a.err == nil {
			f.maxQueueTime = max(f.maxQueueTime, time.Since(o.t.start))
		}
		if !v.noResponse || f.last == nil || f.lastNoResponse { // what a node said tells more than that one was not there
			f.last, f.lastNoResponse = f.q.failed(o.a, v.err), v.noResponse
		}
		f.scheduleRetry(v)
		return false, nil
	case f.q.retryClass.write() && (v.mayHaveApplied || (!v.final && f.outcomeUncertain())):
		return true, f.q.unknown(v.err)
	}
	return true, f.q.failed(o.a, v.err)
}

func (f *retrier) remove(t *attempt) {
	for i, x := range f.outstanding {
		if x == t {
			f.outstanding = append(f.outstanding[:i], f.outstanding[i+1:]...)
			return
		}
	}
}

// outcomeUncertain says whether some try, ended or under way, may have taken effect.
func (f *retrier) outcomeUncertain() bool {
	if f.mayHaveApplied {
		return true
	}
	for _, t := range f.outstanding {
		if t.sent.Load() {
			return true
		}
	}
	return false
}

// updateNodes tells the client's shared knowledge what a try showed of its node.
func (f *retrier) updateNodes(o outcome, v classification) {
	now := time.Now()
	switch {
	case v.notNorthStar:
		f.c.nodes.markDown(o.t.node, now)
	case !v.noResponse:
		f.c.nodes.markUp(o.t.node)
	case errors.Is(o.a.err, context.DeadlineExceeded):
		f.limit = min(2*f.limit, maxAttemptTimeout) // slow, perhaps, and not gone
	case !errors.Is(o.a.err, context.Canceled):
		f.c.nodes.markDown(o.t.node, now)
		f.c.finder.markSuspect(o.t.node, now)
	}
	if v.leader != "" {
		f.c.nodes.add(v.leader)
	}
}

// scheduleRetry plans the next try after one that failed.
func (f *retrier) scheduleRetry(v classification) {
	if f.q.retryClass != localRead {
		f.watch()
	}
	if len(f.outstanding) > 0 {
		return // another one is under way
	}
	now := time.Now()
	if v.wait == 0 && f.c.nodes.hasUntried(now, f.tried, f.inUse) {
		f.launch(f.pick())
		return
	}
	if leader, ok := f.redirectTarget(v); ok && f.tried[leader] == 0 {
		f.launch(leader)
		return
	}
	f.retryAt = now.Add(backoff(f.backoffRounds, v.wait))
	f.backoffRounds++
}

func (f *retrier) redirectTarget(v classification) (string, bool) {
	if v.leader == "" {
		return "", false
	}
	return f.c.nodes.add(v.leader)
}

// watch joins the look-out for the leader.
func (f *retrier) watch() {
	if f.watching {
		return
	}
	f.watching = true
	f.c.finder.acquire()
	f.knownLeader, f.leader = f.c.finder.leader()
}

// unwatch leaves it.
func (f *retrier) unwatch() {
	if f.watching {
		f.watching, f.leader = false, nil
		f.c.finder.release()
	}
}

// onLeaderChange reacts to a change of leader: at once when every try under way
// went to the old one, else after a moment in which the node that holds the
// request may forward it, or carry it out itself. That moment over, the new
// leader gets a try even if it has one already: it may have passed that on to
// the old leader before.
func (f *retrier) onLeaderChange(now time.Time) {
	leader, changed := f.c.finder.leader()
	f.leader = changed
	if leader == "" || leader == f.knownLeader {
		return
	}
	old := f.knownLeader
	f.knownLeader = leader
	if f.q.retryClass == nonIdempotentWrite && len(f.outstanding) > 0 {
		return
	}
	for _, t := range f.outstanding {
		if t.node != old {
			f.forwardAt = now.Add(forwardGrace/2 + rand.N(forwardGrace))
			return
		}
	}
	f.launch(leader)
}

// timeToNextAction is the time to the earliest thing planned.
func (f *retrier) timeToNextAction() time.Duration {
	next := time.Hour
	for _, at := range []time.Time{f.retryAt, f.hedgeAt, f.forwardAt} {
		if !at.IsZero() {
			next = min(next, time.Until(at))
		}
	}
	return max(next, 0)
}

func (f *retrier) tick(now time.Time) {
	due := func(at *time.Time) bool {
		if at.IsZero() || now.Before(*at) {
			return false
		}
		*at = time.Time{}
		return true
	}
	if due(&f.retryAt) && len(f.outstanding) == 0 {
		f.launch(f.pick())
	}
	if due(&f.forwardAt) {
		f.launch(f.knownLeader)
	}
	if due(&f.hedgeAt) {
		f.hedge(now)
	}
}

// monitorNode looks after the node of a patient try: that is silent by its nature, and for
// as long as its node answers and knows a leader it is in good hands.
func (f *retrier) monitorNode(ctx context.Context, t *attempt) {
	c, lost := f.c, f.lostAttempts
	c.spawn(func() {
		if c.pollNode(ctx, t.node, new(atomicTime)) {
			lost <- t
		}
	})
}

// retryElsewhere sends a patient call to another node besides.
func (f *retrier) retryElsewhere(t *attempt, now time.Time) {
	f.c.nodes.markDown(t.node, now)
	f.launch(f.pick())
}

// hedge looks after tries that have been silent for long.
func (f *retrier) hedge(now time.Time) {
	if f.lostAttempts != nil { // it waits where it is; guard looks after it
		f.unwatch()
		return
	}
	f.hedgeAt = now.Add(recheckInterval)
	if len(f.outstanding) == 0 || len(f.outstanding) >= maxInFlight {
		return
	}
	if f.q.retryClass == localRead {
		f.launch(f.pick()) // answered from memory: a copy costs nothing
		return
	}
	f.watch()
	if leader, _ := f.c.finder.leader(); leader != "" && leader != f.knownLeader {
		f.onLeaderChange(now)
		return
	}
	if leader := f.knownLeader; leader != "" && !f.inUse(leader) && f.tried[leader] == 0 && !f.c.finder.isUnresponsive(leader, now) {
		f.launch(leader) // the silent node is not the leader: go there
		return
	}
	for _, t := range f.outstanding {
		if !f.c.finder.isUnresponsive(t.node, now) {
			return // alive, and working on it
		}
	}
	for _, t := range f.outstanding {
		f.c.nodes.markDown(t.node, now)
	}
	f.launch(f.pick())
}

// waitCancelled ends a call whose context has ended. It waits, shortly, for the tries
// that this cancelled, so that it is known for good which of them were sent;
// one of them may even have been answered.
func (f *retrier) waitCancelled() (*response, error) {
	timer := time.NewTimer(cancelWait)
	defer timer.Stop()
	for len(f.outstanding) > 0 {
		select {
		case o := <-f.results:
			f.remove(o.t)
			v := classify(f.q, o.a)
			if v.err == nil || v.final {
				return o.a, v.err
			}
			f.mayHaveApplied = f.mayHaveApplied || v.mayHaveApplied
		case <-timer.C:
			return nil, f.deadlineError()
		}
	}
	return nil, f.deadlineError()
}

// deadlineError is the error when the context has ended. A write that may have taken
// effect is never reported as anything else.
func (f *retrier) deadlineError() error {
	err := context.Cause(f.ctx)
	if f.q.retryClass.write() && f.outcomeUncertain() {
		if f.last != nil {
			err = &interruptedError{op: f.q.op, ctx: err, last: f.last}
		}
		return f.q.unknown(err)
	}
	return &interruptedError{op: f.q.op, ctx: err, last: f.last}
}
