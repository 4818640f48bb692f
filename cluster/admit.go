package cluster

import (
	"fmt"
	"iter"
	"maps"
)

// Refusal is why one node exchanges no Raft messages with another. Every one is permanent until an operator acts.
type Refusal string

// The reasons for a refusal. They are sent in the verdict of the hello.
const (
	RefusedProtocol    Refusal = "protocol_version"
	RefusedDuplicateID Refusal = "duplicate_id"      // the peer has this node's own ID
	RefusedCluster     Refusal = "foreign_cluster"   // another cluster ID
	RefusedBootstrap   Refusal = "rival_bootstrap"   // another initial-cluster or cluster-name, while no cluster ID exists
	RefusedGeneration  Refusal = "old_generation"    // the peer missed a quorum-loss recovery
	RefusedRecovery    Refusal = "rival_recovery"    // same generation number, another recovery
	RefusedSelfOld     Refusal = "newer_generation"  // this node missed a recovery that the peer knows
	RefusedIncarnation Refusal = "other_incarnation" // known ID with another data directory: the disk was wiped
	RefusedRemoved     Refusal = "removed"           // an operator removed it from the cluster
)

// Admission is the verdict on a peer. Both sides decide it at each hello, and again before each vote.
type Admission struct {
	Refusal Refusal // "": they may exchange Raft messages
	Reason  string  // human-readable, when refused, or when RecordStale or Outside
	Votes   bool    // may exchange votes and pre-votes
	// RecordStale: the peer's record of itself is newer than the one that this node has, and another member confirms
	// it. This node accepts what the peer sends as leader until it has caught up.
	RecordStale bool
	// Outside: the peer is not a member, as far as this node knows and other members say. This node takes no Raft
	// messages from it. Either may change without an operator, so hellos go on.
	Outside bool
	// MayAdoptClusterID: the peer has no cluster ID, but this node's roster has its data directory. The peer may adopt
	// this node's cluster ID, if it has one.
	MayAdoptClusterID bool
	// AsOfIndex is that of the record by which this node decided. A later record may have cleared the incarnation.
	AsOfIndex uint64
}

// OK reports whether Raft messages may be exchanged.
func (a Admission) OK() bool { return a.Refusal == "" }

// Record is the part of a member's record that admission needs. It comes from the node's replicated state or
// from its roster on disk. A node without a cluster ID has the records that it started with.
type Record struct {
	Incarnation string `json:"incarnation"` // "" when never recorded, or re-admitted
	Removed     bool   `json:"removed,omitempty"`
	// AsOfIndex is the log index as of which this record is known. It is 0 in a roster: see Roster.Index.
	AsOfIndex uint64 `json:"-"`
	// Confirmed is the node's data directory by the newest records of other members, "" if they have none or are not
	// newer than AsOfIndex. See Confirmed.
	Confirmed string `json:"-"`
	// Unknown: neither this node's records nor its newest configuration have the node. False without a configuration.
	Unknown bool `json:"-"`
	// Superseded: by the newer records of other members, Incarnation is not the node's any more. See Superseded.
	Superseded bool `json:"-"`
}

// confirms reports whether the newest records of other members have the peer's data directory.
func (r Record) confirms(peer Peer) bool { return r.Confirmed != "" && r.Confirmed == peer.Incarnation }

// Roster holds the members' records as of one entry of the log, which is committed.
type Roster struct {
	Index   uint64            `json:"index"`
	Term    uint64            `json:"term,omitempty"` // of that entry; 0: not known
	Records map[NodeID]Record `json:"records"`
}

// WithoutRemoved returns the roster without the removed members.
func (r *Roster) WithoutRemoved() *Roster {
	present := maps.Clone(r.Records)
	maps.DeleteFunc(present, func(_ NodeID, rec Record) bool { return rec.Removed })
	return &Roster{Index: r.Index, Term: r.Term, Records: present}
}

// Confirmed returns the data directory of node id by the newest roster among the hellos of others, "" if that roster
// has none for it, or none is newer than entry asOf. A hello counts if its sender is of self's cluster and generation,
// and self's own record admits it. Self takes entries from such a node, so its roster adds no trust.
func Confirmed(self Identity, id NodeID, asOf uint64, hellos map[NodeID]Peer, record func(NodeID) Record) string {
	var newest *Roster
	for r := range newerRosters(self, id, asOf, hellos, record) {
		if newest == nil || r.Index > newest.Index {
			newest = r
		}
	}
	if newest == nil || newest.Records[id].Removed {
		return ""
	}
	return newest.Records[id].Incarnation
}

// Superseded reports whether more of the rosters that count for Confirmed lack a data directory of node id than have
// it: the node was removed or re-admitted, and self was away. One of the senders may itself have been removed, and lie.
func Superseded(self Identity, id NodeID, was Record, hellos map[NodeID]Peer, record func(NodeID) Record) bool {
	lack := 0
	for r := range newerRosters(self, id, was.AsOfIndex, hellos, record) {
		if has := r.Records[id]; has.Removed || has.Incarnation != was.Incarnation {
			lack++
		} else {
			lack--
		}
	}
	return lack > 0
}

// newerRosters yields the rosters in hellos of others than id that are newer than asOf and count.
func newerRosters(self Identity, id NodeID, asOf uint64, hellos map[NodeID]Peer, record func(NodeID) Record,
) iter.Seq[*Roster] {
	return func(yield func(*Roster) bool) {
		for from, p := range hellos {
			if from == id || p.Roster == nil || p.Roster.Index <= asOf || p.ClusterID != self.ClusterID ||
				p.Generation != self.Generation {
				continue
			}
			if rec := record(from); !rec.Unknown && admitRecorded(p, rec).OK() && !yield(p.Roster) {
				return
			}
		}
	}
}

