package consensus

import (
	"context"
	"fmt"
	"time"

	"github.com/hashicorp/raft"

	"northstar/cluster"
	"northstar/consensus/raftnode"
	"northstar/state"
	"northstar/tracing"
)

// Propose puts a command through the log and waits until this node has applied it. Result.Err is the state's own
// refusal, such as a condition that failed. An error says why there is no result:
//
//   - CodeNoLeader: this node does not lead, or stopped before the command was handed to Raft. It has no effect.
//   - CodeBusy: the queue is full, or the deadline passed in it. It has no effect.
//   - CodeReadOnly: the disk is full, or stalled (Error.DiskStalls). It has no effect. A command with an idempotency
//     key waits first, up to twice timeout-max, for the end of the stall or of this leadership.
//   - CodeQuotaExceeded: the state has no room for it. It has no effect. Result.Err can have this code, too.
//   - CodeBadRequest: the command is not valid, or a member cannot read it yet.
//   - CodeOutcomeUnknown: handed to Raft, and its outcome is not known.
//
// A command waits in the queue until this term's leader-start is applied. Only then does this node know every member
// record of its log, and with them which commands every member can read. Writes of keys are appended with the
// leader-start or directly behind it, unless an unapplied entry may change those records. The command must not be
// changed after the call; Propose sets Now.
func (n *Node) Propose(ctx context.Context, cmd state.Command) (state.Result, error) {
	p := &proposal{cmd: cmd}
	ctx, span := tracing.Start(ctx, "propose")
	p.traced = span.Recorded()
	result, err := n.propose(ctx, p)
	n.countProposal(result, err)
	if p.traced {
		p.steps.record(ctx, span, result, err)
	}
	return result, err
}

// proposeInternal proposes one of this package's own commands, which pass the gate. The state's refusal is an error.
func (n *Node) proposeInternal(ctx context.Context, cmd state.Command) error {
	result, err := n.propose(ctx, &proposal{cmd: cmd, own: true})
	if err == nil && result.Err != nil {
		return result.Err
	}
	return err
}

func (n *Node) propose(ctx context.Context, p *proposal) (state.Result, error) {
	err := n.admitProposal(&p.cmd, p.own)
	if err == errStalled && p.cmd.Idempotency != nil { // the caller goes to the next leader with it
		if n.awaitDisk(ctx); ctx.Err() != nil {
			return state.Result{}, cluster.Errorf(cluster.CodeBusy, "not proposed: %v, until the deadline: %w",
				errStalled.Detail, ctx.Err())
		}
		err = n.admitProposal(&p.cmd, p.own)
	}
	if err != nil {
		return state.Result{}, err
	}
	p.size, p.done = queuedBytes(&p.cmd), make(chan outcome, 1)
	p.needs = p.cmd.NeededVersion(n.View().CommandVersion())
	if err := n.queue.add(p); err != nil {
		return state.Result{}, err
	}
	// Leadership may be lost between the check and the queue, whose rejection may have come before this proposal.
	if !n.leads() && !p.own && p.withdraw() {
		return state.Result{}, n.notLeading()
	}
	select {
	case o := <-p.done:
		p.steps = o.steps
		return o.result, o.err
	case <-ctx.Done():
	}
	if p.withdraw() {
		return state.Result{},
			cluster.Errorf(cluster.CodeBusy, "not proposed: it waited in the queue until its deadline: %w", ctx.Err())
	}
	select {
	case o := <-p.done: // it was finished meanwhile
		p.steps = o.steps
		return o.result, o.err
	default:
	}
	return state.Result{}, unknownOutcome(ctx.Err())
}

// errStalled has a RetryAfter, as Error.DiskStalls expects.
var errStalled = &cluster.Error{
	Code: cluster.CodeReadOnly, Detail: "the leader's disk is stalled", RetryAfter: time.Second,
}

// stallPoll is how often a proposal that waits for a stalled disk looks at it.
const stallPoll = 20 * time.Millisecond

