// Package splitbrain detects a second leader, or a second cluster, and makes the nodes in such a conflict
// reject requests. It starts no elections.
//
// Only what a node claims on a peer connection has consequences, as in Raft. The response of an HTTP address is
// only displayed, because any process may listen there.
package splitbrain

import (
	"time"

	"northstar/cluster"
)

// Source is the origin of a claim.
type Source string

// The sources of claims.
const (
	FromSelf Source = "self" // this node
	FromPeer Source = "peer" // from the node itself, on a peer connection
	FromHTTP Source = "http" // response of its HTTP address to GET /leader
)

// Claim is what one node reports about itself and the leader at one moment.
type Claim struct {
	Node    cluster.NodeID // the node that was asked, or sent a hello
	Source  Source
	Address string
	At      time.Time // when it was received
	Error   string    // why there is no claim; then the fields below are empty

	BootID     string // "": unknown
	ClusterID  string // "": none yet, or unknown
	Generation cluster.Generation
	Term       uint64 // 0: unknown, as with a hello only
	Leads      bool   // the node claims to lead
	LeaderID   cluster.NodeID
	Follows    bool // the node hears the leader that it names; unknown over HTTP
	// Disbelieved: of no member, and this node has a leader. It proves no recovery.
	Disbelieved bool
}

// trusted reports whether the claim may have consequences.
func (c Claim) trusted() bool { return c.Error == "" && c.Source != FromHTTP }

// DuplicateID is one node ID that two processes use at the same time.
type DuplicateID struct {
	Node  cluster.NodeID
	Boots [2]string // their boot IDs
}

// Verdict is the result of a check.
type Verdict string

// The verdicts, in order of severity.
const (
	OK             Verdict = "ok"
	Unreachable    Verdict = "unreachable"     // a server did not respond
	OldGeneration  Verdict = "old_generation"  // a process missed a recovery of the cluster, and hears no leader
	StaleLeader    Verdict = "stale_leader"    // leads in a superseded term
	ForeignCluster Verdict = "foreign_cluster" // a member belongs to another cluster
	SplitBrain     Verdict = "split_brain"     // two leaders in a term or generation, two recoveries, one ID in two processes
)

var severity = map[Verdict]int{
	OK: 0, Unreachable: 1, OldGeneration: 2, StaleLeader: 3, ForeignCluster: 4, SplitBrain: 5,
}

// isConflict reports whether the verdict is about two that compete. Nothing else is an alarm.
func (v Verdict) isConflict() bool { return severity[v] >= severity[StaleLeader] }

// Finding is one problem that was detected.
type Finding struct {
	Verdict Verdict
	Detail  string // human-readable
	Nodes   []cluster.NodeID
	// RefuseService: this node is part of the conflict. It must serve only stale reads and watches, and must not lead.
	RefuseService bool
	// StepDownTerm is the term in which this node must step down; 0: it does not lead.
	StepDownTerm uint64
	// OwnIDDuplicated: another process uses this node's ID. This node must not vote.
	OwnIDDuplicated bool
}

// Report is a verdict with its findings and claims. It is immutable.
type Report struct {
	Verdict      Verdict // the most severe finding
	Findings     []Finding
	Claims       []Claim
	DuplicateIDs []DuplicateID
	CheckedAt    time.Time // zero: no check yet
}
