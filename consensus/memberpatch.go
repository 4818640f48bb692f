package consensus

import (
	"context"

	"github.com/hashicorp/raft"

	"northstar/cluster"
	"northstar/consensus/raftnode"
	"northstar/state"
)

// patchMember makes a patch that planChange allows. Each step makes sure again that the quorum is not at risk.
func (n *Node) patchMember(ctx context.Context, inst *raftnode.Instance, id cluster.NodeID,
	patch cluster.MemberPatch,
) error {
	rec, known := n.View().Member(id)
	server, member := cluster.FindServer(inst.Servers(), id)
	if !known || rec.Removed || !member {
		return notFound(id)
	}
	recorded := false
	for _, step := range planPatch(rec, server, patch) {
		err := n.patchStep(ctx, inst, server, patch, step)
		if err != nil && recorded { // the leader completes it by itself
			return cluster.Errorf(cluster.CodeOutcomeUnknown, "node %s is recorded as dead and not re-admitted yet: %w",
				id, err)
		}
		if err != nil {
			return err
		}
		recorded = recorded || step.action == recordDead
	}
	if patch.Readmit {
		n.deps.ResetPeers() // a node whose disk is unchanged completes a hello again
	}
	return nil
}

func checkPatch(
	p cluster.MemberPatch, server cluster.Server, servers []cluster.Server, members []cluster.Member,
) *cluster.Error {
	if p.Priority != nil && (*p.Priority < 0 || *p.Priority > cluster.MaxPriority) {
		return cluster.Errorf(cluster.CodeBadRequest, "priority: must be 0 to %d (got %d)", cluster.MaxPriority,
			*p.Priority)
	}
	if p.Suffrage != nil && *p.Suffrage != cluster.Voter && *p.Suffrage != cluster.NonVoter {
		return cluster.Errorf(cluster.CodeBadRequest, "suffrage: must be voter or nonvoter (got %q)", *p.Suffrage)
	}
	if p.Suffrage != nil && p.Readmit {
		return badField("suffrage", *p.Suffrage, "cannot be set together with readmit, which sets it")
	}
	if p.HTTPAddress != nil {
		if err := checkHTTPAddress(server.ID, *p.HTTPAddress, members); err != nil {
			return err
		}
	}
	if p.RaftAddress == nil {
		return nil
	}
	if *p.RaftAddress == "" {
		return cluster.Errorf(cluster.CodeBadRequest, "raft_address: must not be empty")
	}
	for _, s := range servers {
		if s.ID != server.ID && s.Address == *p.RaftAddress {
			return badField("raft_address", *p.RaftAddress, "is that of member "+string(s.ID))
		}
	}
	return nil
}

// checkDrain rejects draining a node that is joining, or whose re-admission is unfinished: ending the drain would not
// restore its previous state. CodeQuorumAtRisk, as for a promotion: the node does not hold what the cluster has yet.
func checkDrain(p cluster.MemberPatch, rec cluster.Member) *cluster.Error {
	if p.Drain == nil || !*p.Drain || rec.Lifecycle != cluster.Joining && rec.Lifecycle != cluster.Dead {
		return nil
	}
	return cluster.Errorf(cluster.CodeQuorumAtRisk, "id: node %s is %s: drain it when it is active", rec.ID,
		rec.Lifecycle)
}

// patchAction is one kind of step of a patch. planPatch has their order.
type patchAction int

const (
	recordDead patchAction = iota // of a data directory that is to be replaced: the next leader completes the rest
	demote
	promote
	moveAddress
	writeRecord
)

type patchStep struct {
	action patchAction
	record *state.MemberPatch // for writeRecord
}

