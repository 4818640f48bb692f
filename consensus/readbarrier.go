package consensus

import (
	"context"
	"sync"
	"time"

	"northstar/cluster"
	"northstar/consensus/raftnode"
)

// rounds collects readers. All readers that wait when a round begins share it; later ones share the next.
type rounds struct {
	mu   sync.Mutex
	next *round        // nil when no reader waits
	wake chan struct{} // capacity 1
}

type round struct {
	done chan struct{} // closed when err is set
	err  *cluster.Error
}

func (r *rounds) join() *round {
	r.mu.Lock()
	next := r.next
	if next == nil {
		next = &round{done: make(chan struct{})}
		r.next = next
	}
	r.mu.Unlock()
	raftnode.Notify(r.wake)
	return next
}

func (r *rounds) startNext() *round {
	r.mu.Lock()
	defer r.mu.Unlock()
	next := r.next
	r.next = nil
	return next
}

// refuse rejects the readers that wait for a round that will not come.
func (r *rounds) refuse(err *cluster.Error) {
	if rd := r.startNext(); rd != nil {
		rd.finish(err)
	}
}

func (r *round) finish(err *cluster.Error) {
	r.err = err
	close(r.done)
}

// ReadBarrier is the linearizable read barrier: when it returns nil, View holds every write that was acknowledged by
// any node before the call. It is CodeNoLeader when this node does not lead, or cannot prove within ctx that it does.
//
// The proof is that a majority of voters, this node counting as one, has acknowledged an append of this term that was
// sent after the call. No other leader can then have acknowledged a write before the call.
func (n *Node) ReadBarrier(ctx context.Context) error {
	if !n.leads() {
		return n.notLeading()
	}
	r := n.readRounds.join()
	select {
	case <-r.done:
		if r.err != nil {
			return r.err
		}
		return nil
	case <-ctx.Done():
		return notLeader("this node could not prove in time that it leads: %w", ctx.Err())
	}
}

func (n *Node) readLoop(ctx context.Context, inst *raftnode.Instance) {
	defer func() { n.readRounds.refuse(n.notLeading()) }()
	for {
		select {
		case <-n.readRounds.wake:
		case <-ctx.Done():
			return
		}
		if r := n.readRounds.startNext(); r != nil {
			r.finish(n.runRound(ctx, inst))
		}
	}
}

// runRound proves leadership once, within twice timeout-max: a leader without a majority has stepped down by then.
func (n *Node) runRound(ctx context.Context, inst *raftnode.Instance) *cluster.Error {
	start := time.Now()
	ctx, cancel := context.WithTimeout(ctx, 2*n.cfg.TimeoutMax)
	defer cancel()
	term, err := n.awaitReady(ctx, inst)
	if err != nil {
		return err
	}
	commit := inst.CommitIndex()
	inst.SendHeartbeats()
	if err := n.awaitQuorum(ctx, inst, term, start); err != nil {
		return err
	}
	if err := n.fsm.Wait(ctx, commit); err != nil {
		return notLeader("the leader did not apply its log in time: %w", err)
	}
	return n.awaitRestoreCommit(ctx, term)
}

// restorePollInterval is how often a reader checks whether a restore is committed.
const restorePollInterval = 10 * time.Millisecond

// awaitRestoreCommit waits for the end of a restore: the library hands the state machine the new state before it is
// committed. A restore of an earlier term is committed: this term's leader-start came after it.
func (n *Node) awaitRestoreCommit(ctx context.Context, term uint64) *cluster.Error {
	committed := func() bool { return n.replacing.Load() != term }
	if !committed() && !every(ctx, restorePollInterval, committed) {
		return notLeader("a backup is being restored and is not committed yet")
	}
	return nil
}

// awaitReady waits for this term's applied leader-start: the commit index may lack acknowledged writes before.
func (n *Node) awaitReady(ctx context.Context, inst *raftnode.Instance) (term uint64, err *cluster.Error) {
	for {
		changed := n.LeaderChanged()
		ready := n.readyChanged()
		if !n.leads() {
			return 0, n.notLeading()
		}
		if term := n.readyTerm.Load(); term != 0 && inst.Leads(term) {
			return term, nil
		}
		select {
		case <-changed:
		case <-ready:
		case <-ctx.Done():
			return 0, notLeader("this node was elected and its leadership has not started yet")
		}
	}
}

// awaitQuorum waits until a majority of voters has acknowledged an append sent at or after start. It reads the
// configuration each time, because that may change.
func (n *Node) awaitQuorum(ctx context.Context, inst *raftnode.Instance, term uint64, start time.Time) *cluster.Error {
	for {
		acked, changed := n.deps.Acks.Changed(), n.LeaderChanged()
		voters := voterIDs(inst.Servers())
		if n.deps.Acks.QuorumSince(term, n.cfg.Self.NodeID, voters, start) && inst.Leads(term) {
			return nil
		}
		if !inst.Leads(term) {
			return n.notLeading()
		}
		select {
		case <-acked:
		case <-changed:
		case <-ctx.Done():
			return notLeader("this node is cut off from the majority")
		}
	}
}
