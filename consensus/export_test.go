package consensus

import (
	"context"
	"errors"
	"io"
	"slices"
	"time"

	"github.com/hashicorp/raft"

	"northstar/cluster"
	"northstar/state"
)

// Instance returns a value that differs between two runs of the Raft node.
func (n *Node) Instance() any { return n.inst.Load() }

// errNoRaft is the answer of a node that ends, or is between two runs of the Raft node.
var errNoRaft = errors.New("no Raft node runs")

// ProposeRaw puts bytes through the log as they are.
func (n *Node) ProposeRaw(data []byte) error {
	inst := n.inst.Load()
	if inst == nil {
		return errNoRaft
	}
	return inst.Raft.ApplyLog(raft.Log{Data: data}, time.Second).Error()
}

// TakeSnapshot makes Raft take a snapshot.
func (n *Node) TakeSnapshot() error {
	inst := n.inst.Load()
	if inst == nil {
		return errNoRaft
	}
	return inst.Raft.Snapshot().Error()
}

// LogBytes returns the bytes of all entries in the log.
func (n *Node) LogBytes() (size int) {
	first, _ := n.store.Log().FirstIndex()
	last, _ := n.store.Log().LastIndex()
	for i := max(first, 1); i <= last; i++ {
		var e raft.Log
		if n.store.Log().GetLog(i, &e) == nil { // otherwise it was compacted meanwhile
			size += len(e.Data)
		}
	}
	return size
}

// LibraryTransfer asks the library for a transfer, past all checks, and returns its answer.
func (n *Node) LibraryTransfer(id, addr string) error {
	return n.inst.Load().Raft.LeadershipTransferToServer(raft.ServerID(id), raft.ServerAddress(addr)).Error()
}

// HoldAside makes further calls of SetAside wait for release.
func (n *Node) HoldAside() (release func()) {
	n.aside.sem <- struct{}{}
	return func() { <-n.aside.sem }
}

// ProbeFlag asks the library whether it takes entries again, as after a transfer that did not arrive. The channel is
// closed when that is known.
func (n *Node) ProbeFlag() <-chan struct{} {
	inst := n.inst.Load()
	return inst.ProbeTransferFlag(inst.CurrentTerm())
}

// AcceptedBy reports whether the last response of peer id admitted this node.
func (n *Node) AcceptedBy(id cluster.NodeID) bool {
	n.peers.mu.Lock()
	defer n.peers.mu.Unlock()
	_, ok := n.peers.admittedBy[id]
	return ok
}

// Riding reports whether Raft has a user's write while the gate is closed.
func (n *Node) Riding() bool {
	n.queue.mu.Lock()
	defer n.queue.mu.Unlock()
	return !n.queue.open && slices.ContainsFunc(n.queue.inFlight, func(p *proposal) bool { return !p.own })
}

// PiggybackCommandVersion is which writes could go with a leader-start now.
func (n *Node) PiggybackCommandVersion() uint32 {
	return n.piggybackCommandVersion(n.inst.Load(), n.inst.Load().Raft.CurrentTerm())
}

// HasWrites reports whether a user's write is queued, or Raft has one.
func (n *Node) HasWrites() bool {
	n.queue.mu.Lock()
	defer n.queue.mu.Unlock()
	return len(n.queue.users) > 0 || slices.ContainsFunc(n.queue.inFlight, func(p *proposal) bool { return !p.own })
}

// QueuedWrites is how many users' writes are queued.
func (n *Node) QueuedWrites() int { return n.queue.waiting() }

// HasOwn reports whether one of this package's own commands is queued, or Raft has one.
func (n *Node) HasOwn() bool {
	n.queue.mu.Lock()
	defer n.queue.mu.Unlock()
	return len(n.queue.own) > 0 || slices.ContainsFunc(n.queue.inFlight, func(p *proposal) bool { return p.own })
}

// MayVote reports whether the node may grant votes.
func (n *Node) MayVote() bool {
	kind, _ := n.VoteObstacle()
	return kind == ""
}

// LeaseFloor is since when sends count for the lease.
func (n *Node) LeaseFloor() time.Time {
	n.lease.mu.Lock()
	defer n.lease.mu.Unlock()
	return n.lease.limits.NotBefore
}

// AddMember adds a node.
func (n *Node) AddMember(ctx context.Context, add cluster.MemberAdd) error {
	return n.ChangeMember(ctx, cluster.MemberChange{ID: add.ID, Add: &add})
}

// PatchMember changes a member.
func (n *Node) PatchMember(ctx context.Context, id cluster.NodeID, patch cluster.MemberPatch) error {
	return n.ChangeMember(ctx, cluster.MemberChange{ID: id, Patch: &patch})
}

// RemoveMember removes a member.
func (n *Node) RemoveMember(ctx context.Context, id cluster.NodeID) error {
	return n.ChangeMember(ctx, cluster.MemberChange{ID: id})
}

// RemoveMemberDuring removes a member. It calls during first, while it holds the change lock.
func (n *Node) RemoveMemberDuring(ctx context.Context, id cluster.NodeID, during func()) error {
	inst, release, err := n.acquireChangeLock(ctx)
	if err != nil {
		return err
	}
	defer release()
	during()
	return n.removeMember(ctx, inst, id)
}

// ChangeInProgress reports whether the change lock is held.
func (n *Node) ChangeInProgress() bool { return len(n.changeSem) > 0 }

// RemoveDead removes a voter as a leader does that has found it silent for long.
func (n *Node) RemoveDead(ctx context.Context, id cluster.NodeID) { n.removeDead(ctx, id, time.Hour) }

