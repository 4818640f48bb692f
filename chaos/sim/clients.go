package sim

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	"northstar/api/apiv1"
	"northstar/chaos/check"
	"northstar/cluster"
	"northstar/state"
)

const (
	opAttempts = 4                     // of an operation with an idempotency key, and of one that was not proposed
	retryPause = 20 * time.Millisecond // before the next attempt
	idempotent = 0.3                   // of the writes carry an idempotency key
	repeats    = 0.05                  // of the operations repeat such a write
	leaseReads = 0.2                   // of the reads go by the lease, where there is one
	staleReads = 0.1                   // of them take what the node has
)

// clients are concurrent users of the run's cluster.
type clients struct {
	sim     *Simulation
	quit    chan struct{}
	once    sync.Once
	done    sync.WaitGroup
	remotes []*httpClient

	mu        sync.Mutex
	lastBegin time.Time     // the latest beginning of a write that was acknowledged
	lastAck   time.Time     // when the latest acknowledgement came
	gap       time.Duration // the longest time between two
	gapEnd    time.Time
}

func (sim *Simulation) startClients() *clients {
	cs := &clients{sim: sim, quit: make(chan struct{})}
	for i := range sim.cfg.Clients + sim.cfg.Readers + sim.cfg.HTTPClients {
		c := &client{clients: cs, id: i, rand: rand.New(rand.NewPCG(sim.cfg.Seed, uint64(i))), seen: map[string]seenValue{}}
		c.reads = i >= sim.cfg.Clients && i < sim.cfg.Clients+sim.cfg.Readers
		if i >= sim.cfg.Clients+sim.cfg.Readers {
			c.remote = cs.newRemote()
		}
		cs.done.Go(c.run)
	}
	if sim.cfg.AvailabilityWriters {
		cs.startAvailabilityWriters()
	}
	for i := range sim.cfg.Campaigners {
		cs.startCampaigner(i)
	}
	if sim.cfg.EvictInterval != (DurationRange{}) {
		cs.startEvictor()
	}
	return cs
}

func (cs *clients) newRemote() *httpClient {
	r := cs.sim.newRemote(fmt.Sprintf("c%d", len(cs.remotes)+1))
	cs.remotes = append(cs.remotes, r)
	return r
}

// stop ends the clients and waits for their operations.
func (cs *clients) stop() {
	cs.once.Do(func() {
		close(cs.quit)
		cs.done.Wait()
		for _, r := range cs.remotes {
			r.close()
		}
	})
	cs.done.Wait()
}

// pause waits for a drawn time; false when the clients are to end.
func (cs *clients) pause(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-cs.quit:
		return false
	case <-timer.C:
		return true
	}
}

// acknowledgedSince reports whether a write that began at t or later was
// acknowledged.
func (cs *clients) acknowledgedSince(t time.Time) bool {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	return cs.sim.cfg.Clients == 0 || !cs.lastBegin.Before(t)
}

// client is one user, with one operation at a time.
type client struct {
	*clients
	id     int
	reads  bool        // nothing else
	remote *httpClient // nil: it has the nodes in its own process, as it were
	rand   *rand.Rand
	ops    int
	seen   map[string]seenValue // by key: what it last read or wrote
	kept   []keptWrite          // idempotent ones, newest last
	epoch  uint64               // of the run, at the beginning of its operation
}

// keptWrite is an idempotent write whose answer is known: repeated, it must get
// the same one.
type keptWrite struct {
	cmd    state.Command
	result state.Result
}

const maxKept = 8

// server is a node as a client reaches it.
type server interface {
	Propose(ctx context.Context, c state.Command) (state.Result, error)
	Read(ctx context.Context, key, consistency string) (reading, error)
}

// reading is what a read found of a key, and the revision of the state that it
// was read from; 0: not known.
type reading struct {
	value        string
	revision, at uint64
}

// inProcessNode is a node in the client's own process.
type inProcessNode struct{ Node }

// Read waits until a read of that consistency may be answered, and reads.
func (d inProcessNode) Read(ctx context.Context, key, consistency string) (reading, error) {
	var err error
	switch consistency {
	case apiv1.Linearizable:
		err = d.ReadBarrier(ctx)
	case apiv1.Lease:
		err = d.LeaseReadBarrier(ctx)
	}
	view := d.View()
	item, _ := view.Get(key)
	return reading{string(item.Value), item.Revision, view.Revision()}, err
}

type seenValue struct {
	value    string
	revision uint64
}

func (c *client) run() {
	for c.pause(c.sim.cfg.ThinkTime.draw(c.rand)) {
		c.operate()
	}
}

