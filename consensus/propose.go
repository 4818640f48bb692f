package consensus

import (
	"context"
	"fmt"
	"time"

	"github.com/hashicorp/raft"

	"northstar/cluster"
	"northstar/consensus/raftnode"
	"northstar/state"
)

// Propose puts a command through the log and waits until this node has applied
// it. Result.Err is the state's own refusal, such as a condition that failed.
// The error says that the command did not get that far:
//
//   - CodeNoLeader: this node does not lead, or stopped before the command was
//     handed to Raft. It has not happened and will not.
//   - CodeBusy: the queue is full, or the deadline passed in it. Neither.
//   - CodeReadOnly: the disk is full or stalled. Neither.
//   - CodeBadRequest: the command is not valid, or a member cannot read it yet.
//   - CodeOutcomeUnknown: handed to Raft, and what became of it is not known.
//
// A command waits in the queue until this term's leader-start is applied. Only
// then does this node know every member record of its log, and with them what
// every member can read. Writes of keys go with the leader-start or directly behind
// it, when no entry that this node has yet to apply can say otherwise. It must not be changed after the call; Now
// is set here.
func (n *Node) Propose(ctx context.Context, cmd state.Command) (state.Result, error) {
	result, err := n.propose(ctx, &proposal{cmd: cmd})
	n.countProposal(result, err)
	if err != nil {
		return state.Result{}, err
	}
	return result, nil
}

// proposeOwn is Propose for this package's own commands: they pass the gate.
func (n *Node) proposeOwn(ctx context.Context, cmd state.Command) (state.Result, error) {
	result, err := n.propose(ctx, &proposal{cmd: cmd, own: true})
	if err != nil { // not as an error that holds a nil *cluster.Error
		return state.Result{}, err
	}
	return result, nil
}

func (n *Node) propose(ctx context.Context, p *proposal) (state.Result, *cluster.Error) {
	if err := n.admitProposal(&p.cmd, p.own); err != nil {
		return state.Result{}, err
	}
	p.size, p.done = queuedBytes(&p.cmd), make(chan outcome, 1)
	if err := n.queue.add(p); err != nil {
		return state.Result{}, err
	}
	if !n.leads() && !p.own {
		// Leadership was lost between the check and the queue: the refusal that
		// goes with that may have come before this proposal.
		if p.withdraw() {
			return state.Result{}, n.notLeading()
		}
	}
	select {
	case o := <-p.done:
		return o.result, o.err
	case <-ctx.Done():
	}
	if p.withdraw() {
		return state.Result{}, cluster.Errorf(cluster.CodeBusy, "not proposed: it waited in the queue until its deadline: %w", ctx.Err())
	}
	select {
	case o := <-p.done: // it was settled meanwhile
		return o.result, o.err
	default:
	}
	return state.Result{}, unknownOutcome(ctx.Err())
}

// admitProposal refuses what need not be queued. This package's own commands
// pass a full disk: they are few and small, and the reserve is for them.
func (n *Node) admitProposal(cmd *state.Command, own bool) *cluster.Error {
	if !n.leads() {
		return n.notLeading()
	}
	if err := n.mayWrite(own); err != nil {
		return err
	}
	if n.store.ReadOnly() && !own {
		return cluster.Errorf(cluster.CodeReadOnly, "the leader's disk has less space left than disk.reserve")
	}
	if n.store.Stalled() {
		return cluster.Errorf(cluster.CodeReadOnly, "the leader's disk is stalled")
	}
	if err := cmd.Validate(); err != nil {
		return err
	}
	if !own && !n.queue.isOpen() {
		return nil // what every member reads is known when it is taken: see writable
	}
	return n.admitVersion(cmd)
}

// admitVersion refuses a command that some member cannot read. One that only its
// audit record makes so goes without: an upgrade must not keep anybody from
// writing.
func (n *Node) admitVersion(cmd *state.Command) *cluster.Error {
	need := cmd.MinVersion()
	if need <= 1 {
		return nil
	}
	reads := n.View().MinSupportedVersion(n.serverIDs())
	if need > reads && cmd.Audit != nil {
		cmd.Audit = nil
		if n.deps.Hooks.Unaudited != nil {
			n.deps.Hooks.Unaudited()
		}
		need = cmd.MinVersion()
	}
	if need > reads {
		err := cluster.Errorf(cluster.CodeBadRequest, "this needs command version %d and some member reads only up to %d: upgrade every member first", need, reads)
		err.Status = 409
		return err
	}
	return nil
}

// mayWrite refuses writes of others while something outside keeps this leader from
// serving them.
func (n *Node) mayWrite(own bool) *cluster.Error {
	if own || n.deps.MayWrite == nil {
		return nil
	}
	if err := n.deps.MayWrite(); err != nil {
		return notLeader("not proposed: %w", err)
	}
	return nil
}

// filterWritable settles what may not be written any more, and what some member cannot
// read, and gives the rest.
func (n *Node) filterWritable(batch []*proposal) (rest []*proposal) {
	if len(batch) == 0 {
		return nil
	}
	held := n.mayWrite(false)
	for _, p := range batch {
		err := held
		if err == nil {
			err = n.admitVersion(&p.cmd)
		}
		if p.own || err == nil {
			rest = append(rest, p)
		} else {
			p.finish(outcome{err: err})
		}
	}
	return rest
}

func (n *Node) countProposal(r state.Result, err *cluster.Error) {
	if n.deps.Hooks.Proposal == nil {
		return
	}
	outcome := "ok"
	switch {
	case err == nil && r.Err != nil:
		outcome = "refused"
	case err == nil:
	case err.Code == cluster.CodeOutcomeUnknown:
		outcome = "unknown"
	case err.Code == cluster.CodeBusy:
		outcome = "busy"
	case err.Code == cluster.CodeReadOnly:
		outcome = "read_only"
	default:
		outcome = "not_proposed"
	}
	n.deps.Hooks.Proposal(outcome)
}

