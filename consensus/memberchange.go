package consensus

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/raft"

	"northstar/cluster"
	"northstar/consensus/raftnode"
	"northstar/election"
	"northstar/state"
)

// acquireChangeLock waits for the change lock, which membership changes, transfers and restores hold one at a time.
func (n *Node) acquireChangeLock(ctx context.Context) (inst *raftnode.Instance, release func(), err error) {
	inst = n.inst.Load()
	if inst == nil || !n.leads() {
		return nil, nil, n.notLeading()
	}
	select {
	case n.changeSem <- struct{}{}:
	case <-ctx.Done():
		return nil, nil,
			cluster.Errorf(cluster.CodeBusy, "another change of membership or leadership is in progress: %w", ctx.Err())
	}
	release = func() { <-n.changeSem }
	if _, rerr := n.awaitReady(ctx, inst); rerr != nil {
		release()
		return nil, nil, rerr
	}
	return inst, release, nil
}

// ChangeMember makes one membership change. A change that PlanChange refuses changes nothing, also if it has several
// steps and a later one is refused. Errors: CodeNoLeader, CodeBusy, CodeTermStale when the change was planned for
// another membership, CodeQuorumAtRisk when the change would lose the quorum or promote a node that is too far behind,
// CodeBadRequest naming the field (status 404 for an unknown member), CodeForbidden when a removed node adds itself,
// CodeOutcomeUnknown.
//
// An addition makes a non-voter. With Promote the leader makes it a voter once it is caught up and stable. Adding the
// same node twice changes nothing.
//
// A patch with Readmit clears the recorded data directory of the member. A voter becomes a non-voter first and is
// promoted again when it has caught up: the votes and entries that it has lost must no longer count.
//
// A removal is permanent: the node's data directory is refused from then on. A leader that is to remove itself
// transfers leadership first and returns CodeNoLeader: repeat the request on the new leader.
func (n *Node) ChangeMember(ctx context.Context, change cluster.MemberChange) error {
	inst, release, err := n.acquireChangeLock(ctx)
	if err != nil {
		return err
	}
	defer release()
	if m := change.Membership; m != "" && m != cluster.MembershipDigest(inst.Servers(), n.View().Members()) {
		return cluster.Errorf(cluster.CodeTermStale,
			"plan_id: the membership has changed since the plan was made: make a new one")
	}
	plan, err := n.PlanChange(ctx, change)
	switch {
	case err != nil:
		return err
	case plan.Refusal != nil:
		return plan.Refusal
	case change.Add != nil:
		return n.addMember(ctx, inst, *change.Add)
	case change.Patch != nil:
		return n.patchMember(ctx, inst, change.ID, *change.Patch)
	}
	return n.removeMember(ctx, inst, change.ID)
}

// addMember makes an addition that planChange allows.
func (n *Node) addMember(ctx context.Context, inst *raftnode.Instance, add cluster.MemberAdd) error {
	servers := inst.Servers()
	rec, known := n.View().Member(add.ID)
	if _, member := cluster.FindServer(servers, add.ID); member && known && !rec.Removed {
		return nil
	}
	m := cluster.Member{
		ID: add.ID, RaftAddress: add.RaftAddress, HTTPAddress: add.HTTPAddress,
		Priority: cluster.DefaultPriority, Eligible: true, Lifecycle: cluster.Active,
	}
	if add.Promote {
		m.Lifecycle = cluster.Joining
	}
	if known && !rec.Removed {
		m.Incarnation = rec.Incarnation // an earlier AddMember did not finish
	}
	if err := n.proposeInternal(ctx, state.Command{Kind: state.KindMember, Member: &m}); err != nil {
		return err
	}
	err := n.addNonvoter(ctx, inst, m)
	if err != nil && add.Promote { // the leader completes it by itself, so something has happened
		return cluster.Errorf(cluster.CodeOutcomeUnknown, "node %s is recorded and not a member yet: %w", add.ID, err)
	}
	return err
}

func (n *Node) addNonvoter(ctx context.Context, inst *raftnode.Instance, m cluster.Member) error {
	return n.changeConfiguration(ctx, inst, func(prev uint64) raft.IndexFuture {
		return inst.AddNonvoter(raft.ServerID(m.ID), raft.ServerAddress(m.RaftAddress), prev, n.enqueueWait())
	})
}

// checkAddedBy rejects an addition that a removed node requests for itself, also before its removal is completed. The
// caller holds the change lock: a removal that was requested before the addition is in the record rec.
func checkAddedBy(add cluster.MemberAdd, servers []cluster.Server, rec cluster.Member) *cluster.Error {
	if add.ByNode && (rec.Removed || findUnfinished(rec, servers) == unfinishedRemoval) {
		return cluster.Errorf(cluster.CodeForbidden,
			"id: node %s was removed from the cluster: only an operator may add it again", add.ID)
	}
	return nil
}

