package consensus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"northstar/cluster"
	"northstar/state"
)

// PlanRecovery polls the other members and evaluates a request; see cluster.PlanRecovery. It changes nothing.
func (n *Node) PlanRecovery(ctx context.Context, request cluster.RecoveryRequest) (cluster.RecoveryPlan, error) {
	inst := n.inst.Load()
	if inst == nil {
		return cluster.RecoveryPlan{}, n.notLeading()
	}
	in := cluster.RecoveryInputs{
		Identity: n.Identity(), Servers: inst.Servers(),
		Responses: map[cluster.NodeID]cluster.Survivor{},
	}
	in.NextGeneration = state.NextGeneration(in.Identity.Generation.Number, n.View().Revision())
	mine := n.Claim()
	in.Responses[mine.NodeID] = survivorOf(mine)
	others := n.otherServers()
	// A node that was just admitted may have the servers of an older configuration. Its roster names the current ones.
	in.ElectionBlocked = inst.ElectionBlocked() && n.currentSoftState().Leader == ""
	for id, rec := range n.ident.get().Roster {
		if in.ElectionBlocked && id != mine.NodeID && !rec.Removed && !slices.Contains(others, id) {
			others = append(others, id)
		}
	}
	if err := checkNextGeneration(in.NextGeneration); err != nil {
		return cluster.RecoveryPlan{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, n.cfg.TimeoutMax+n.cfg.probeTimeout())
	defer cancel()
	for id, seen := range n.deps.Poll(ctx, others) {
		if c := seen.Claim; c.ClusterID == in.Identity.ClusterID && c.Generation == in.Identity.Generation {
			in.ElectionBlocked = false
			if _, ok := cluster.FindServer(in.Servers, id); ok {
				in.Responses[id] = survivorOf(c)
			}
		}
	}
	return cluster.PlanRecovery(request, in)
}

func survivorOf(c cluster.Claim) cluster.Survivor {
	return cluster.Survivor{
		ID: c.NodeID, Voter: c.IsVoter, Priority: c.Priority, LastTerm: c.LastLogTerm,
		LastIndex: c.LastLogIndex,
	}
}

// pendingRecovery is a recovery on its way to the loop that runs Raft.
type pendingRecovery struct {
	request cluster.RecoveryRequest
	done    chan error // capacity 1
}

// Recover makes this node the only voter of a new generation, in place: Raft stops, one write of the identity decides
// the recovery, and Raft starts again. It returns when this node leads and the state shows the new generation. The
// caller has to make sure that it is allowed (PlanRecovery). Errors: CodeBadRequest, CodeQuorumExists, CodeBusy while
// another change runs, CodeOutcomeUnknown when ctx ends after the decision.
func (n *Node) Recover(ctx context.Context, request cluster.RecoveryRequest) (cluster.Generation, error) {
	release, err := n.tryChangeLock()
	if err != nil {
		return cluster.Generation{}, err
	}
	defer release()
	r := &pendingRecovery{request: request, done: make(chan error, 1)}
	select {
	case n.recoveryRequests <- r:
	case <-ctx.Done():
		return cluster.Generation{}, cluster.Errorf(cluster.CodeBusy, "this node could not stop its Raft in time: %w",
			ctx.Err())
	}
	select { // not until ctx ends: from here on it happens, unless it fails
	case err := <-r.done:
		if err != nil {
			return cluster.Generation{}, err
		}
	case <-time.After(recoverWait):
		return cluster.Generation{}, unknownOutcome(errors.New("this node did not stop its Raft in time"))
	}
	generation := n.Identity().Generation
	for {
		changed := n.readyChanged()
		if n.View().Generation() == generation && n.readyTerm.Load() != 0 {
			return generation, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return generation, cluster.Errorf(cluster.CodeOutcomeUnknown,
				"node %s is recovered to generation %d and does not lead yet: %w", n.cfg.Self.NodeID, generation.Number,
				ctx.Err())
		}
	}
}

// recoverWait bounds how long stopping Raft may take; each of its steps is bounded, too.
const recoverWait = 6 * stopWait

// commitRecovery writes the recovery decision while no Raft runs. servers is the latest configuration.
func (n *Node) commitRecovery(request cluster.RecoveryRequest, servers []cluster.Server) error {
	id, err := randomID(n.deps.Entropy)
	if err != nil {
		return err
	}
	facts, err := n.recoveryFacts(servers)
	if err != nil {
		return err
	}
	err = n.ident.update(func(f *identityFile) (bool, error) {
		facts.identity = *f
		next, err := planRecovery(facts, request, id)
		if err == nil {
			*f = next
		}
		return err == nil, err
	})
	if err != nil {
		return err
	}
	n.log.Warn("recovering from a lost quorum", "generation", n.Identity().Generation.Number, "operator",
		request.Operator, "reason", request.Reason)
	n.peers.clear() // everything in it is about a node of the old generation
	n.deps.ResetPeers()
	return nil
}

// keyCurrentTerm is the library's key of the current term.
var keyCurrentTerm = []byte("CurrentTerm")

// recoveryFacts reads what the stores hold, without the identity.
func (n *Node) recoveryFacts(servers []cluster.Server) (recoveryFacts, error) {
	f := recoveryFacts{servers: servers, revision: n.View().Revision()}
	term, err := n.store.Stable().GetUint64(keyCurrentTerm)
	if err != nil && err.Error() != "not found" { // the library compares this text, too
		return f, fmt.Errorf("read the term: %w", err)
	}
	f.currentTerm = term
	f.lastIndex, f.lastTerm, err = lastPosition(n.store.Log(), n.store.Snapshots())
	return f, err
}

// proposeGeneration puts the recovery of this node's log into the state, before any write of the new generation. It
// reports false when the leadership ended first.
func (n *Node) proposeGeneration(ctx context.Context) bool {
	if !n.generationPending() {
		return true
	}
	begun := n.retry(ctx, "cannot start the new generation", n.generationPending, func() error {
		f, v := n.ident.get(), n.View()
		return n.proposeInternal(ctx, f.recoveryCommand(v.CommandVersion(), n.ReadsVersion(), v.Record(f.NodeID)))
	})
	if begun && n.deps.Hooks.Recovered != nil {
		f := n.ident.get()
		n.deps.Hooks.Recovered(Recovered{
			Generation: f.Generation, Voters: f.Recovery.Voters, Reason: f.Recovery.Reason,
			Operator: f.Recovery.Operator,
		})
	}
	return begun
}

// generationPending reports whether this node was recovered and its state does not have the new generation yet.
func (n *Node) generationPending() bool {
	f := n.ident.get()
	return f.Recovery != nil && n.View().Generation().Number < f.Generation.Number
}

// asideTurn lets one call of SetAside run at a time.
type asideTurn struct {
	sem        chan struct{}      // capacity 1
	generation cluster.Generation // for which the next start sets the data aside; changed by the holder of sem
}

// SetAside makes this node start without data at its next start. It keeps the present data apart, and waits as a member
// to be admitted to generation, whose leader is leader. It first asks the leader to confirm the generation. The caller
// restarts the node. Errors: CodeBadRequest; CodeBusy when ctx ends while another call runs; any other is the disk's.
func (n *Node) SetAside(ctx context.Context, confirm string, leader cluster.NodeID,
	generation cluster.Generation,
) error {
	mine := n.Identity()
	switch {
	case mine.ClusterID == "" || confirm != mine.ClusterID:
		return cluster.Errorf(cluster.CodeBadRequest, "confirm: must be the cluster's ID %s (got %q)", mine.ClusterID,
			confirm)
	case mine.Generation == generation:
		return nil // done before
	case mine.Generation.Number >= generation.Number:
		return cluster.Errorf(cluster.CodeBadRequest, "follow: generation %d is not newer than this node's, %d",
			generation.Number, mine.Generation.Number)
	}
	select { // the recovered node's request and its hello may come at the same time
	case n.aside.sem <- struct{}{}:
		defer func() { <-n.aside.sem }()
	case <-ctx.Done():
		return cluster.Errorf(cluster.CodeBusy, "this node already sets its data aside: %w", ctx.Err())
	}
	if n.aside.generation == generation {
		return nil
	}
	server, ok := cluster.FindServer(n.Servers(), leader)
	if !ok || leader == mine.NodeID {
		return cluster.Errorf(cluster.CodeBadRequest, "follow: node %s is not another member of this cluster", leader)
	}
	peer, _, err := n.probe(ctx, server.Address)
	if peer.NodeID != leader || peer.ClusterID != mine.ClusterID || peer.Generation != generation {
		return cluster.Errorf(cluster.CodeBadRequest, "follow: node %s at %s is not of generation %d, recovery %s: %w",
			leader, server.Address, generation.Number, generation.RecoveryID, err)
	}
	incarnation, err := randomID(n.deps.Entropy)
	if err != nil {
		return err
	}
	fresh := identityFile{Identity: cluster.Identity{NodeID: mine.NodeID, Incarnation: incarnation}, JoinOnly: true}
	data, err := json.MarshalIndent(&fresh, "", "  ")
	if err != nil {
		return err
	}
	name := fmt.Sprintf("generation-%d-%.8s", mine.Generation.Number, mine.Incarnation)
	if err := n.store.SetAside(name, identityName, append(data, '\n')); err != nil {
		return err
	}
	n.aside.generation = generation
	n.log.Warn("data will be set aside: node rejoins the new generation with an empty log", "generation",
		generation.Number, "kept_as", name)
	return nil
}