// awaitDisk returns when the disk is not stalled, or this node does not lead, and after twice timeout-max. The other
// voters replace a leader whose disk stalls, and then its callers go to the new one.
func (n *Node) awaitDisk(ctx context.Context) {
	limit := time.NewTimer(2 * n.cfg.TimeoutMax)
	defer limit.Stop()
	poll := time.NewTicker(stallPoll)
	defer poll.Stop()
	for changed := n.LeaderChanged(); n.leads() && n.store.Stalled(); changed = n.LeaderChanged() {
		select {
		case <-poll.C:
		case <-changed:
		case <-limit.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

// admitProposal rejects what need not be queued. This package's few commands pass a full disk, which has a reserve.
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
		return errStalled
	}
	if err := cmd.Validate(); err != nil {
		return err
	}
	if !own {
		return nil // filterWritable checks the version, when that of every member is known
	}
	return n.admitVersion(cmd, n.ReadsVersion())
}

// admitVersion rejects a command that some member cannot read: each reads up to version reads. If only the audit
// record, the owner of a new session or the mark of a required role needs a newer version, the command goes without
// it: an upgrade must not prevent writes.
func (n *Node) admitVersion(cmd *state.Command, reads uint32) *cluster.Error {
	inUse := n.View().CommandVersion()
	if dropUnreadable(cmd, inUse, reads) && n.deps.Hooks.Unaudited != nil {
		n.deps.Hooks.Unaudited()
	}
	if need := cmd.NeededVersion(inUse); need > reads {
		err := cluster.Errorf(cluster.CodeBadRequest,
			"this needs command version %d and some member reads only up to %d: upgrade every member first", need,
			reads)
		err.Status = 409
		return err
	}
	return nil
}

// dropUnreadable drops the parts of a command that can be done without and need a higher version than reads: first the
// number of a client's key, then the owner and the mark of a required role. The audit record needs the lowest version.
// Of a version in the log nothing is dropped: a write whose number was recorded would be applied again under a key.
func dropUnreadable(cmd *state.Command, inUse, reads uint32) (unaudited bool) {
	unreadable := func() bool { return cmd.NeededVersion(inUse) > reads }
	if unreadable() {
		cmd.DropNumber()
	}
	if unreadable() {
		cmd.DropOwner()
		cmd.DropRequired()
	}
	unaudited = unreadable() && cmd.Audit != nil
	if unaudited {
		cmd.Audit = nil
	}
	return unaudited
}

// mayWrite rejects users' writes while the node prevents this leader from serving them.
func (n *Node) mayWrite(own bool) *cluster.Error {
	if own || n.deps.MayWrite == nil {
		return nil
	}
	if err := n.deps.MayWrite(); err != nil {
		return notLeader("not proposed: %w", err)
	}
	return nil
}

// filterWritable returns the proposals that are allowed and that all members can read, and finishes the others. A write
// for which the state has no room need not reach the log. Once the gate is open, the state holds all that was proposed
// before this batch, also by earlier leaders. So an earlier attempt of the same write has its result there.
func (n *Node) filterWritable(batch []*proposal) (rest []*proposal) {
	if len(batch) == 0 {
		return nil
	}
	held, upToDate, view, reads := n.mayWrite(false), n.queue.isOpen(), n.View(), n.ReadsVersion()
	rest = make([]*proposal, 0, len(batch))
	for _, p := range batch {
		err := held
		if err == nil {
			err = n.admitVersion(&p.cmd, reads)
		}
		if err == nil && upToDate {
			err = view.RefusesGrowth(&p.cmd)
		}
		if p.own || err == nil {
			rest = append(rest, p)
		} else {
			p.finish(outcome{err: err})
		}
	}
	return rest
}

func (n *Node) countProposal(r state.Result, err error) {
	if n.deps.Hooks.Proposal == nil {
		return
	}
	outcome := "ok"
	switch {
	case err == nil && r.Err != nil && r.Err.Code == cluster.CodeQuotaExceeded:
		outcome = "quota_exceeded"
	case err == nil && r.Err != nil:
		outcome = "refused"
	case err == nil:
	case cluster.IsCode(err, cluster.CodeOutcomeUnknown):
		outcome = "unknown"
	case cluster.IsCode(err, cluster.CodeBusy):
		outcome = "busy"
	case cluster.IsCode(err, cluster.CodeReadOnly):
		outcome = "read_only"
	case cluster.IsCode(err, cluster.CodeQuotaExceeded):
		outcome = "quota_exceeded"
	default:
		outcome = "not_proposed"
	}
	n.deps.Hooks.Proposal(outcome)
}

// proposeLoop proposes one batch after another until ctx ends. Commands that arrive while a batch is in flight form the
// next one. A second batch in flight makes all batches smaller: measured, it costs a tenth of the throughput.
func (n *Node) proposeLoop(ctx context.Context, inst *raftnode.Instance) {
	for ctx.Err() == nil {
		if batch := n.queue.nextBatch(); batch != nil {
			if batch = n.filterWritable(batch); len(batch) > 0 {
				n.proposeBatch(inst, batch)
			}
			n.queue.done()
			continue
		}
		n.subscribers.committed()
		select {
		case <-n.queue.wake:
		case <-ctx.Done():
			return
		}
	}
}

// proposeBatch makes one log entry of a batch and finishes every proposal in it. It waits for the library's future,
// which completes at the latest when this node stops leading or Raft shuts down (see stop for the exception).
func (n *Node) proposeBatch(inst *raftnode.Instance, batch []*proposal) {
	start := piggybackStart(batch)
	if start != nil {
		batch = n.awaitHeldWrites(start, batch)
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

// heldWritesWait bounds how long a leader-start waits for the writes that were held until this node leads.
const heldWritesWait = time.Millisecond

// awaitHeldWrites waits for the writes that were held until this node leads: the same event starts them and the
// leader-start. In one entry with it they cost nothing, behind it a whole append. It adds those that fit to the batch.
func (n *Node) awaitHeldWrites(start *proposal, batch []*proposal) []*proposal {
	if n.deps.HeldWrites == nil {
		return batch
	}
	enough := time.NewTimer(heldWritesWait)
	defer enough.Stop()
	for {
		batch = append(batch, n.filterWritable(n.queue.dequeuePiggybacked(start, sizeOf(batch)))...)
		if len(batch)-1+n.queue.waiting() >= n.deps.HeldWrites() {
			return batch
		}
		select {
		case <-n.queue.wake:
		case <-enough.C:
			return batch
		}
	}
}

// proposeLeaderStart is proposeBatch for a leader-start in flight. Writes that arrive meanwhile are appended directly
// behind it, before the gate opens. Entries are applied in order, so none is acknowledged before the leader-start.
func (n *Node) proposeLeaderStart(inst *raftnode.Instance, start *proposal, batch []*proposal, f raft.ApplyFuture) {
	landed := make(chan struct{})
	go func() {
		_ = f.Error() // completeBatch reads it
		close(landed)
	}()
	piggybacked := n.filterWritable(n.queue.dequeuePiggybacked(start, 0))
	for waiting := true; waiting && len(piggybacked) == 0; {
		select {
		case <-n.queue.wake:
			piggybacked = n.filterWritable(n.queue.dequeuePiggybacked(start, 0))
		case <-landed:
			waiting = false
		}
	}
	var behind raft.ApplyFuture
	if len(piggybacked) > 0 {
		behind = n.submit(inst, piggybacked)
	}
	<-landed
	refused := n.completeBatch(inst, batch, f, start)
	switch {
	case behind == nil:
	case refused != nil && behind.Error() == nil:
		failAll(piggybacked, unknownOutcome(fmt.Errorf("the leader-start ahead of it failed: %w", refused)))
	default:
		n.completeBatch(inst, piggybacked, behind, nil)
	}
}

// completeBatch waits for a batch in flight and answers its proposals. It returns the error if the batch holds a
// leader-start that is rejected: the writes with it or behind it then belong to no leadership, and are unknown.
func (n *Node) completeBatch(inst *raftnode.Instance, batch []*proposal, f raft.ApplyFuture,
	start *proposal,
) (refused *cluster.Error) {
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
			refused = unknownOutcome(fmt.Errorf("the leader-start in its entry was rejected: %w", a.Results[i].Err))
		}
	}
	for i, p := range batch {
		if refused != nil && !p.own {
			p.finish(outcome{err: refused})
			continue
		}
		p.finish(outcome{result: a.Results[i], steps: p.stepsUntil(a)})
	}
	return refused
}

// submit makes Raft's log entry of a batch. A batch that cannot be encoded is finished, and has no future.
func (n *Node) submit(inst *raftnode.Instance, batch []*proposal) raft.ApplyFuture {
	cmds := make([]state.Command, len(batch))
	now := time.Now()
	for i, p := range batch {
		cmds[i] = p.cmd
		cmds[i].Now = now.UnixNano()
		p.submitted = now
	}
	data, err := state.EncodeBatch(cmds)
	if err != nil {
		failAll(batch, cluster.Errorf(cluster.CodeBadRequest, "cannot be encoded: %w", err))
		return nil
	}
	if len(data) > maxEntryBytes { // followers would refuse it, and nothing more would be committed
		failAll(batch, cluster.Errorf(cluster.CodeBadRequest, "one log entry must be at most %d bytes (got %d)",
			maxEntryBytes, len(data)))
		return nil
	}
	n.subscribers.carry(inst.CommitIndex())
	return inst.Apply(data, 2*n.cfg.TimeoutMax)
}

func failAll(batch []*proposal, err *cluster.Error) {
	for _, p := range batch {
		p.finish(outcome{err: err})
	}
}
