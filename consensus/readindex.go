package consensus

import (
	"context"
	"sync"

	"northstar/cluster"
)

// ReadIndex is ReadBarrier for another node, which has applied the log up to applied: when that node has applied the
// index that it returns, its state holds every write that was acknowledged before the call (Raft thesis, 6.4). The node
// gets the commit index immediately, since it would wait for it up to twice commitTimeout otherwise. A node that has
// applied more than is committed has the state of a restore that may be abandoned: it gets no read index.
func (n *Node) ReadIndex(ctx context.Context, to cluster.NodeID, applied uint64) (uint64, error) {
	inst, term := n.inst.Load(), n.readyTerm.Load()
	var sending sync.WaitGroup
	commit := uint64(0)
	if inst != nil && term != 0 && inst.Leads(term) {
		if commit = inst.CommitIndex(); commit > applied {
			sending.Go(func() {
				if err := inst.SendCommitIndex(to, term); err != nil {
					n.log.Debug("cannot send the commit index", "node", to, "error", err)
				}
			})
		}
	}
	err := n.ReadBarrier(ctx)
	sending.Wait()
	switch {
	case err != nil:
		return 0, err
	case commit == 0 || n.readyTerm.Load() != term: // this term began after the call
		commit = n.fsm.Applied()
	}
	if applied > commit {
		return 0, notLeader("node %s has applied index %d, and only %d is committed", to, applied, commit)
	}
	return commit, nil
}

// Applied returns the index up to which this node's state reflects the log.
func (n *Node) Applied() uint64 { return n.fsm.Applied() }

// AwaitApplied returns once this node's state reflects the log up to index, or with the cause of ctx's end.
func (n *Node) AwaitApplied(ctx context.Context, index uint64) error { return n.fsm.Wait(ctx, index) }