// operate does one operation and records it.
func (c *client) operate() {
	c.ops++
	if now := c.sim.epoch(); now != c.epoch {
		c.epoch, c.kept = now, nil
	}
	if len(c.kept) > 0 && c.rand.Float64() < repeats {
		c.repeat()
		return
	}
	op := check.Op{Client: c.id, Key: fmt.Sprintf("%s%d", keysOf[c.epoch], c.rand.IntN(c.sim.cfg.Keys)), Begin: time.Since(c.sim.start)}
	switch x := c.rand.Float64(); {
	case c.reads || x < 0.4:
		op.Kind = check.Get
	case x < 0.7:
		op.Kind = check.Put
	case x < 0.85:
		op.Kind = check.CAS
	case x < 0.92:
		op.Kind = check.Create
	default:
		op.Kind = check.Delete
	}
	if op.Kind == check.Get {
		c.read(op)
		return
	}
	c.write(op)
}

// read reads on one node. Only a stale read says nothing about the history.
func (c *client) read(op check.Op) {
	begin := c.sim.revisions.Begin()
	consistency := apiv1.Linearizable
	switch x := c.rand.Float64(); {
	case x < staleReads:
		consistency = apiv1.Stale
	case x < staleReads+leaseReads:
		consistency = apiv1.Lease
	}
	var got reading
	err := c.call(&op, func(ctx context.Context, s server) (err error) {
		got, err = s.Read(ctx, op.Key, consistency)
		return err
	})
	if err != nil || consistency == apiv1.Stale || c.sim.epoch() != c.epoch {
		return // a read that was not answered says nothing either
	}
	op.End, op.Outcome, op.Value, op.Note = time.Since(c.sim.start), check.Done, got.value, consistency
	c.seen[op.Key] = seenValue{got.value, got.revision}
	if got.at > 0 {
		c.sim.revisions.Read(op.String(), begin, got.at)
	}
	c.sim.history.Add(op)
}

// write proposes one command, again while it is known not to have happened, or
// when it has an idempotency key.
func (c *client) write(op check.Op) {
	cmd := c.command(&op)
	begin, began := c.sim.revisions.Begin(), time.Now()
	var res state.Result
	var err error
	mayHaveHappened := false
	for range opAttempts {
		err = c.call(&op, func(ctx context.Context, s server) (err error) {
			cmd.Now = time.Now().UnixNano()
			res, err = s.Propose(ctx, cmd)
			return err
		})
		if err != nil {
			op.Note += fmt.Sprintf("[%v, %s: %v] ", time.Since(c.sim.start), op.Node, err)
		}
		mayHaveHappened = mayHaveHappened || err != nil && !notProposed(err)
		if err == nil || mayHaveHappened && cmd.Idempotency == nil {
			break
		}
		time.Sleep(retryPause)
	}
	op.End = time.Since(c.sim.start)
	switch {
	case err == nil && res.Err == nil:
		op.Outcome = check.Done
		op.Revision = res.Revision
		c.sim.revisions.Wrote(op.String(), begin, res.Revision)
		c.seen[op.Key] = seenValue{op.Value, res.Revision}
		c.acknowledged(began)
		c.keep(cmd, res)
	case err == nil && refused(res.Err):
		op.Outcome = check.Refused
		c.keep(cmd, res)
	case err == nil:
		c.sim.violated(check.Violation{Invariant: check.OnlyDocumentedErrors, Detail: fmt.Sprintf("%v: %v", op, res.Err)})
		return
	case mayHaveHappened:
		op.Outcome = check.Unknown
	default:
		return
	}
	if c.sim.epoch() != c.epoch {
		op.Outcome, op.Revision = check.Unknown, 0 // it may be lost again
	}
	c.sim.history.Add(op)
}

// keysOf begins the names of an era's keys: what reads find of those of one before is
// whatever the survivors had.
var keysOf = []string{"k", "after"}

// keep remembers an idempotent write and its answer.
func (c *client) keep(cmd state.Command, res state.Result) {
	if cmd.Idempotency == nil {
		return
	}
	c.kept = append(c.kept, keptWrite{cmd, res})
	c.kept = c.kept[max(0, len(c.kept)-maxKept):]
}

// repeat sends an idempotent write once more: it must be answered as it was, and
// change nothing, whoever leads now.
func (c *client) repeat() {
	k := c.kept[c.rand.IntN(len(c.kept))]
	var res state.Result
	op := check.Op{Client: c.id, Begin: time.Since(c.sim.start)}
	err := c.call(&op, func(ctx context.Context, s server) (err error) {
		k.cmd.Now = time.Now().UnixNano()
		res, err = s.Propose(ctx, k.cmd)
		return err
	})
	if err != nil || c.sim.epoch() != c.epoch {
		return
	}
	code := func(r state.Result) cluster.Code {
		if r.Err == nil {
			return 0
		}
		return r.Err.Code
	}
	if res.Revision != k.result.Revision && code(res) == 0 || code(res) != code(k.result) {
		c.sim.violated(check.Violation{Invariant: check.Idempotency, Detail: fmt.Sprintf(
			"%v, %s: client %d repeated %s on %s and got revision %d, code %d; it had got revision %d, code %d",
			op.Begin, op.Key, c.id, k.cmd.Idempotency.Key, op.Node, res.Revision, code(res), k.result.Revision, code(k.result))})
	}
}