// RemoveServerOnly makes the first half of a voter's removal.
func (n *Node) RemoveServerOnly(id cluster.NodeID) error {
	return n.inst.Load().Raft.RemoveServer(raft.ServerID(id), 0, n.enqueueWait()).Error()
}

// RemovePromotedOnly makes the first half of the removal of a voter whose promotion stopped before its record.
func (n *Node) RemovePromotedOnly(ctx context.Context, id cluster.NodeID) error {
	inst, release, err := n.acquireChangeLock(ctx)
	if err != nil {
		return err
	}
	defer release()
	joining := cluster.Joining
	if err := n.proposeInternal(ctx, patchCommand(&state.MemberPatch{ID: id, Lifecycle: &joining})); err != nil {
		return err
	}
	rec, _ := n.View().Member(id)
	return n.removeVoter(ctx, inst, rec)
}

// DemoteOnly makes a voter a non-voter, and writes no record.
func (n *Node) DemoteOnly(id cluster.NodeID) error {
	return n.inst.Load().Raft.DemoteVoter(raft.ServerID(id), 0, n.enqueueWait()).Error()
}

// HoldQueue keeps all proposals from Raft until release is called.
func (n *Node) HoldQueue() (release func()) {
	n.queue.freeze(true)
	return func() { n.queue.freeze(false) }
}

// LargeRegistration is largeRegistration.
func LargeRegistration() state.Command { return largeRegistration() }

// BeginRestore merges a backup as Restore does. install is what Restore does then.
func (n *Node) BeginRestore(ctx context.Context, backup io.Reader) (install func() error, err error) {
	from, err := state.ReadBackup(backup)
	if err != nil {
		return nil, err
	}
	inst, release, err := n.acquireChangeLock(ctx)
	if err != nil {
		return nil, err
	}
	release() // a transfer needs it: the leadership moves meanwhile
	r := restoring{n: n, inst: inst, from: from, merge: state.MergeBackup}
	merged, err := r.prepare(ctx, inst.CurrentTerm())
	return func() error { return r.install(merged) }, err
}

// Installing reports whether a restore has to wait before it hands the library a state.
func (n *Node) Installing() bool { return len(n.installing) > 0 }

// RestoreWith is Restore that calls merging before it merges.
func (n *Node) RestoreWith(ctx context.Context, backup io.Reader, merging func()) error {
	return n.restore(ctx, backup, func(s *state.Snapshot, b *state.Backup, now time.Time) (*state.Snapshot, error) {
		merging()
		return state.MergeBackup(s, b, now)
	})
}

// RestoreOfNextTerm is Restore by a node that is said to be a candidate in the next term. It reports whether it merged.
func (n *Node) RestoreOfNextTerm(ctx context.Context) (merged bool, err error) {
	inst, release, err := n.acquireChangeLock(ctx)
	if err != nil {
		return false, err
	}
	r := restoring{n: n, inst: inst, merge: func(*state.Snapshot, *state.Backup, time.Time) (*state.Snapshot, error) {
		merged = true
		return nil, errors.New("not merged")
	}}
	err = r.runInTerm(ctx, inst.CurrentTerm()+1, release)
	return merged, err
}

// GuardedRead returns the reader of a restore's state, and reports whether it has refused to be read.
func GuardedRead(content io.Reader, leads func() bool) (io.Reader, func() bool) {
	g := &guardedReader{r: content, leads: leads}
	return g, g.refused.Load
}

// lostFuture is answered only by closing until.
type lostFuture struct {
	raft.IndexFuture
	until <-chan struct{}
}

func (f lostFuture) Error() error {
	<-f.until
	return raft.ErrRaftShutdown
}

// AddNonvoter adds a nonvoter to the newest configuration, whether or not the state machine has taken it.
func (n *Node) AddNonvoter(ctx context.Context, id, address string) error {
	inst := n.inst.Load()
	return n.changeConfiguration(ctx, inst, func(uint64) raft.IndexFuture {
		return inst.AddNonvoter(raft.ServerID(id), raft.ServerAddress(address), 0, 0)
	})
}

// EntriesCommitted reports whether the library has committed every entry of the log.
func (n *Node) EntriesCommitted() bool {
	inst := n.inst.Load()
	return inst.CommitIndex() == inst.LastIndex()
}

// Stopping is closed when the node's Raft begins to end.
func (n *Node) Stopping() <-chan struct{} { return n.inst.Load().Stopping }

// ChangeWithoutAnswer asks for a change of the configuration that the library does not answer before until is closed.
func (n *Node) ChangeWithoutAnswer(ctx context.Context, until <-chan struct{}) error {
	return n.changeConfiguration(ctx, n.inst.Load(), func(uint64) raft.IndexFuture { return lostFuture{until: until} })
}

// PlanRecoveryIn plans a recovery of one of two voters, of a cluster in a generation.
func PlanRecoveryIn(generation uint64) (cluster.Generation, error) {
	f := recoveryFacts{servers: []cluster.Server{
		{ID: "n1", Suffrage: cluster.Voter}, {ID: "n2", Suffrage: cluster.Voter},
	}}
	f.identity.NodeID, f.identity.ClusterID, f.identity.Generation.Number = "n1", "c", generation
	next, err := planRecovery(f, cluster.RecoveryRequest{Confirm: "c"}, "r")
	return next.Generation, err
}

// Restoring returns the bytes with which the library replaces the state, 0 if it does not.
func (n *Node) Restoring() int64 { return n.restoring.Load() }
