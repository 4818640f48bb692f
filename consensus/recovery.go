package consensus

import (
	"fmt"
	"slices"

	"github.com/hashicorp/raft"

	"northstar/cluster"
	"northstar/state"
)

// termJump is how far a recovery raises the term: no node that has seen a term of the lost nodes may take the new
// leader for an old one.
const termJump = 1_000_000

// recoveryRecord is what a data directory must keep between the decision to recover it, which is one write of the
// identity, and the moment when log and state show the recovery.
type recoveryRecord struct {
	Term      uint64           `json:"term"`             // of the entry with the new configuration
	Servers   []cluster.Server `json:"servers"`          // that configuration: this node is its only voter
	Voters    []cluster.NodeID `json:"voters"`           // the other voters of the previous configuration
	Rejoining []cluster.NodeID `json:"aside,omitempty"`  // the other nodes whose data is set aside
	Reason    string           `json:"reason,omitempty"` // as the operator gave it
	Operator  string           `json:"operator,omitempty"`
	Logged    bool             `json:"logged"` // term and entry are on disk
}

// recoveryFacts is the content of a data directory on which its recovery depends.
type recoveryFacts struct {
	identity    identityFile
	currentTerm uint64
	lastIndex   uint64 // of the last entry, in log or snapshot
	lastTerm    uint64
	servers     []cluster.Server
}

// planRecovery returns the identity with which a data directory begins the next generation.
func planRecovery(f recoveryFacts, order cluster.RecoveryRequest, recoveryID string) (identityFile, error) {
	next := f.identity
	self := next.NodeID
	switch me, member := cluster.FindServer(f.servers, self); {
	case next.ClusterID == "":
		return next, cluster.Errorf(cluster.CodeBadRequest,
			"confirm: node %s belongs to no cluster yet: there is nothing to recover", self)
	case order.Confirm != next.ClusterID:
		return next, cluster.Errorf(cluster.CodeBadRequest, "confirm: want the cluster's ID %s, got %q", next.ClusterID,
			order.Confirm)
	case next.Recovery != nil && !next.Recovery.Logged:
		return next, cluster.Errorf(cluster.CodeBadRequest,
			"node %s was recovered to generation %d and has not been started since: start it", self,
			next.Generation.Number)
	case !member:
		return next, cluster.Errorf(cluster.CodeBadRequest,
			"node %s is not a member in its own log: recover another one", self)
	case me.Suffrage == cluster.Voter && cluster.CountVoters(f.servers) == 1 && !next.beforeOwnAdmission(f.lastIndex):
		return next, cluster.Errorf(cluster.CodeQuorumExists,
			"node %s is the only voter: it needs no other node, start it", self)
	}
	r := &recoveryRecord{
		Term: max(f.currentTerm, f.lastTerm) + termJump, Reason: order.Reason,
		Operator: order.Operator,
	}
	for _, s := range f.servers {
		if s.Suffrage == cluster.Voter && s.ID != self {
			r.Voters = append(r.Voters, s.ID)
		}
		s.Suffrage = cluster.NonVoter
		if s.ID == self {
			s.Suffrage = cluster.Voter
		}
		r.Servers = append(r.Servers, s)
	}
	for _, id := range order.Survivors {
		if id != self {
			r.Rejoining = append(r.Rejoining, id)
		}
	}
	next.Generation = cluster.Generation{Number: next.Generation.Number + 1, RecoveryID: recoveryID}
	next.Recovery = r
	next.BootstrapIncarnations = nil // the log says which nodes the new generation admits
	// A node that was just admitted may have got a roster that is newer than its log.
	next.RosterIndex, next.RosterTerm = min(next.RosterIndex, f.lastIndex), min(next.RosterTerm, f.lastTerm)
	return next, nil
}

// recoveryCommand returns the first command of the new generation. reads is the highest command version that its
// members apply. During an upgrade the command is one that older builds read, and roles then have no lock delay. known
// is this node's record in the state: it names the previous data directory when the log ends before the admission of
// this one.
func (f *identityFile) recoveryCommand(reads uint32, known cluster.Record) state.Command {
	readmit := f.Recovery.Rejoining
	if known.Incarnation != f.Incarnation {
		readmit = append(slices.Clone(readmit), f.NodeID)
	}
	cmd := state.Command{Kind: state.KindRecovery, Recovery: &state.Recovery{
		Generation: f.Generation, Voters: f.Recovery.Voters, Readmit: readmit, LockDelay: true,
	}}
	cmd.Recovery.LockDelay = cmd.MinVersion() <= reads
	return cmd
}

// logRecovery writes what the log lacks of a decided recovery: the raised term, and one entry with the new
// configuration. This node is its only voter, so the next election commits that entry and everything before it.
// logRecovery can be repeated: Raft does not run before it is complete.
func (n *Node) logRecovery() error {
	r := n.ident.get().Recovery
	if r == nil || r.Logged {
		return nil
	}
	term, err := n.store.Stable().GetUint64([]byte("CurrentTerm"))
	if err != nil && err.Error() != "not found" { // the library compares this text, too
		return fmt.Errorf("recover: read the term: %w", err)
	}
	if term < r.Term {
		if err := n.store.Stable().SetUint64([]byte("CurrentTerm"), r.Term); err != nil {
			return fmt.Errorf("recover: raise the term: %w", err)
		}
	}
	index, last, err := lastPosition(n.store.Log(), n.store.Snapshots())
	if err != nil {
		return fmt.Errorf("recover: %w", err)
	}
	if last < r.Term { // only this node can have written one of that term
		entry := &raft.Log{
			Index: index + 1, Term: r.Term, Type: raft.LogConfiguration,
			Data: raft.EncodeConfiguration(configurationOf(r.Servers)),
		}
		if err := n.store.Log().StoreLog(entry); err != nil {
			return fmt.Errorf("recover: store the new configuration: %w", err)
		}
	}
	n.log.Warn("this node is the only voter of a new generation", "generation", n.ident.get().Generation.Number,
		"after_index", index, "of_term", last)
	return n.ident.update(func(f *identityFile) (bool, error) {
		done := *f.Recovery
		done.Logged = true
		f.Recovery = &done
		return true, nil
	})
}

// lastPosition returns where log and snapshots end.
func lastPosition(log raft.LogStore, snaps raft.SnapshotStore) (index, term uint64, err error) {
	list, err := snaps.List()
	if err != nil {
		return 0, 0, fmt.Errorf("list snapshots: %w", err)
	}
	for _, m := range list {
		if m.Index >= index {
			index, term = m.Index, m.Term
		}
	}
	last, err := log.LastIndex()
	if err != nil || last <= index {
		return index, term, err
	}
	var e raft.Log
	if err := log.GetLog(last, &e); err != nil {
		return 0, 0, fmt.Errorf("read log entry %d: %w", last, err)
	}
	return last, e.Term, nil
}

func configurationOf(servers []cluster.Server) raft.Configuration {
	var conf raft.Configuration
	for _, s := range servers {
		suffrage := raft.Nonvoter
		if s.Suffrage == cluster.Voter {
			suffrage = raft.Voter
		}
		conf.Servers = append(conf.Servers, raft.Server{
			ID: raft.ServerID(s.ID), Address: raft.ServerAddress(s.Address),
			Suffrage: suffrage,
		})
	}
	return conf
}
