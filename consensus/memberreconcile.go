package consensus

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"northstar/cluster"
	"northstar/consensus/raftnode"
	"northstar/state"
)

const (
	// A non-voter is promoted when it has been in contact and at most promoteLag entries behind for promoteAfter. An
	// operator may promote it sooner, but only within promoteLag.
	promoteLag   = 64
	promoteAfter = 2 * time.Second

	membersEvery = 250 * time.Millisecond
)

// memberInputs is everything that decideMemberChanges depends on.
type memberInputs struct {
	servers []cluster.Server
	records map[cluster.NodeID]cluster.Member
	// the last admitted hello of each, this node's own included
	hellos                map[cluster.NodeID]cluster.Peer
	bootstrapIncarnations map[cluster.NodeID]string // recorded when this node bootstrapped
	first                 []FirstMember
	contact               map[cluster.NodeID]bool   // responded recently; this node included
	lag                   map[cluster.NodeID]uint64 // entries behind the leader
	caughtUpSince         map[cluster.NodeID]time.Time
	changeInProgress      bool // a membership change is in progress

	deadAfter    time.Duration                // 0: no voter is removed
	unresponsive map[cluster.NodeID]time.Time // since when each voter is out of contact, in the last plan
	evaluatedAt  time.Time                    // when the last plan was made
}

// memberPlan is what the leader does about its members.
type memberPlan struct {
	commands     []state.Command              // records to write
	promote      cluster.NodeID               // "": none
	complete     []cluster.NodeID             // their changes stopped between two steps
	stable       map[cluster.NodeID]time.Time // since when each joining non-voter is caught up
	remove       cluster.NodeID               // "": none
	unresponsive map[cluster.NodeID]time.Time // since when each voter is out of contact
}

// decideMemberChanges compares the members' hellos with their records, and finds the non-voter to promote.
func decideMemberChanges(now time.Time, in memberInputs) memberPlan {
	plan := memberPlan{stable: map[cluster.NodeID]time.Time{}}
	for _, s := range in.servers {
		rec, recorded := in.records[s.ID]
		hello, met := in.hellos[s.ID]
		if recorded && !in.contact[s.ID] { // it may have stopped, and an operator may have changed its address since
			hello.HTTPAddress = rec.HTTPAddress
		}
		if cmd, due := planRecord(s, rec, recorded, hello, met, in.first); due {
			plan.commands = append(plan.commands, cmd)
		} else if known := in.bootstrapIncarnations[s.ID]; recorded && rec.Incarnation == "" && !rec.Removed &&
			known != "" {
			// It has not returned yet, and must not return with another data directory.
			plan.commands = append(plan.commands, patchCommand(&state.MemberPatch{ID: s.ID, Incarnation: &known}))
		}
		if s.Suffrage == cluster.Voter || rec.Lifecycle != cluster.Joining || rec.Removed {
			continue
		}
		if rec.Incarnation == "" || !in.contact[s.ID] || checkLag(s.ID, in.lag[s.ID]) != nil {
			continue
		}
		since, known := in.caughtUpSince[s.ID]
		if !known {
			since = now
		}
		plan.stable[s.ID] = since
		if now.Sub(since) >= promoteAfter && !in.changeInProgress && plan.promote == "" &&
			quorumAtRisk(withSuffrage(in.servers, s.ID, cluster.Voter), in.contact) == "" {
			plan.promote = s.ID
		}
	}
	for id, rec := range in.records {
		what := findUnfinished(rec, in.servers)
		if in.changeInProgress || what == noChange || what == unfinishedReadmit &&
			quorumAtRisk(withSuffrage(in.servers, id, cluster.NonVoter), in.contact) != "" {
			continue
		}
		plan.complete = append(plan.complete, id)
	}
	slices.Sort(plan.complete)
	plan.unresponsive, plan.remove = planRemoval(now, in)
	return plan
}

const (
	// minVoters is the smallest number of voters after an automatic removal.
	minVoters = 3
	// maxPlanGap: a leader without a plan for longer, as when suspended, counts every voter's silence from now on.
	maxPlanGap = 2 * time.Second
)

