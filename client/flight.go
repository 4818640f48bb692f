package client

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync/atomic"
	"time"
)

const (
	maxInFlight = 3                      // tries of one call at the same time
	maxOpen     = 2 * maxInFlight        // with those cancelled that have not returned yet
	maxTries    = 200                    // of one call, should its deadline be very far
	tryFirst    = 2 * time.Second        // deadline of the first tries; doubled as they run out
	tryMost     = 15 * time.Second       //
	hopGrace    = 15 * time.Millisecond  // a node that holds the request gets this long to forward it to a new leader, before this client sends it there itself
	recheck     = 25 * time.Millisecond  // how often a call whose tries are silent looks again
	drainLimit  = 100 * time.Millisecond // for cancelled tries to say whether they were sent
)

// try is one request of a call that is under way.
type try struct {
	node   string
	start  time.Time
	sent   atomic.Bool
	cancel context.CancelFunc
}

type outcome struct {
	t *try
	a *answer
}

// flight takes one call through its tries until an answer settles it or its
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
type flight struct {
	c   *Client
	q   *call
	ctx context.Context

	results chan outcome
	open    []*try
	tried   map[string]int
	tries   int
	rounds  int           // pauses taken so far
	limit   time.Duration // deadline of the next try
	held    time.Duration // longest time that a node kept a try before it turned it away

	unsettled bool  // some ended try may have taken effect
	last      error // of a failed try, the most telling
	lastLost  bool  // last is from a node that did not answer

	watching bool            // has entered the finder
	leader   <-chan struct{} // closed when the leader changes; nil while not watching
	seen     string          // the leader this flight has reacted to

	retryAt, hedgeAt, hopAt time.Time // zero: not planned

	lost chan *try // of a patient call: whose node is hung or has lost the cluster
}

// do takes a call through; a success is an answer with a 2xx status.
func (c *Client) do(ctx context.Context, q *call) (*answer, error) {
	ctx, cancel := c.callContext(ctx)
	defer cancel()
	f := &flight{c: c, q: q, ctx: ctx, results: make(chan outcome, maxOpen), tried: map[string]int{}, limit: tryFirst}
	if q.kind == bareWrite {
		f.limit = tryMost * 4 // cutting it short would only make its outcome unknown
	}
	if q.patience > 0 {
		f.limit, f.lost = q.patience, make(chan *try, maxTries)
	}
	defer f.end()
	a, err := f.run()
	if err == nil {
		c.succeeded(q, a)
	}
	return a, err
}

func (f *flight) run() (*answer, error) {
	if f.ctx.Err() != nil {
		return nil, f.giveUp()
	}
	f.launch(f.pick())
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		timer.Reset(f.untilNext())
		select {
		case o := <-f.results:
			if done, err := f.take(o); done {
				return o.a, err
			}
		case <-timer.C:
			f.tick(time.Now())
		case <-f.leader:
			f.newLeader(time.Now())
		case t := <-f.lost:
			f.nodeLost(t, time.Now())
		case <-f.ctx.Done():
			return f.drain()
		}
	}
}

// end cancels what is still under way. The answers land in the buffer of
// results, where nobody reads them.
func (f *flight) end() {
	for _, t := range f.open {
		t.cancel()
	}
	f.unwatch()
}

func (f *flight) busy(node string) bool {
	for _, t := range f.open {
		if t.node == node {
			return true
		}
	}
	return false
}

func (f *flight) pick() string {
	leader := ""
	if f.q.kind != anyRead {
		leader, _ = f.c.finder.leader()
	}
	return f.c.nodes.pick(time.Now(), leader, f.tried, f.busy)
}

// launch starts a try at a node. A fourth at the same time ends the oldest,
// whose outcome then counts as any cancelled try's.
func (f *flight) launch(node string) {
	if node == "" || f.tries >= maxTries || len(f.open) >= maxOpen || f.tooLate() {
		return
	}
	if len(f.open) >= maxInFlight {
		f.open[0].cancel()
	}
	now := time.Now()
	ctx, cancel := context.WithTimeout(f.ctx, f.limit)
	t := &try{node: node, start: now, cancel: cancel}
	f.open = append(f.open, t)
	f.tried[node]++
	f.tries++
	f.retryAt, f.hopAt = time.Time{}, time.Time{}
	switch {
	case f.q.kind == bareWrite:
		f.hedgeAt = time.Time{}
	case f.lost != nil:
		f.hedgeAt = now.Add(checkEvery)
		f.guard(ctx, t)
	default:
		f.hedgeAt = now.Add(f.c.cfg.HedgeAfter*7/8 + rand.N(f.c.cfg.HedgeAfter/4+1))
	}
	var sent *atomic.Bool
	if f.q.kind.write() {
		sent = &t.sent
	}
	results := f.results
	ok := f.c.spawn(func() {
		defer cancel()
		results <- outcome{t, f.c.attempt(ctx, f.q, node, sent)}
	})
	if !ok {
		cancel()
		results <- outcome{t, &answer{node: node, err: ErrClosed}}
	}
}

