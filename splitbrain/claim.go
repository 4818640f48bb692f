// Package splitbrain finds out whether there is more than one leader, or more
// than one cluster where there should be one, and keeps the nodes that are part
// of such a conflict from answering. It never elects anybody.
//
// What a node says of itself on the connection between peers counts for what is
// done about it, as it does for Raft. What its HTTP address answers is shown,
// and never more: anybody can stand there.
package splitbrain

import (
	"time"

	"northstar/cluster"
)

// Source says where a claim comes from.
type Source string

// The sources of claims.
const (
	FromSelf Source = "self" // this node
	FromPeer Source = "peer" // said on a connection between peers, by the node itself
	FromHTTP Source = "http" // answer of its HTTP address to GET /leader
)

// Claim is what one node says about itself and the leader, at one moment.
type Claim struct {
	Node    cluster.NodeID // who was asked, or has said hello
	Source  Source
	Address string
	At      time.Time // when it came
	Error   string    // why there is none; then what follows is empty

	BootID     string // "": not known
	ClusterID  string // "": none yet, or not known
	Generation cluster.Generation
	Term       uint64 // 0: not known, as from a mere hello
	Leads      bool   // says that it is the leader itself
	LeaderID   cluster.NodeID
}

// trusted says whether the claim counts for more than being shown.
func (c Claim) trusted() bool { return c.Error == "" && c.Source != FromHTTP }

// DuplicateID is one node ID that two processes bear at the same time.
type DuplicateID struct {
	Node  cluster.NodeID
	Boots [2]string // their boot IDs
}

// Verdict is what a node makes of the claims.
type Verdict string

// The verdicts, from the least to the gravest.
const (
	OK             Verdict = "ok"
	Unreachable    Verdict = "unreachable"     // somebody could not be asked
	StaleLeader    Verdict = "stale_leader"    // leads in a term that is over
	ForeignCluster Verdict = "foreign_cluster" // another cluster's node among the members
	SplitBrain     Verdict = "split_brain"     // two leaders in a term, two generations, one ID on two hosts
)

var severity = map[Verdict]int{OK: 0, Unreachable: 1, StaleLeader: 2, ForeignCluster: 3, SplitBrain: 4}

// Finding is one thing that is wrong.
type Finding struct {
	Verdict Verdict
	Detail  string // for people
	Nodes   []cluster.NodeID
	// Refuse: this node is part of the conflict, and has to refuse reads and
	// writes, and may not lead.
	RefuseService bool
	// StepDownTerm is the term that this node must stop leading in; 0: it does not lead.
	StepDownTerm uint64
	// Doubled: this node's own ID is borne by another process, too. It must not
	// vote.
	OwnIDDuplicated bool
}

// Report is a verdict with what it comes from. It is never changed.
type Report struct {
	Verdict      Verdict // the gravest of the findings
	Findings     []Finding
	Claims       []Claim
	DuplicateIDs []DuplicateID
	CheckedAt    time.Time // zero: nothing was checked yet
}