// checkAdd rejects an addition that is not possible, for example of a member whose record rec has other addresses.
func checkAdd(add cluster.MemberAdd, servers []cluster.Server, rec cluster.Member) *cluster.Error {
	if _, err := cluster.ParseNodeID(string(add.ID)); err != nil {
		return cluster.Errorf(cluster.CodeBadRequest, "id: %w", err)
	}
	if add.RaftAddress == "" {
		return cluster.Errorf(cluster.CodeBadRequest, "raft_address: must not be empty")
	}
	for _, s := range servers {
		if s.ID != add.ID && s.Address == add.RaftAddress {
			return cluster.Errorf(cluster.CodeBadRequest, "raft_address: %s is that of member %s", add.RaftAddress,
				s.ID)
		}
		if s.ID == add.ID && s.Address != add.RaftAddress {
			return cluster.Errorf(cluster.CodeBadRequest, "raft_address: member %s exists with %s; change it by PATCH",
				s.ID, s.Address)
		}
		if s.ID == add.ID && rec.ID == add.ID && !rec.Removed && add.HTTPAddress != rec.HTTPAddress {
			return cluster.Errorf(cluster.CodeBadRequest, "http_address: member %s exists with %s; change it by PATCH",
				s.ID, rec.HTTPAddress)
		}
	}
	return nil
}

// checkHTTPAddress rejects another member's address for the member id: requests for one would reach the other.
func checkHTTPAddress(id cluster.NodeID, address string, members []cluster.Member) *cluster.Error {
	for _, m := range members {
		if m.ID != id && !m.Removed && address != "" && m.HTTPAddress == address {
			return badField("http_address", address, "is that of member "+string(m.ID))
		}
	}
	return nil
}

// removeMember takes a voter out of the configuration first: its vote counts until then. Of a non-voter it writes the
// record first, so that no leader promotes it. The leader completes what stops in between: see findUnfinished.
func (n *Node) removeMember(ctx context.Context, inst *raftnode.Instance, id cluster.NodeID) error {
	rec, known := n.View().Member(id)
	server, member := cluster.FindServer(inst.Servers(), id)
	if !known || rec.Removed && !member {
		return notFound(id)
	}
	if member && server.Suffrage == cluster.Voter {
		if err := n.removeVoter(ctx, inst, rec); err != nil {
			return err
		}
		member = false
	}
	if !rec.Removed {
		removal := &state.MemberRemove{ID: id}
		err := n.proposeInternal(ctx, state.Command{Kind: state.KindMemberRemove, MemberRemove: removal})
		if err != nil {
			return err
		}
	}
	if !member {
		return nil
	}
	if err := n.removeServer(ctx, inst, id); err != nil { // the leader completes it by itself
		return cluster.Errorf(cluster.CodeOutcomeUnknown, "node %s is recorded as removed and still a member: %w", id,
			err)
	}
	return nil
}

func (n *Node) removeVoter(ctx context.Context, inst *raftnode.Instance, rec cluster.Member) error {
	if err := n.checkQuorum(without(inst.Servers(), rec.ID)); err != nil {
		return err
	}
	if err := n.transferIfSelf(ctx, inst, rec.ID); err != nil {
		return err
	}
	if rec.Lifecycle == cluster.Joining && !rec.Removed { // otherwise the rest would look like an unfinished addition
		active := cluster.Active
		err := n.proposeInternal(ctx, patchCommand(&state.MemberPatch{ID: rec.ID, Lifecycle: &active}))
		if err != nil {
			return err
		}
	}
	return n.removeServer(ctx, inst, rec.ID)
}

func (n *Node) removeServer(ctx context.Context, inst *raftnode.Instance, id cluster.NodeID) error {
	return n.changeConfiguration(ctx, inst, func(prev uint64) raft.IndexFuture {
		return inst.RemoveServer(raft.ServerID(id), prev, n.enqueueWait())
	})
}

func patchCommand(p *state.MemberPatch) state.Command {
	return state.Command{Kind: state.KindMemberPatch, MemberPatch: p}
}

func (n *Node) promoteJoined(ctx context.Context, id cluster.NodeID) {
	voter := cluster.Voter
	change := cluster.MemberChange{ID: id, Patch: &cluster.MemberPatch{Suffrage: &voter}}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if err := n.ChangeMember(ctx, change); err != nil {
		n.log.Warn("joined member not promoted yet", "node", id, "error", err)
		return
	}
	n.log.Info("member promoted to voter", "node", id)
}

