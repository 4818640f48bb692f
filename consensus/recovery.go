package consensus

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/hashicorp/raft"

	"northstar/cluster"
	"northstar/consensus/raftnode"
	"northstar/consensus/storage"
	"northstar/election"
	"northstar/state"
)

// termJump is by how much a recovery raises the term, above any term that a node has seen of the lost nodes.
const termJump = 1_000_000

// maxOldData bounds the survivors that a recovered node's hello names.
const maxOldData = 32

// recoveryRecord is what a data directory must keep between the decision to recover it, which is one write of the
// identity, and the moment when log and state show the recovery.
type recoveryRecord struct {
	Term      uint64           `json:"term"`            // of the entry with the new configuration
	Servers   []cluster.Server `json:"servers"`         // that configuration: this node is its only voter
	Voters    []cluster.NodeID `json:"voters"`          // the other voters of the previous configuration
	Rejoining []cluster.NodeID `json:"aside,omitempty"` // the other nodes whose data is set aside
	// OldData has the data directories of those nodes in the old generation, as far as they are known.
	OldData map[cluster.NodeID]string `json:"old_data,omitempty"`

	Reason   string `json:"reason,omitempty"` // as the operator gave it
	Operator string `json:"operator,omitempty"`
	Logged   bool   `json:"logged"` // term and entry are on disk
}

// electionFacts returns what is known of the first election after the recovery. The operator caused it, and not the
// candidacy before the recovery.
func (r *recoveryRecord) electionFacts(f ElectionFacts, now time.Time) ElectionFacts {
	f.Trigger, f.Operator, f.StartedAt, f.Votes = election.TriggerManual, r.Operator, now, nil
	f.Reason = "recovery from a lost quorum: this node became the only voter of a new generation"
	if r.Reason != "" {
		f.Reason += ": " + r.Reason
	}
	return f
}

// recoveryFacts is the content of a data directory on which its recovery depends.
type recoveryFacts struct {
	identity    identityFile
	currentTerm uint64
	lastIndex   uint64 // of the last entry, in log or snapshot
	lastTerm    uint64
	servers     []cluster.Server
	revision    uint64 // of the state, as far as it is known
}

// checkNextGeneration refuses a generation without revisions: no node could apply its first command.
func checkNextGeneration(number uint64) error {
	if number > state.MaxGeneration {
		return cluster.Errorf(cluster.CodeBadRequest, "recovery refused: generation %d would follow, at most %d is allowed",
			number, state.MaxGeneration)
	}
	return nil
}