// tooLate says that a node that holds the request for as long as the last ones did
// would not answer before the deadline. A write that must not be sent twice is
// then known not to have happened; another try would only make that unknown.
func (f *flight) tooLate() bool {
	if f.q.kind != bareWrite || f.q.bounded {
		return false
	}
	deadline, ok := f.ctx.Deadline()
	return ok && time.Until(deadline) < f.held*3/2
}

// take judges an answer. done says that the call is over, with err.
func (f *flight) take(o outcome) (done bool, err error) {
	f.remove(o.t)
	if o.a.err != nil && f.ctx.Err() != nil {
		f.unsettled = f.unsettled || o.a.sent
		return false, nil // the loop sees that the context ended
	}
	v := judge(f.q, o.a)
	f.learn(o, v)
	switch {
	case v.err == nil:
		return true, nil
	case v.again, v.foreign && f.c.nodes.fresh(time.Now(), f.tried, f.busy):
		f.unsettled = f.unsettled || (v.maybe && f.q.kind.write())
		if o.a.err == nil {
			f.held = max(f.held, time.Since(o.t.start))
		}
		if !v.lost || f.last == nil || f.lastLost { // what a node said tells more than that one was not there
			f.last, f.lastLost = f.q.failed(o.a, v.err), v.lost
		}
		f.again(v)
		return false, nil
	case f.q.kind.write() && (v.maybe || (!v.settles && f.doubtful())):
		return true, f.q.unknown(v.err)
	}
	return true, f.q.failed(o.a, v.err)
}

func (f *flight) remove(t *try) {
	for i, x := range f.open {
		if x == t {
			f.open = append(f.open[:i], f.open[i+1:]...)
			return
		}
	}
}

// doubtful says whether some try, ended or under way, may have taken effect.
func (f *flight) doubtful() bool {
	if f.unsettled {
		return true
	}
	for _, t := range f.open {
		if t.sent.Load() {
			return true
		}
	}
	return false
}

// learn tells the client's shared knowledge what a try showed of its node.
func (f *flight) learn(o outcome, v verdict) {
	now := time.Now()
	switch {
	case v.foreign:
		f.c.nodes.failed(o.t.node, now)
	case !v.lost:
		f.c.nodes.answered(o.t.node)
	case errors.Is(o.a.err, context.DeadlineExceeded):
		f.limit = min(2*f.limit, tryMost) // slow, perhaps, and not gone
	case !errors.Is(o.a.err, context.Canceled):
		f.c.nodes.failed(o.t.node, now)
		f.c.finder.distrust(o.t.node, now)
	}
	if v.leader != "" {
		f.c.nodes.add(v.leader)
	}
}

// again plans the next try after one that failed.
func (f *flight) again(v verdict) {
	if f.q.kind != anyRead {
		f.watch()
	}
	if len(f.open) > 0 {
		return // another one is under way
	}
	now := time.Now()
	if v.wait == 0 && f.c.nodes.fresh(now, f.tried, f.busy) {
		f.launch(f.pick())
		return
	}
	if leader, ok := f.named(v); ok && f.tried[leader] == 0 {
		f.launch(leader)
		return
	}
	f.retryAt = now.Add(backoff(f.rounds, v.wait))
	f.rounds++
}

func (f *flight) named(v verdict) (string, bool) {
	if v.leader == "" {
		return "", false
	}
	return f.c.nodes.add(v.leader)
}

// watch joins the look-out for the leader.
func (f *flight) watch() {
	if f.watching {
		return
	}
	f.watching = true
	f.c.finder.enter()
	f.seen, f.leader = f.c.finder.leader()
}

