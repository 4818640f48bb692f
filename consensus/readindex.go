package consensus

import (
	"context"
	"slices"
	"sync"

	"northstar/cluster"
	"northstar/consensus/raftnode"
)

// ReadIndex is ReadBarrier for another node, which has applied the log up to by.Applied: when that node has applied the
// index that it returns, its state holds every write that was acknowledged before the call (Raft thesis, 6.4). The node
// gets the commit index immediately, since it would wait for it up to twice commitTimeout otherwise. A node that has
// applied more than is committed has the state of a restore that may be abandoned: it gets no read index.
func (n *Node) ReadIndex(ctx context.Context, by cluster.Asker) (uint64, error) {
	inst, term := n.inst.Load(), n.readyTerm.Load()
	var sending sync.WaitGroup
	commit := uint64(0)
	if inst != nil && term != 0 && inst.Leads(term) {
		if commit = inst.CommitIndex(); commit > by.Applied {
			sending.Go(func() {
				if err := inst.SendCommitIndex(by.ID, term); err != nil {
					n.log.Debug("cannot send the commit index", "node", by.ID, "error", err)
				}
			})
		}
	}
	confirmed := commit > 0 && n.confirms(by, inst, term)
	var err error
	if !confirmed {
		err = n.ReadBarrier(ctx)
	}
	sending.Wait()
	switch {
	case err != nil:
		return 0, err
	case !confirmed && (commit == 0 || n.readyTerm.Load() != term): // this term began after the call
		commit = n.fsm.Applied()
	}
	if by.Applied > commit {
		return 0, notLeader("node %s has applied index %d, and only %d is committed", by.ID, by.Applied, commit)
	}
	return commit, nil
}

// confirms reports whether a question proves that no other node led a later term than this node's when the reads began
// for which it is asked. This node leads term, so it has voted in no later one. The asker was still in it after the
// reads began, so it had voted in no later one either. Where the two are a majority of the voters, no other node had
// been elected. The asker counts if it has acknowledged an append of this term, with the same data directory: as for an
// acknowledgement, a vote that was wiped must not be forgotten.
func (n *Node) confirms(by cluster.Asker, inst *raftnode.Instance, term uint64) bool {
	ack, self := n.deps.PeerAck(by.ID), n.cfg.Self.NodeID
	if by.Term != term || ack.Term != term || ack.Incarnation != by.Incarnation || by.ID == self ||
		n.replacing.Load() == term {
		return false
	}
	voters := voterIDs(inst.Servers())
	return slices.Contains(voters, self) && slices.Contains(voters, by.ID) && cluster.Quorum(len(voters)) <= 2
}

// Asker returns this node as one that asks for a read index. Its term is read now, and not as it was sampled last.
func (n *Node) Asker() cluster.Asker {
	a := cluster.Asker{
		ID: n.cfg.Self.NodeID, Incarnation: n.Identity().Incarnation, Applied: n.fsm.Applied(),
	}
	if inst := n.inst.Load(); inst != nil {
		a.Term = inst.CurrentTerm()
	}
	return a
}

// Applied returns the index up to which this node's state reflects the log.
func (n *Node) Applied() uint64 { return n.fsm.Applied() }

// AwaitApplied returns once this node's state reflects the log up to index, or with the cause of ctx's end.
func (n *Node) AwaitApplied(ctx context.Context, index uint64) error { return n.fsm.Wait(ctx, index) }