// proposeLoop proposes one batch after the other until ctx ends: whatever came in
// while a batch was on its way makes the next one, and a lone command goes at
// once. A second batch in flight would save waiting for the disk now and then,
// and make all batches smaller: measured, it costs a tenth of the throughput.
func (n *Node) proposeLoop(ctx context.Context, inst *raftnode.Instance) {
	for ctx.Err() == nil {
		if batch := n.queue.nextBatch(); batch != nil {
			if batch = n.filterWritable(batch); len(batch) > 0 {
				n.proposeBatch(inst, batch)
			}
			n.queue.done()
			continue
		}
		select {
		case <-n.queue.wake:
		case <-ctx.Done():
			return
		}
	}
}

// proposeBatch makes one log entry of a batch and settles every proposal in it.
// It waits for the library's future: that is answered at the latest when this
// node stops leading or Raft shuts down (see stop for the exception).
func (n *Node) proposeBatch(inst *raftnode.Instance, batch []*proposal) {
	start := piggybackStart(batch)
	if start != nil {
		batch = append(batch, n.awaitHeldWrites(start, len(batch)-1)...)
	}
	f := n.submit(inst, batch)
	switch {
	case f == nil:
	case start == nil:
		n.completeBatch(inst, batch, f, nil)
	default:
		n.proposeLeaderStart(inst, start, batch, f)
	}
}

// heldWritesWait bounds how long a leader-start waits for the writes that were held until
// this node leads.
const heldWritesWait = time.Millisecond

// awaitHeldWrites gives the writes that were held until this node leads the moment it
// takes them to get in line: they and the leader-start come of one event. In one
// entry with that they cost nothing, behind it a whole append. So many are there.
func (n *Node) awaitHeldWrites(start *proposal, there int) (riders []*proposal) {
	if n.deps.HeldWrites == nil {
		return nil
	}
	enough := time.NewTimer(heldWritesWait)
	defer enough.Stop()
	for {
		riders = append(riders, n.filterWritable(n.queue.dequeuePiggybacked(start))...)
		if there+len(riders)+n.queue.waiting() >= n.deps.HeldWrites() {
			return riders
		}
		select {
		case <-n.queue.wake:
		case <-enough.C:
			return riders
		}
	}
}

// proposeLeaderStart is proposeBatch for a leader-start that Raft has: writes that come
// while it is on its way go directly behind it, in an entry of their own. They pass
// the gate before that opens, and none is acknowledged before the leader-start is
// applied, as entries are applied in their order.
func (n *Node) proposeLeaderStart(inst *raftnode.Instance, start *proposal, batch []*proposal, f raft.ApplyFuture) {
	landed := make(chan struct{})
	go func() {
		_ = f.Error() // which settle looks at
		close(landed)
	}()
	riders := n.filterWritable(n.queue.dequeuePiggybacked(start))
	for waiting := true; waiting && riders == nil; {
		select {
		case <-n.queue.wake:
			riders = n.filterWritable(n.queue.dequeuePiggybacked(start))
		case <-landed:
			waiting = false
		}
	}
	var behind raft.ApplyFuture
	if riders != nil {
		behind = n.submit(inst, riders)
	}
	<-landed
	refused := n.completeBatch(inst, batch, f, start)
	switch {
	case behind == nil:
	case refused != nil && behind.Error() == nil:
		failAll(riders, unknownOutcome(fmt.Errorf("the leader-start before it failed: %w", refused)))
	default:
		n.completeBatch(inst, riders, behind, nil)
	}
}

// finish waits for a batch that Raft has and answers its proposals. When that
// holds a leader-start which is refused, what became of the writes that went with
// it, or behind it, is not told: they are of no reign. That is the error.
func (n *Node) completeBatch(inst *raftnode.Instance, batch []*proposal, f raft.ApplyFuture, start *proposal) (refused *cluster.Error) {
	err := f.Error()
	inst.NoteResult(err)
	if err != nil {
		refused = proposalError(err, f)
		failAll(batch, refused)
		return refused
	}
	a, ok := f.Response().(raftnode.ApplyResult)
	if !ok || a.Err != nil || len(a.Results) != len(batch) {
		refused = unknownOutcome(fmt.Errorf("the state machine gave no result: %w", a.Err))
		failAll(batch, refused)
		return refused
	}
	for i, p := range batch {
		if p == start && a.Results[i].Err != nil {
			refused = unknownOutcome(fmt.Errorf("the leader-start that it went with was refused: %w", a.Results[i].Err))
		}
	}
	for i, p := range batch {
		if refused != nil && !p.own {
			p.finish(outcome{err: refused})
			continue
		}
		p.finish(outcome{result: a.Results[i]})
	}
	return refused
}

// submit makes a log entry of a batch and gives it to Raft. When that cannot be
// encoded it is settled, and there is no future.
func (n *Node) submit(inst *raftnode.Instance, batch []*proposal) raft.ApplyFuture {
	cmds := make([]state.Command, len(batch))
	now := n.now().UnixNano()
	for i, p := range batch {
		cmds[i] = p.cmd
		cmds[i].Now = now
	}
	data, err := state.EncodeBatch(cmds)
	if err != nil {
		failAll(batch, cluster.Errorf(cluster.CodeBadRequest, "cannot be encoded: %w", err))
		return nil
	}
	return inst.Apply(data, 2*n.cfg.TimeoutMax)
}

func failAll(batch []*proposal, err *cluster.Error) {
	for _, p := range batch {
		p.finish(outcome{err: err})
	}
}