// planRemoval finds the voter that has been silent for longest, and for at least deadAfter, if the others can do
// without it: at least minVoters are left, and those in contact are a majority of them.
func planRemoval(now time.Time, in memberInputs) (silent map[cluster.NodeID]time.Time, remove cluster.NodeID) {
	silent = map[cluster.NodeID]time.Time{}
	for _, s := range in.servers {
		if s.Suffrage != cluster.Voter || in.contact[s.ID] {
			continue
		}
		since, known := in.unresponsive[s.ID]
		if !known || now.Sub(in.evaluatedAt) > maxPlanGap {
			since = now
		}
		silent[s.ID] = since
		if in.deadAfter <= 0 || in.changeInProgress || now.Sub(since) < in.deadAfter || remove != "" &&
			!since.Before(silent[remove]) {
			continue
		}
		if removable(in.servers, in.contact, s.ID) {
			remove = s.ID
		}
	}
	return silent, remove
}

// removable reports whether the server id is a voter out of contact that the others can do without.
func removable(servers []cluster.Server, contact map[cluster.NodeID]bool, id cluster.NodeID) bool {
	s, ok := cluster.FindServer(servers, id)
	next := without(servers, id)
	return ok && s.Suffrage == cluster.Voter && !contact[id] && cluster.CountVoters(next) >= minVoters &&
		quorumAtRisk(next, contact) == ""
}

// planRecord returns the change that a member's record needs, if any. It may be made after a change of the membership
// that the plan does not know, so it never has the lifecycle: a demoted member could become active for ever.
func planRecord(s cluster.Server, rec cluster.Member, recorded bool, hello cluster.Peer, met bool,
	first []FirstMember,
) (cmd state.Command, due bool) {
	if !recorded {
		m := newMemberRecord(s, hello, met, first)
		return state.Command{Kind: state.KindMember, Member: &m}, true
	}
	if rec.Removed {
		return state.Command{}, false // the configuration follows
	}
	p := &state.MemberPatch{ID: s.ID}
	setIfNew(&p.RaftAddress, rec.RaftAddress, s.Address)
	if met && (rec.Incarnation == "" || rec.Incarnation == hello.Incarnation) {
		setIfNew(&p.Incarnation, rec.Incarnation, hello.Incarnation)
		if rec.Version == "" {
			// First hello ever: the values of its configuration are first values.
			setFirst(&p.Priority, rec.Priority, cluster.DefaultPriority, hello.Priority)
			setFirst(&p.Eligible, rec.Eligible, true, hello.Eligible)
			setFirst(&p.Zone, rec.Zone, "", hello.Zone)
		}
		setIfNew(&p.HTTPAddress, rec.HTTPAddress, hello.HTTPAddress)
		setIfNew(&p.Version, rec.Version, hello.Version)
		setIfNew(&p.SupportedVersion, rec.Reads, hello.CommandVersion)
	}
	return patchCommand(p), *p != state.MemberPatch{ID: s.ID}
}

func setIfNew[T comparable](field **T, have, want T) {
	if have != want {
		*field = &want
	}
}

// setFirst is setIfNew for a value that no operator has changed: a record without a hello has unset.
func setFirst[T comparable](field **T, have, unset, want T) {
	if have == unset {
		setIfNew(field, have, want)
	}
}

// quorumAtRisk returns why the voters among servers could not form a quorum with those in contact; "" when they can.
func quorumAtRisk(servers []cluster.Server, contact map[cluster.NodeID]bool) string {
	voters, reachable := 0, 0
	silent := ""
	for _, s := range servers {
		if s.Suffrage != cluster.Voter {
			continue
		}
		voters++
		if contact[s.ID] {
			reachable++
		} else {
			silent += " " + string(s.ID)
		}
	}
	need := cluster.Quorum(voters)
	if reachable >= need && voters > 0 {
		return ""
	}
	return fmt.Sprintf("of the resulting %d voters, %d are needed and %d are in contact (silent:%s)", voters, need,
		reachable, silent)
}

// moveAtRisk returns why the quorum would be lost if no node answered at the new address of the server id; "" if the
// other voters are enough. Once appended, such a change cannot be taken back without them.
func moveAtRisk(servers []cluster.Server, contact map[cluster.NodeID]bool, id cluster.NodeID) string {
	if s, ok := cluster.FindServer(servers, id); !ok || s.Suffrage != cluster.Voter {
		return ""
	}
	others := maps.Clone(contact)
	others[id] = false // until it is known to answer at the new address
	why := quorumAtRisk(servers, others)
	if why != "" {
		why = fmt.Sprintf("no node may answer at the new address of node %s: %s", id, why)
	}
	return why
}

func withSuffrage(servers []cluster.Server, id cluster.NodeID, to cluster.Suffrage) []cluster.Server {
	next := slices.Clone(servers)
	for i := range next {
		if next[i].ID == id {
			next[i].Suffrage = to
		}
	}
	return next
}

