package consensus

import (
	"context"
	"time"

	"northstar/cluster"
	"northstar/consensus/raftnode"
	"northstar/state"
)

// unfinishedChange is a membership change of which some steps were made, usually by a leader that then failed.
type unfinishedChange string

const (
	noChange            unfinishedChange = ""
	unfinishedAddition  unfinishedChange = "addition"
	unfinishedRemoval   unfinishedChange = "removal"
	unfinishedReadmit   unfinishedChange = "re-admission"
	unfinishedPromotion unfinishedChange = "promotion"
	resumeChangeTimeout                  = 10 * time.Second
)

// findUnfinished returns which change of a member stopped between two steps, by its record and the configuration:
//
//   - An addition writes a record that is joining, then the configuration.
//   - The removal of a voter changes the configuration, then the record, which is not joining. A half-made addition of
//     a permanent non-voter looks the same, and is undone.
//   - The removal of a non-voter changes the record first.
//   - A re-admission first records that the data directory is dead.
//   - A promotion changes the configuration, then the record, which is joining.
func findUnfinished(rec cluster.Member, servers []cluster.Server) unfinishedChange {
	server, member := cluster.FindServer(servers, rec.ID)
	switch {
	case rec.ID == "" || rec.Removed && !member:
		return noChange
	case rec.Removed || !member && rec.Lifecycle != cluster.Joining:
		return unfinishedRemoval
	case member && rec.Lifecycle == cluster.Dead:
		return unfinishedReadmit
	case member && server.Suffrage == cluster.Voter && rec.Lifecycle == cluster.Joining:
		return unfinishedPromotion
	case !member && checkAdd(cluster.MemberAdd{ID: rec.ID, RaftAddress: rec.RaftAddress}, servers,
		cluster.Member{}) == nil:
		return unfinishedAddition
	}
	return noChange
}

// resumeChange completes the change of a member that stopped between two steps.
func (n *Node) resumeChange(ctx context.Context, id cluster.NodeID) {
	ctx, cancel := context.WithTimeout(ctx, resumeChangeTimeout)
	defer cancel()
	inst, release, err := n.acquireChangeLock(ctx)
	what := noChange
	if err == nil {
		defer release()
		rec, _ := n.View().Member(id)
		what, err = n.resumeLocked(ctx, inst, rec)
	}
	switch {
	case err != nil:
		n.log.Warn("unfinished membership change not completed yet", "node", id, "change", what, "error", err)
	case what != noChange: // otherwise another change was faster
		n.log.Info("unfinished membership change completed", "node", id, "change", what)
	}
}

// resumeLocked completes what findUnfinished finds. The caller holds the change lock.
func (n *Node) resumeLocked(ctx context.Context, inst *raftnode.Instance,
	rec cluster.Member,
) (unfinishedChange, error) {
	what := findUnfinished(rec, inst.Servers())
	switch what {
	case unfinishedAddition:
		return what, n.addNonvoter(ctx, inst, rec)
	case unfinishedRemoval:
		return what, n.removeMember(ctx, inst, rec.ID)
	case unfinishedReadmit:
		return what, n.patchMember(ctx, inst, rec.ID, cluster.MemberPatch{Readmit: true})
	case unfinishedPromotion:
		active := cluster.Active
		return what, n.proposeInternal(ctx, patchCommand(&state.MemberPatch{ID: rec.ID, Lifecycle: &active}))
	}
	return what, nil
}

// outsideReason returns why this node counts as dead by its own log: it was admitted, the configuration does not have
// it any longer, and it knows no leader. The others may all be down, or may not have completed the removal: then none
// of them refuses it.
func (n *Node) outsideReason(st cluster.NodeStatus) string {
	if st.ClusterID == "" || len(st.Servers) == 0 || st.LeaderID != "" || st.Role == cluster.Leader {
		return ""
	}
	ident := n.ident.get()
	_, member := cluster.FindServer(st.Servers, st.NodeID)
	if rec := ident.Roster[st.NodeID]; member || ident.beforeOwnAdmission(st.LastLogIndex) || !rec.Removed &&
		rec.Incarnation != st.Incarnation {
		return ""
	}
	return "node " + string(st.NodeID) + " is not in the cluster's configuration any longer: it was removed"
}
