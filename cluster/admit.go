package cluster

import "fmt"

// Refusal says why one node does not talk Raft with another. Apart from
// NotMember they are refusals for good: only an operator can change them.
type Refusal string

// The reasons for a refusal, as they travel in the hello's verdict.
const (
	RefusedProtocol    Refusal = "protocol_version"
	RefusedDuplicateID Refusal = "duplicate_id"      // the peer bears this node's own ID
	RefusedCluster     Refusal = "foreign_cluster"   // another cluster ID
	RefusedBootstrap   Refusal = "rival_bootstrap"   // another initial-cluster or cluster-name, before there is an ID
	RefusedGeneration  Refusal = "old_generation"    // the peer missed a quorum-loss recovery
	RefusedRecovery    Refusal = "rival_recovery"    // same generation number, another recovery
	RefusedSelfOld     Refusal = "newer_generation"  // this node missed a recovery that the peer knows
	RefusedIncarnation Refusal = "other_incarnation" // known ID with another data directory: wiped
	RefusedRemoved     Refusal = "removed"           // taken out of the cluster by an operator
)

// Admission is the verdict on a peer. It is made at each hello, on both sides,
// and again before each vote.
type Admission struct {
	Refusal Refusal // "": may exchange Raft messages
	Reason  string  // for people, when refused or Outdated
	Votes   bool    // may exchange votes and pre-votes
	// RecordStale says that the peer knows its own record better than this node does:
	// what it sends as leader is taken, until this node has caught up.
	RecordStale bool
	// MayAdoptClusterID says that the peer has no cluster ID, but its data directory is on
	// this node's roster: it may adopt this node's cluster ID. Of a node without
	// one it says that the two have met while both could still bootstrap, or after
	// both had.
	MayAdoptClusterID bool
}

// OK says whether Raft messages may be exchanged at all.
func (a Admission) OK() bool { return a.Refusal == "" }

// Record is what a node's replicated state, or its roster on disk, knows of a
// member, as far as admission needs it. A node without a cluster ID has those
// that it started with.
type Record struct {
	Incarnation string `json:"incarnation"` // "" when never recorded, or re-admitted
	Removed     bool   `json:"removed,omitempty"`
	// AsOfIndex is the index of the log as of which this is known; 0 in a roster, which
	// has one for all.
	AsOfIndex uint64 `json:"-"`
}

// Roster holds the members' records as of one entry of the log, which is committed.
type Roster struct {
	Index   uint64            `json:"index"`
	Term    uint64            `json:"term,omitempty"` // of that entry; 0: not known
	Records map[NodeID]Record `json:"records"`
}

// Admit judges a peer by what both sides are and by the record that self holds
// of it (the zero Record when it holds none).
//
// A node without a cluster ID exchanges votes, and entries, only with nodes
// without one, and only when both have bootstrapped and have each other's data
// directory on record: its disk may have been wiped, and it would vote as if it
// never had. It does take entries from a leader with an ID, and adopts that ID
// then. A node whose data directory is on the roster cannot have been wiped, so
// any member may vouch for it; otherwise a leader that crashed between committing
// the ID and spreading it would leave nobody to elect.
func Admit(self, peer Peer, rec Record) Admission {
	refuse := func(r Refusal, format string, args ...any) Admission {
		return Admission{Refusal: r, Reason: fmt.Sprintf(format, args...)}
	}
	if peer.NodeID == self.NodeID {
		return refuse(RefusedDuplicateID, "node ID %s is in use by another node (boot ID %s and %s)", self.NodeID,
			self.BootID, peer.BootID)
	}
	if self.ClusterID == "" || peer.ClusterID == "" {
		return admitWithoutID(self, peer, rec)
	}
	if peer.ClusterID != self.ClusterID {
		return refuse(RefusedCluster, "node %s belongs to cluster %s, this is cluster %s", peer.NodeID, peer.ClusterID,
			self.ClusterID)
	}
	switch p, s := peer.Generation, self.Generation; {
	case p.Number < s.Number:
		return refuse(RefusedGeneration,
			"node %s has data of generation %d, the cluster was recovered to generation %d: wipe its data directory and re-admit it", peer.NodeID, p.Number, s.Number)
	case p.Number > s.Number:
		return refuse(RefusedSelfOld, "node %s is of generation %d, this node (%s) has data of generation %d",
			peer.NodeID, p.Number, self.NodeID, s.Number)
	case p.RecoveryID != s.RecoveryID:
		return refuse(RefusedRecovery,
			"node %s is of recovery %s and this node of recovery %s of the same generation %d: two recoveries were done apart", peer.NodeID, p.RecoveryID, s.RecoveryID, s.Number)
	}
	a := admitRecorded(peer, rec)
	if a.OK() {
		return Admission{Votes: true}
	}
	// Its data directory came on record after the last that this node knows: while
	// this node was away it was taken out, and in again. Both are of one history, as
	// cluster and generation are the same. As leader it must be followed, or this
	// node would never hear of that; it was elected by nodes that have it on record.
	// No votes: these depend on records alone.
	if peer.RecordedIndex > rec.AsOfIndex {
		return Admission{
			RecordStale: true,
			Reason: fmt.Sprintf(
				"node %s is on record with data directory %s as of entry %d, and this node's record of it is as of %d",
				peer.NodeID, peer.Incarnation, peer.RecordedIndex, rec.AsOfIndex),
		}
	}
	return a
}

func admitWithoutID(self, peer Peer, rec Record) Admission {
	starting := self.ClusterID == "" && peer.ClusterID == ""
	if starting && self.Bootstrap != "" && peer.Bootstrap != "" && self.Bootstrap != peer.Bootstrap {
		return Admission{
			Refusal: RefusedBootstrap,
			Reason: fmt.Sprintf(
				"node %s has another initial-cluster or cluster-name than node %s: they must be the same on every first node", peer.NodeID, self.NodeID),
		}
	}
	if peer.ClusterID != "" {
		return Admission{} // its leader's entries are taken, and its ID with them
	}
	a := admitRecorded(peer, rec)
	a.MayAdoptClusterID = a.OK() && rec.Incarnation != "" && rec.Incarnation == peer.Incarnation
	a.Votes = a.MayAdoptClusterID && starting && self.Start == StartBootstrapped && peer.Start == StartBootstrapped
	return a
}

// MayRecordIncarnation says whether a node may put on record the data directory of a peer of
// which it has none: both have bootstrapped from the same list. A peer that has
// not, when self has, may have taken part before its disk was wiped; after that
// it would have found nobody to bootstrap with.
func MayRecordIncarnation(self, peer Peer) bool {
	return self.NodeID != peer.NodeID && peer.ClusterID == "" &&
		self.Start == StartBootstrapped && peer.Start == StartBootstrapped && self.Bootstrap == peer.Bootstrap
}

func admitRecorded(peer Peer, rec Record) Admission {
	if rec.Removed {
		return Admission{
			Refusal: RefusedRemoved,
			Reason: fmt.Sprintf("node %s was removed from the cluster: add it again with an empty data directory",
				peer.NodeID),
		}
	}
	if rec.Incarnation != "" && rec.Incarnation != peer.Incarnation {
		return Admission{
			Refusal: RefusedIncarnation,
			Reason: fmt.Sprintf(
				"node %s is known with data directory %s and now has %s: if its disk was replaced, re-admit it",
				peer.NodeID, rec.Incarnation, peer.Incarnation),
		}
	}
	return Admission{}
}