func without(servers []cluster.Server, id cluster.NodeID) []cluster.Server {
	return slices.DeleteFunc(slices.Clone(servers), func(s cluster.Server) bool { return s.ID == id })
}

// reconcileMembers is the leader task that keeps the member records true, promotes joined nodes and removes dead ones.
func (n *Node) reconcileMembers(ctx context.Context, inst *raftnode.Instance, term uint64) {
	tick := time.NewTicker(membersEvery)
	defer tick.Stop()
	var last memberPlan
	var looked time.Time
	for {
		now := time.Now()
		in := n.gatherMembers(inst, term, last.stable)
		in.deadAfter, in.unresponsive, in.evaluatedAt = n.cfg.DeadAfter, last.unresponsive, looked
		plan := decideMemberChanges(now, in)
		last, looked = plan, now
		for _, cmd := range plan.commands {
			if err := n.proposeInternal(ctx, cmd); err != nil {
				n.log.Debug("member record not written", "error", err)
				break
			}
		}
		for _, id := range plan.complete {
			n.resumeChange(ctx, id)
		}
		if plan.promote != "" {
			n.promoteJoined(ctx, plan.promote)
		}
		if plan.remove != "" {
			n.removeDead(ctx, plan.remove, now.Sub(plan.unresponsive[plan.remove]))
		}
		select {
		case <-tick.C:
		case <-n.peers.kick:
		case <-ctx.Done():
			return
		}
	}
}

// gatherMembers reads the records before the hellos: a command that clears an incarnation drops the hello of the old
// data directory first. In the other order that hello would be recorded for the new one.
func (n *Node) gatherMembers(inst *raftnode.Instance, term uint64, stable map[cluster.NodeID]time.Time) memberInputs {
	in := memberInputs{
		records:               map[cluster.NodeID]cluster.Member{},
		bootstrapIncarnations: n.ident.get().BootstrapIncarnations, first: n.cfg.InitialCluster, caughtUpSince: stable,
	}
	var members []cluster.Member
	in.servers, members = readMembers(inst.Servers, func() []cluster.Member { return n.View().Members() })
	for _, m := range members {
		in.records[m.ID] = m
	}
	in.lag, in.changeInProgress = n.lags(inst, term), len(n.changeSem) > 0
	in.contact = n.contacts(in.servers)
	in.hellos = n.peers.hellos(n.Identity().Generation)
	in.hellos[n.cfg.Self.NodeID] = n.LocalPeer()
	return in
}

// readMembers reads the servers and then the records, again if the servers have changed meanwhile. The record of a
// voter that is demoted in between would look like that of a promoted node, and be made active for ever.
func readMembers(servers func() []cluster.Server, records func() []cluster.Member,
) ([]cluster.Server, []cluster.Member) {
	for before := servers(); ; {
		members, after := records(), servers()
		if slices.Equal(before, after) {
			return before, members
		}
		before = after
	}
}

// lagUnknown is the lag of a node that has acknowledged no entry in this term with its recorded data directory.
const lagUnknown = math.MaxUint64

// lags returns how many entries each server is behind this leader, by its acknowledgements in this term.
// Acknowledgements of a wiped, or removed and re-added, data directory no longer count.
func (n *Node) lags(inst *raftnode.Instance, term uint64) map[cluster.NodeID]uint64 {
	last, view := inst.LastIndex(), n.View()
	lags := map[cluster.NodeID]uint64{}
	for _, s := range inst.Servers() {
		ack := n.deps.PeerAck(s.ID)
		rec, _ := view.Member(s.ID)
		switch {
		case s.ID == n.cfg.Self.NodeID:
			lags[s.ID] = 0
		case ack.Term != term || ack.MatchIndex == 0 || rec.Incarnation == "" || ack.Incarnation != rec.Incarnation:
			lags[s.ID] = lagUnknown
		default:
			lags[s.ID] = last - min(last, ack.MatchIndex)
		}
	}
	return lags
}

// checkLag rejects promoting a node that is far behind: a majority with it could commit nothing until it is not.
func checkLag(id cluster.NodeID, lag uint64) *cluster.Error {
	switch {
	case lag <= promoteLag:
		return nil
	case lag == lagUnknown:
		return cluster.Errorf(cluster.CodeQuorumAtRisk,
			"node %s has acknowledged no entry to this leader: it can become a voter when it is at most %d entries behind", id, promoteLag)
	}
	return cluster.Errorf(cluster.CodeQuorumAtRisk,
		"node %s is %d entries behind: it can become a voter when it is at most %d behind", id, lag, promoteLag)
}