// unwatch leaves it.
func (f *flight) unwatch() {
	if f.watching {
		f.watching, f.leader = false, nil
		f.c.finder.leave()
	}
}

// newLeader reacts to a change of leader: at once when every try under way
// went to the old one, else after a moment in which the node that holds the
// request may forward it, or carry it out itself. That moment over, the new
// leader gets a try even if it has one already: it may have passed that on to
// the old leader before.
func (f *flight) newLeader(now time.Time) {
	leader, changed := f.c.finder.leader()
	f.leader = changed
	if leader == "" || leader == f.seen {
		return
	}
	old := f.seen
	f.seen = leader
	if f.q.kind == bareWrite && len(f.open) > 0 {
		return
	}
	for _, t := range f.open {
		if t.node != old {
			f.hopAt = now.Add(hopGrace/2 + rand.N(hopGrace))
			return
		}
	}
	f.launch(leader)
}

// untilNext is the time to the earliest thing planned.
func (f *flight) untilNext() time.Duration {
	next := time.Hour
	for _, at := range []time.Time{f.retryAt, f.hedgeAt, f.hopAt} {
		if !at.IsZero() {
			next = min(next, time.Until(at))
		}
	}
	return max(next, 0)
}

func (f *flight) tick(now time.Time) {
	due := func(at *time.Time) bool {
		if at.IsZero() || now.Before(*at) {
			return false
		}
		*at = time.Time{}
		return true
	}
	if due(&f.retryAt) && len(f.open) == 0 {
		f.launch(f.pick())
	}
	if due(&f.hopAt) {
		f.launch(f.seen)
	}
	if due(&f.hedgeAt) {
		f.hedge(now)
	}
}

// guard looks after the node of a patient try: that is silent by its nature, and for
// as long as its node answers and knows a leader it is in good hands.
func (f *flight) guard(ctx context.Context, t *try) {
	c, lost := f.c, f.lost
	c.spawn(func() {
		if c.vigil(ctx, t.node, new(moment)) {
			lost <- t
		}
	})
}

// nodeLost sends a patient call to another node besides.
func (f *flight) nodeLost(t *try, now time.Time) {
	f.c.nodes.failed(t.node, now)
	f.launch(f.pick())
}

// hedge looks after tries that have been silent for long.
func (f *flight) hedge(now time.Time) {
	if f.lost != nil { // it waits where it is; guard looks after it
		f.unwatch()
		return
	}
	f.hedgeAt = now.Add(recheck)
	if len(f.open) == 0 || len(f.open) >= maxInFlight {
		return
	}
	if f.q.kind == anyRead {
		f.launch(f.pick()) // answered from memory: a copy costs nothing
		return
	}
	f.watch()
	if leader, _ := f.c.finder.leader(); leader != "" && leader != f.seen {
		f.newLeader(now)
		return
	}
	if leader := f.seen; leader != "" && !f.busy(leader) && f.tried[leader] == 0 && !f.c.finder.silent(leader, now) {
		f.launch(leader) // the silent node is not the leader: go there
		return
	}
	for _, t := range f.open {
		if !f.c.finder.silent(t.node, now) {
			return // alive, and working on it
		}
	}
	for _, t := range f.open {
		f.c.nodes.failed(t.node, now)
	}
	f.launch(f.pick())
}

// drain ends a call whose context has ended. It waits, shortly, for the tries
// that this cancelled, so that it is known for good which of them were sent;
// one of them may even have been answered.
func (f *flight) drain() (*answer, error) {
	timer := time.NewTimer(drainLimit)
	defer timer.Stop()
	for len(f.open) > 0 {
		select {
		case o := <-f.results:
			f.remove(o.t)
			v := judge(f.q, o.a)
			if v.err == nil || v.settles {
				return o.a, v.err
			}
			f.unsettled = f.unsettled || v.maybe
		case <-timer.C:
			return nil, f.giveUp()
		}
	}
	return nil, f.giveUp()
}

// giveUp is the error when the context has ended. A write that may have taken
// effect is never reported as anything else.
func (f *flight) giveUp() error {
	err := context.Cause(f.ctx)
	if f.q.kind.write() && f.doubtful() {
		if f.last != nil {
			err = &interrupted{op: f.q.op, ctx: err, last: f.last}
		}
		return f.q.unknown(err)
	}
	return &interrupted{op: f.q.op, ctx: err, last: f.last}
}
