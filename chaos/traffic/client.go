package traffic

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"time"

	"northstar/api/apiv1"
	"northstar/chaos/check"
	"northstar/cluster"
	"northstar/state"
)

const (
	opAttempts = 4                     // for an operation with an idempotency key, and for one that was not proposed
	retryPause = 20 * time.Millisecond // before the next attempt
	idempotent = 0.3                   // share of writes with an idempotency key
	repeats    = 0.05                  // share of operations that repeat such a write
	leaseReads = 0.2                   // share of reads with consistency "lease", if the nodes have leases
	staleReads = 0.1                   // share of reads with consistency "stale"
)

// client is one user, with one operation at a time.
type client struct {
	*Traffic
	id       int
	readOnly bool
	attempt  Attempt
	rand     *rand.Rand
	ops      int
	seen     map[string]seenValue // by key: what it last read or wrote
	kept     []keptWrite          // idempotent writes, newest last
	epoch    uint64               // of the cluster, at the start of the operation
}

func (t *Traffic) newClient(id int, attempt Attempt) *client {
	return &client{
		Traffic: t, id: id, attempt: attempt, rand: rand.New(rand.NewPCG(t.cfg.Seed, uint64(id))),
		seen: map[string]seenValue{},
	}
}

// keptWrite is an idempotent write with a known response: a repetition must get the same response.
type keptWrite struct {
	cmd    state.Command
	result state.Result
}

const maxKept = 8

type seenValue struct {
	value    string
	revision uint64
}

func (c *client) run() {
	pause := c.cfg.ThinkTime
	if c.readOnly && c.cfg.ReadPause != (Range{}) {
		pause = c.cfg.ReadPause
	}
	for c.Pause(pause.Draw(c.rand)) {
		c.operate()
	}
}

// operate executes one operation and records it.
func (c *client) operate() {
	c.ops++
	if now := c.cluster.Epoch(); now != c.epoch {
		c.epoch, c.kept = now, nil
	}
	if len(c.kept) > 0 && c.rand.Float64() < repeats {
		c.repeat()
		return
	}
	op := check.Op{Client: c.id, Key: c.cluster.Key(c.rand.IntN(c.cfg.Keys)), Begin: c.now(), Kind: check.Get}
	switch x := c.rand.Float64(); {
	case c.readOnly || x < 0.4:
		c.read(op)
		return
	case x < 0.7:
		op.Kind = check.Put
	case x < 0.85:
		op.Kind = check.CAS
	case x < 0.92:
		op.Kind = check.Create
	default:
		op.Kind = check.Delete
	}
	c.write(op)
}

// read reads from one node. A stale read is not part of the history.
func (c *client) read(op check.Op) {
	begin := c.Revisions.Begin()
	consistency := apiv1.Linearizable
	switch x := c.rand.Float64(); {
	case x < staleReads:
		consistency = apiv1.Stale
	case x < staleReads+leaseReads:
		consistency = apiv1.Lease
	}
	var got Reading
	err := c.call(&op, func(ctx context.Context, n KV) (err error) {
		got, err = n.Read(ctx, op.Key, consistency)
		return err
	})
	if err != nil || consistency == apiv1.Stale || c.cluster.Epoch() != c.epoch {
		return // a read without a response is not part of the history either
	}
	op.End, op.Outcome, op.Value, op.Note = c.now(), check.Done, got.Value, consistency
	c.seen[op.Key] = seenValue{got.Value, got.Revision}
	if got.At > 0 {
		c.Revisions.Read(op.String(), begin, got.At)
	}
	c.History.Add(op)
}