// Admit decides about a peer from the identities of both sides and from self's record of the peer. rec is the zero
// Record if self has none.
//
// A node without a cluster ID exchanges votes only with a node that has none either. Both must have bootstrapped, and
// each must have recorded the other's data directory. Otherwise the peer's disk may have been wiped, and it could vote
// a second time.
//
// A node without a cluster ID accepts entries from a leader that has one, and then adopts that ID. A node whose data
// directory is on the roster cannot have been wiped, so any member may give it the ID. Without this rule, a leader that
// crashed after committing the ID and before sending it would leave no electable node.
func Admit(self, peer Peer, rec Record) Admission {
	a := admit(self, peer, rec)
	a.AsOfIndex = rec.AsOfIndex
	return a
}

func admit(self, peer Peer, rec Record) Admission {
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
	confirmed := rec.confirms(peer)
	switch {
	case a.OK() && rec.Unknown && !confirmed:
		return Admission{Outside: true, Reason: stranger(self.NodeID, peer.NodeID)}
	case a.OK() && rec.Superseded:
		return Admission{Outside: true, Reason: fmt.Sprintf(
			"other members no longer record node %s with data directory %s: it was removed or re-admitted",
			peer.NodeID, peer.Incarnation)}
	case a.OK():
		return Admission{Votes: true}
	}
	// The peer was removed and added again while this node was away: its data directory was recorded after the newest
	// record here. Both share one history, because cluster and generation are equal. This node must follow the peer as
	// leader, or it would never receive that record. Votes are not exchanged: they depend on the records. A removed
	// peer could claim any index, so another member must have the same record.
	if peer.RecordedIndex > rec.AsOfIndex && confirmed {
		return Admission{
			RecordStale: true,
			Reason: fmt.Sprintf(
				"node %s is recorded with data directory %s as of entry %d, and this node's record of it is as of %d",
				peer.NodeID, peer.Incarnation, peer.RecordedIndex, rec.AsOfIndex),
		}
	}
	if a.Refusal == RefusedIncarnation && peer.RecordedIndex > rec.AsOfIndex {
		a.Reason = unconfirmed(self.NodeID, peer)
	}
	return a
}

// unconfirmed returns why a peer is refused that names a newer record, and what an operator can do. The peer itself may
// be right: then self is the node to re-admit.
func unconfirmed(self NodeID, peer Peer) string {
	return fmt.Sprintf("node %s claims a re-admission at entry %d, and no member that node %s has recorded confirms it: "+
		"start the other members; if all of them were re-admitted while node %s was offline, wipe and re-admit node %s",
		peer.NodeID, peer.RecordedIndex, self, self, self)
}

// stranger returns why a peer is outside of which this node has neither a record nor a configuration with it.
func stranger(self, peer NodeID) string {
	return fmt.Sprintf("node %s is not in the configuration of node %s, and no member that node %s has recorded confirms "+
		"its addition: start the other members; if all of them were replaced while node %s was offline, wipe and "+
		"re-admit node %s", peer, self, self, self, self)
}

func refuse(r Refusal, format string, args ...any) Admission {
	return Admission{Refusal: r, Reason: fmt.Sprintf(format, args...)}
}

func admitWithoutID(self, peer Peer, rec Record) Admission {
	starting := self.ClusterID == "" && peer.ClusterID == ""
	if starting && self.Bootstrap != "" && peer.Bootstrap != "" && self.Bootstrap != peer.Bootstrap {
		return refuse(RefusedBootstrap,
			"node %s has another initial-cluster or cluster-name than node %s: they must be the same on every first node", peer.NodeID, self.NodeID)
	}
	if peer.ClusterID != "" {
		return Admission{} // this node accepts the leader's entries, and its cluster ID with them
	}
	a := admitRecorded(peer, rec)
	if a.OK() && self.ClusterID != "" && rec.Unknown && !rec.confirms(peer) {
		// Any node certificate can leave the ID out. A node that joins is in the configuration before it sends anything
		// that counts.
		return Admission{Outside: true, Reason: fmt.Sprintf(
			"node %s has no cluster ID and is not in the configuration of node %s", peer.NodeID, self.NodeID)}
	}
	a.MayAdoptClusterID = a.OK() && rec.Incarnation != "" && rec.Incarnation == peer.Incarnation
	a.Votes = a.MayAdoptClusterID && starting && self.Start == StartBootstrapped && peer.Start == StartBootstrapped
	return a
}

// MayRecordIncarnation reports whether self may record the data directory of a peer for which it has no record. Both
// must have bootstrapped from the same list: otherwise the peer may have voted before its disk was wiped.
func MayRecordIncarnation(self, peer Peer) bool {
	return self.NodeID != peer.NodeID && peer.ClusterID == "" &&
		self.Start == StartBootstrapped && peer.Start == StartBootstrapped && self.Bootstrap == peer.Bootstrap
}

func admitRecorded(peer Peer, rec Record) Admission {
	if rec.Removed {
		return refuse(RefusedRemoved, "node %s was removed from the cluster: add it again with an empty data directory",
			peer.NodeID)
	}
	if rec.Incarnation != "" && rec.Incarnation != peer.Incarnation {
		return refuse(RefusedIncarnation,
			"node %s is known with data directory %s and now has %s: if its disk was replaced, re-admit it",
			peer.NodeID, rec.Incarnation, peer.Incarnation)
	}
	return Admission{}
}