func (n *Node) removeDead(ctx context.Context, id cluster.NodeID, silent time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	switch removed, err := n.removeSilent(ctx, id); {
	case err != nil:
		n.log.Warn("dead voter not removed yet", "node", id, "silent", silent, "error", err)
	case removed:
		n.log.Warn("dead voter removed: its data directory is refused from now on", "node", id, "silent", silent,
			"members.dead-after", n.cfg.DeadAfter)
	}
}

// removeSilent removes a voter, unless it has come back, or the membership has changed, during the wait for the change
// lock. It reports whether it did.
func (n *Node) removeSilent(ctx context.Context, id cluster.NodeID) (removed bool, err error) {
	inst, release, err := n.acquireChangeLock(ctx)
	if err != nil {
		return false, err
	}
	defer release()
	if servers := inst.Servers(); !removable(servers, n.contacts(servers), id) {
		return false, nil
	}
	return true, n.removeMember(ctx, inst, id)
}

// checkQuorum rejects a configuration with too few voters in contact.
func (n *Node) checkQuorum(next []cluster.Server) error {
	if why := quorumAtRisk(next, n.contacts(next)); why != "" {
		return cluster.Errorf(cluster.CodeQuorumAtRisk, "%s", why)
	}
	return nil
}

// successors returns the records of the voters besides leader, the highest priority first: of those that may lead, and
// of the others. A voter without a record may lead.
func successors(servers []cluster.Server, members []cluster.Member, leader cluster.NodeID,
) (fit, ineligible []cluster.Member) {
	for _, s := range servers {
		if s.Suffrage != cluster.Voter || s.ID == leader {
			continue
		}
		m := cluster.Member{ID: s.ID, Priority: cluster.DefaultPriority, Eligible: true}
		if i := slices.IndexFunc(members, func(m cluster.Member) bool { return m.ID == s.ID }); i >= 0 {
			m = members[i]
		}
		if m.IneligibleReason() == "" {
			fit = append(fit, m)
		} else {
			ineligible = append(ineligible, m)
		}
	}
	slices.SortStableFunc(fit, func(a, b cluster.Member) int { return cmp.Compare(b.Priority, a.Priority) })
	return fit, ineligible
}

// transferIfSelf transfers leadership, to a voter that may lead, when the change concerns this node itself. The caller
// holds the change lock.
func (n *Node) transferIfSelf(ctx context.Context, inst *raftnode.Instance, id cluster.NodeID) error {
	if id != n.cfg.Self.NodeID {
		return nil
	}
	var why []error
	fit, ineligible := successors(inst.Servers(), n.View().Members(), id)
	for _, m := range fit {
		err := n.transferLocked(ctx, inst, cluster.TransferNotice{
			To: m.ID, Trigger: election.TriggerTransfer,
			Reason: "the membership of node " + string(id) + " is changed",
		})
		var failed *TransferError
		if err == nil || errors.As(err, &failed) && failed.TimeoutNowSent() {
			return notLeader("node %s had to transfer leadership first: repeat the request on the new leader", id)
		}
		select {
		case <-inst.Stopping: // that node may lead by now
			return err
		default:
			why = append(why, err)
		}
	}
	for _, m := range ineligible {
		why = append(why, fmt.Errorf("node %s %s", m.ID, m.IneligibleReason()))
	}
	return cluster.Errorf(cluster.CodeQuorumAtRisk, "node %s leads, and no other voter could take over: %w", id,
		errors.Join(why...))
}

// changeConfiguration makes one configuration change and waits until it is committed. The library rejects it when the
// configuration has changed since the one that the decision was based on.
func (n *Node) changeConfiguration(ctx context.Context, inst *raftnode.Instance,
	change func(prev uint64) raft.IndexFuture,
) error {
	n.lease.revoke()
	defer n.lease.revoke() // sends before the new configuration was committed no longer count
	f := change(n.fsm.LastConfiguration())
	done := make(chan error, 1)
	inst.Answers.Go(func() { done <- f.Error() })
	select {
	case err := <-done:
		inst.NoteResult(err)
		if err == nil {
			return n.fsm.Wait(ctx, f.Index())
		}
		if strings.HasPrefix(err.Error(), "configuration changed since") {
			return cluster.Errorf(cluster.CodeBusy, "the membership was changed concurrently: %w", err)
		}
		if perr := proposalError(err, f); perr.Code != cluster.CodeOutcomeUnknown || f.Index() != 0 {
			return perr
		}
		// the library checks it before it appends
		return cluster.Errorf(cluster.CodeBadRequest, "refused by Raft: %w", err)
	case <-ctx.Done():
		return unknownOutcome(ctx.Err())
	}
}

// enqueueWait returns how long the library's main loop may be busy before a change is given up without effect. It
// accepts no change while another is uncommitted.
func (n *Node) enqueueWait() time.Duration { return 4 * n.cfg.TimeoutMax }