// write proposes one command. It retries while the command certainly did not happen, or if it has an idempotency key.
func (c *client) write(op check.Op) {
	cmd := c.command(&op)
	begin, began := c.Revisions.Begin(), time.Now()
	var res state.Result
	var err error
	mayHaveHappened := false
	for range opAttempts {
		err = c.call(&op, func(ctx context.Context, n KV) (err error) {
			cmd.Now = time.Now().UnixNano()
			res, err = n.Propose(ctx, cmd)
			return err
		})
		if err != nil {
			op.Note += fmt.Sprintf("[%v, %s: %v] ", c.now(), op.Node, err)
		}
		mayHaveHappened = mayHaveHappened || err != nil && !notProposed(err)
		if err == nil || mayHaveHappened && cmd.Idempotency == nil {
			break
		}
		time.Sleep(retryPause)
	}
	op.End = c.now()
	switch {
	case err == nil && res.Err == nil:
		op.Outcome = check.Done
		op.Revision = res.Revision
		c.Revisions.Wrote(op.String(), begin, res.Revision)
		c.seen[op.Key] = seenValue{op.Value, res.Revision}
		c.acknowledged(began)
		c.keep(cmd, res)
	case err == nil && refused(res.Err):
		op.Outcome = check.Refused
		c.keep(cmd, res)
	case err == nil:
		c.violated(check.OnlyDocumentedErrors, "%v: %v", op, res.Err)
		return
	case mayHaveHappened:
		op.Outcome = check.Unknown
	default:
		return
	}
	if c.cluster.Epoch() != c.epoch {
		op.Outcome, op.Revision = check.Unknown, 0 // the response may be lost again
	}
	c.History.Add(op)
}

// keep stores an idempotent write and its response.
func (c *client) keep(cmd state.Command, res state.Result) {
	if cmd.Idempotency != nil {
		c.kept = append(c.kept, keptWrite{cmd, res})
		c.kept = c.kept[max(0, len(c.kept)-maxKept):]
	}
}

// repeat sends an idempotent write again. It must get the same response and change nothing, also after a change of
// leader.
func (c *client) repeat() {
	k := c.kept[c.rand.IntN(len(c.kept))]
	var res state.Result
	op := check.Op{Client: c.id, Begin: c.now()}
	err := c.call(&op, func(ctx context.Context, n KV) (err error) {
		k.cmd.Now = time.Now().UnixNano()
		res, err = n.Propose(ctx, k.cmd)
		return err
	})
	if err != nil || c.cluster.Epoch() != c.epoch {
		return
	}
	code := func(r state.Result) cluster.Code {
		if r.Err == nil {
			return 0
		}
		return r.Err.Code
	}
	if res.Revision != k.result.Revision && code(res) == 0 || code(res) != code(k.result) {
		c.violated(check.Idempotency,
			"%v, %s: client %d repeated %s on %s and got revision %d, code %d; it had got revision %d, code %d",
			op.Begin, op.Key, c.id, k.cmd.Idempotency.Key, op.Node, res.Revision, code(res), k.result.Revision,
			code(k.result))
	}
}

// command builds the command of a write, with conditions on what the client last read of the key.
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
		cmd = state.Command{
			Kind: state.KindPut,
			Put:  &state.Put{Key: op.Key, Value: []byte(op.Value), IfAbsent: op.Kind == check.Create},
		}
		if op.Kind == check.CAS {
			cmd.Put.IfRevision, op.Expect = &last.revision, last.value
		}
	}
	if c.rand.Float64() < idempotent {
		cmd.Idempotency = &state.Idempotency{Key: fmt.Sprintf("c%d-%d", c.id, c.ops), RequestHash: []byte(op.Value)}
	}
	return cmd
}

// call makes one attempt on the leader as far as it is known, or sometimes on any node.
func (c *client) call(op *check.Op, f func(ctx context.Context, n KV) error) error {
	nodes := c.cluster.Nodes()
	i := 0
	if c.readOnly || c.rand.Float64() < c.cfg.AnyNodeRatio {
		i = c.rand.IntN(len(nodes))
	} else {
		i = c.cluster.Leader()
	}
	op.Node = nodes[i].ID
	return c.attempt(i, f)
}

// notProposed reports whether a failed write certainly did not happen.
func notProposed(err error) bool {
	e := asProblem(err)
	return e != nil && (e.Code == cluster.CodeNoLeader || e.Code == cluster.CodeBusy || e.Code == cluster.CodeReadOnly)
}

// refused reports whether an error means that the operation's condition did not hold.
func refused(err *cluster.Error) bool {
	return err.Code == cluster.CodeConditionFailed || err.HTTPStatus() == http.StatusNotFound
}