// planRecovery returns the identity with which a data directory begins the next generation.
func planRecovery(f recoveryFacts, request cluster.RecoveryRequest, recoveryID string) (identityFile, error) {
	next := f.identity
	self := next.NodeID
	switch me, member := cluster.FindServer(f.servers, self); {
	case next.ClusterID == "":
		return next, cluster.Errorf(cluster.CodeBadRequest,
			"node %s belongs to no cluster yet: there is nothing to recover", self)
	case request.Confirm != next.ClusterID:
		return next, cluster.Errorf(cluster.CodeBadRequest, "confirm: must be the cluster's ID %s (got %q)", next.ClusterID,
			request.Confirm)
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
		Term: max(f.currentTerm, f.lastTerm) + termJump, Reason: request.Reason, Operator: request.Operator,
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
	r.Rejoining = slices.DeleteFunc(slices.Clone(request.Survivors), func(id cluster.NodeID) bool { return id == self })
	r.OldData = map[cluster.NodeID]string{}
	for _, id := range r.Rejoining {
		if rec := f.identity.Roster[id]; rec.Incarnation != "" && !rec.Removed && len(r.OldData) < maxOldData {
			r.OldData[id] = rec.Incarnation
		}
	}
	next.Generation = cluster.Generation{
		Number: state.NextGeneration(next.Generation.Number, f.revision), RecoveryID: recoveryID,
	}
	if err := checkNextGeneration(next.Generation.Number); err != nil {
		return next, err
	}
	next.Recovery = r
	next.BootstrapIncarnations = nil // the log says which nodes the new generation admits
	// A node that was just admitted may have got a roster that is newer than its log.
	next.RosterIndex, next.RosterTerm = min(next.RosterIndex, f.lastIndex), min(next.RosterTerm, f.lastTerm)
	return next, nil
}

// recoveryCommand returns the first command of the new generation, of a version that all its members apply: one in the
// log (inUse), or one that all of them support (reads). One that older builds read gives roles no lock delay. known is
// this node's record in the state: it names the previous data directory when the log ends before the admission of this
// one.
func (f *identityFile) recoveryCommand(inUse, reads uint32, known cluster.Record) state.Command {
	readmit := f.Recovery.Rejoining
	if known.Incarnation != f.Incarnation {
		readmit = append(slices.Clone(readmit), f.NodeID)
	}
	cmd := state.Command{Kind: state.KindRecovery, Recovery: &state.Recovery{
		Generation: f.Generation, Voters: f.Recovery.Voters, Readmit: readmit, LockDelay: true,
	}}
	cmd.Recovery.LockDelay = cmd.NeededVersion(inUse) <= reads
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
	facts, err := n.recoveryFacts(nil)
	if err != nil {
		return fmt.Errorf("recover: %w", err)
	}
	if facts.currentTerm < r.Term {
		if err := n.store.Stable().SetUint64(keyCurrentTerm, r.Term); err != nil {
			return fmt.Errorf("recover: raise the term: %w", err)
		}
	}
	index, last := facts.lastIndex, facts.lastTerm
	if last < r.Term { // only this node can have written one of that term
		if err := n.store.Log().StoreLog(configurationEntry(r.Servers, index+1, r.Term)); err != nil {
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

// lastPosition returns the position of the last entry, in log or snapshot.
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

func configurationEntry(servers []cluster.Server, index, term uint64) *raft.Log {
	var conf raft.Configuration
	for _, s := range servers {
		suffrage := raft.Nonvoter
		if s.Suffrage == cluster.Voter {
			suffrage = raft.Voter
		}
		conf.Servers = append(conf.Servers, raft.Server{
			ID: raft.ServerID(s.ID), Address: raft.ServerAddress(s.Address), Suffrage: suffrage,
		})
	}
	return &raft.Log{Index: index, Term: term, Type: raft.LogConfiguration, Data: raft.EncodeConfiguration(conf)}
}

// OfflineNode is the data directory of a node that does not run, locked until Close.
type OfflineNode struct {
	inspection *storage.Inspection
	facts      recoveryFacts
}

// OpenOffline opens a data directory and changes nothing. Errors are of storage.Inspect, or about the identity.
func OpenOffline(dir string) (*OfflineNode, error) {
	look, err := storage.Inspect(dir)
	if err != nil {
		return nil, err
	}
	s := &OfflineNode{inspection: look}
	s.facts.identity, err = readIdentity(look)
	if err != nil {
		return nil, errors.Join(err, look.Close())
	}
	s.facts.currentTerm, s.facts.lastIndex, s.facts.lastTerm = look.CurrentTerm, look.LastIndex, look.LastTerm
	s.facts.servers = raftnode.Servers(look.Configuration)
	return s, nil
}

// Identity returns the identity of the data directory.
func (s *OfflineNode) Identity() cluster.Identity { return s.facts.identity.Identity }

// Servers returns the latest configuration in its log.
func (s *OfflineNode) Servers() []cluster.Server { return s.facts.servers }

// Inspection returns the content of its log, snapshots and vote file.
func (s *OfflineNode) Inspection() *storage.Inspection { return s.inspection }

// Recover decides, with one write, that the directory begins the next generation as its only voter. The node's next
// start does the rest. confirm must be the cluster's ID. Errors are planRecovery's, or the disk's.
func (s *OfflineNode) Recover(confirm, operator string, entropy io.Reader) (cluster.Generation, error) {
	id, err := randomID(entropy)
	if err != nil {
		return cluster.Generation{}, err
	}
	if s.facts.revision, err = s.revision(); err != nil {
		return cluster.Generation{}, err
	}
	next, err := planRecovery(s.facts, cluster.RecoveryRequest{Confirm: confirm, Operator: operator, Reason: "offline"},
		id)
	if err != nil {
		return cluster.Generation{}, err
	}
	i := &identity{files: s.inspection}
	if err := i.save(&next); err != nil {
		return cluster.Generation{}, err
	}
	s.facts.identity = next
	return next.Generation, nil
}

// revision returns the revision of the newest snapshot, 0 if there is none. A restored backup is in a snapshot.
func (s *OfflineNode) revision() (uint64, error) {
	r, err := s.inspection.Snapshot()
	if err != nil || r == nil {
		return 0, err
	}
	info, err := state.Inspect(r)
	return info.Revision, errors.Join(err, r.Close())
}

// Close releases the directory.
func (s *OfflineNode) Close() error { return s.inspection.Close() }