func (c *client) acknowledged(began time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if began.After(c.lastBegin) {
		c.lastBegin = began
	}
	c.measureGap()
	c.lastAck = time.Now()
	c.sim.timeline.acked()
}

// measureGap looks at the time since the last acknowledgement. Called with the
// lock held.
func (cs *clients) measureGap() {
	if gap := time.Since(cs.lastAck); !cs.lastAck.IsZero() && gap > cs.gap {
		cs.gap, cs.gapEnd = gap, time.Now()
	}
}

// checkGap reports whether no write was acknowledged for too long.
func (cs *clients) checkGap() {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	cs.measureGap()
	if limit := cs.sim.cfg.MaxGap; limit > 0 && cs.gap > limit {
		cs.sim.violated(check.Violation{Invariant: check.Liveness, Detail: fmt.Sprintf("no write was acknowledged for %v, until %v", cs.gap, cs.gapEnd.Sub(cs.sim.start))})
	}
}

// command makes the command of a write, with conditions on what the client
// last saw of the key.
func (c *client) command(op *check.Op) state.Command {
	var cmd state.Command
	last, known := c.seen[op.Key]
	if op.Kind == check.CAS && (!known || last.value == "") {
		op.Kind = check.Put
	}
	if op.Kind == check.Delete {
		cmd = state.Command{Kind: state.KindDelete, Delete: &state.Delete{Key: op.Key}}
		if known && last.value != "" && c.rand.IntN(2) == 0 {
			cmd.Delete.IfRevision, op.Expect = &last.revision, last.value
		}
	} else {
		op.Value = fmt.Sprintf("c%d-%d", c.id, c.ops)
		cmd = state.Command{Kind: state.KindPut, Put: &state.Put{Key: op.Key, Value: []byte(op.Value), IfAbsent: op.Kind == check.Create}}
		if op.Kind == check.CAS {
			cmd.Put.IfRevision, op.Expect = &last.revision, last.value
		}
	}
	if c.rand.Float64() < idempotent {
		cmd.Idempotency = &state.Idempotency{Key: fmt.Sprintf("c%d-%d", c.id, c.ops), RequestHash: []byte(op.Value)}
	}
	return cmd
}

// errNobody reports that there was no node to ask.
var errNobody = cluster.Errorf(cluster.CodeNoLeader, "no node runs")

// errCrashed reports that the node died with the operation.
var errCrashed = cluster.Errorf(cluster.CodeOutcomeUnknown, "the node crashed")

// call makes one attempt on one node. As over a network, an answer of a node
// that has crashed meanwhile is lost, and one of a paused node comes when that
// goes on.
func (c *client) call(op *check.Op, f func(ctx context.Context, s server) error) error {
	m := c.pick()
	op.Node = string(m.id)
	if c.remote != nil {
		ctx, cancel := context.WithTimeout(c.sim.ctx, c.sim.cfg.OpTimeout+remoteGrace)
		defer cancel()
		return f(ctx, httpNode{c.remote, m.id})
	}
	inst, node := m.current()
	if node == nil {
		return errNobody
	}
	ctx, cancel := context.WithTimeout(inst.ctx, c.sim.cfg.OpTimeout)
	defer cancel()
	err := f(ctx, inProcessNode{node})
	inst.proc.awaitThaw()
	if inst.ctx.Err() != nil {
		return errCrashed
	}
	return err
}

// remoteGrace is how much longer a client waits for an answer than it reports the
// node that it does.
const remoteGrace = 300 * time.Millisecond

// pick returns the node that leads, as far as is known, or now and then any.
func (c *client) pick() *member {
	if c.reads || c.rand.Float64() < c.sim.cfg.AnyNodeRatio {
		return c.sim.members[c.rand.IntN(len(c.sim.members))]
	}
	return c.sim.leading()
}

// notProposed reports whether a write that failed is known not to have happened.
func notProposed(err error) bool {
	var e *cluster.Error
	if !errors.As(err, &e) {
		return false
	}
	return e.Code == cluster.CodeNoLeader || e.Code == cluster.CodeBusy || e.Code == cluster.CodeReadOnly
}

// refused reports whether an error means that the operation's condition did not
// hold.
func refused(err *cluster.Error) bool {
	return err.Code == cluster.CodeConditionFailed || err.HTTPStatus() == http.StatusNotFound
}