// planPatch orders the steps: stopping after any of them leaves a safe state, which the same patch completes.
func planPatch(rec cluster.Member, server cluster.Server, p cluster.MemberPatch) []patchStep {
	r := &state.MemberPatch{
		ID: rec.ID, Priority: p.Priority, Eligible: p.Eligible, Zone: p.Zone, HTTPAddress: p.HTTPAddress,
	}
	var steps []patchStep
	lifecycle := func(l cluster.Lifecycle) { r.Lifecycle = &l }
	activate := func() {
		if rec.Lifecycle != cluster.Draining { // only an operator ends a drain
			lifecycle(cluster.Active)
		}
	}
	voter := server.Suffrage == cluster.Voter
	switch {
	case p.Readmit:
		none := ""
		r.Incarnation = &none
		if voter && rec.Lifecycle != cluster.Dead {
			steps = append(steps, patchStep{action: recordDead})
		}
		if voter {
			steps = append(steps, patchStep{action: demote})
		}
		if voter || rec.Lifecycle == cluster.Joining || rec.Lifecycle == cluster.Dead {
			lifecycle(cluster.Joining)
		}
	case p.Suffrage != nil && *p.Suffrage == cluster.NonVoter:
		if rec.Lifecycle == cluster.Joining { // first: a leader promotes a joining non-voter
			active := cluster.Active
			steps = append(steps, patchStep{
				action: writeRecord, record: &state.MemberPatch{ID: rec.ID, Lifecycle: &active},
			})
		} else {
			activate()
		}
		if voter {
			steps = append(steps, patchStep{action: demote})
		}
	case p.Suffrage != nil && !voter:
		steps = append(steps, patchStep{action: promote})
		activate()
	}
	if p.Drain != nil && (rec.Lifecycle == cluster.Draining) != *p.Drain {
		lifecycle(map[bool]cluster.Lifecycle{true: cluster.Draining, false: cluster.Active}[*p.Drain])
	}
	if p.RaftAddress != nil && *p.RaftAddress != server.Address {
		steps = append(steps, patchStep{action: moveAddress})
		r.RaftAddress = p.RaftAddress
	}
	if *r != (state.MemberPatch{ID: rec.ID}) {
		steps = append(steps, patchStep{action: writeRecord, record: r})
	}
	return steps
}

func (n *Node) patchStep(ctx context.Context, inst *raftnode.Instance, server cluster.Server, p cluster.MemberPatch,
	step patchStep,
) error {
	switch step.action {
	case writeRecord:
		return n.proposeInternal(ctx, patchCommand(step.record))
	case recordDead, demote:
		if err := n.checkQuorum(withSuffrage(inst.Servers(), server.ID, cluster.NonVoter)); err != nil {
			return err
		}
		if err := n.transferIfSelf(ctx, inst, server.ID); err != nil {
			return err
		}
		if step.action == recordDead {
			dead := cluster.Dead
			return n.proposeInternal(ctx, patchCommand(&state.MemberPatch{ID: server.ID, Lifecycle: &dead}))
		}
		return n.changeConfiguration(ctx, inst, func(prev uint64) raft.IndexFuture {
			return inst.DemoteVoter(raft.ServerID(server.ID), prev, n.enqueueWait())
		})
	case promote:
		term, err := n.awaitReady(ctx, inst)
		if err != nil {
			return err
		}
		if err := checkLag(server.ID, n.lags(inst, term)[server.ID]); err != nil {
			return err
		}
		if err := n.checkQuorum(withSuffrage(inst.Servers(), server.ID, cluster.Voter)); err != nil {
			return err
		}
		return n.changeConfiguration(ctx, inst, func(prev uint64) raft.IndexFuture {
			return inst.AddVoter(raft.ServerID(server.ID), raft.ServerAddress(server.Address), prev, n.enqueueWait())
		})
	case moveAddress:
		servers := inst.Servers() // an earlier step may have demoted it
		if why := moveAtRisk(servers, n.contacts(servers), server.ID); why != "" {
			return cluster.Errorf(cluster.CodeQuorumAtRisk, "%s", why)
		}
		if err := n.transferIfSelf(ctx, inst, server.ID); err != nil {
			return err
		}
		return n.moveAddress(ctx, inst, server.ID, *p.RaftAddress)
	}
	return nil
}

func (n *Node) moveAddress(ctx context.Context, inst *raftnode.Instance, id cluster.NodeID, address string) error {
	server, _ := cluster.FindServer(inst.Servers(), id) // an earlier step may have demoted it
	return n.changeConfiguration(ctx, inst, func(prev uint64) raft.IndexFuture {
		if server.Suffrage == cluster.Voter {
			return inst.AddVoter(raft.ServerID(id), raft.ServerAddress(address), prev, n.enqueueWait())
		}
		return inst.AddNonvoter(raft.ServerID(id), raft.ServerAddress(address), prev, n.enqueueWait())
	})
}
