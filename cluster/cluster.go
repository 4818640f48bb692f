// Package cluster is the vocabulary that every other package shares: who a
// node is, what it says of itself, what happened, and which errors exist. It
// holds values and pure functions only: no goroutine, no clock, no I/O.
package cluster

import (
	"fmt"
	"regexp"
	"slices"
	"time"
)

// NodeID names a node, unique in its cluster for the life of its data:
// [a-z0-9][a-z0-9._-]{0,62}.
type NodeID string

var nodeIDPattern = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,62}$`)

// ParseNodeID checks s against the form of a node ID.
func ParseNodeID(s string) (NodeID, error) {
	if !nodeIDPattern.MatchString(s) {
		return "", fmt.Errorf("node ID %q: want 1 to 63 of a-z, 0-9, '.', '_' and '-', starting with a letter or digit",
			s)
	}
	return NodeID(s), nil
}

// Suffrage says whether a member counts towards the quorum.
type Suffrage string

// The two kinds of membership.
const (
	Voter    Suffrage = "voter"
	NonVoter Suffrage = "nonvoter"
)

// Lifecycle is where a node stands between joining and leaving.
type Lifecycle string

// The stages of a node's life. A dead node is one that the cluster refuses for
// good, or that the others have lost.
const (
	Joining  Lifecycle = "joining"
	Active   Lifecycle = "active"
	Draining Lifecycle = "draining"
	Dead     Lifecycle = "dead"
)

// Role is a node's state in Raft, as the API shows it.
type Role string

// The states of a Raft node. A node that is shut down or has no configuration
// yet counts as a follower.
const (
	Follower  Role = "follower"
	Candidate Role = "candidate"
	Leader    Role = "leader"
)

// Limits and defaults of a member's placement.
const (
	DefaultPriority = 100 // of 0 to MaxPriority; higher is preferred as leader
	MaxPriority     = 255
)

// Generation counts the quorum-loss recoveries of a cluster. The cluster ID
// survives a recovery, the generation grows. RecoveryID is random, so that two
// recoveries done apart, which give the same number, are told apart.
type Generation struct {
	Number     uint64 `json:"number"`
	RecoveryID string `json:"recovery_id,omitempty"`
}

// Identity is who a data directory is. It is durable, and changes only when a
// node without a cluster ID adopts one, or by recovery.
type Identity struct {
	NodeID      NodeID     `json:"node_id"`
	ClusterID   string     `json:"cluster_id,omitempty"` // "" until adopted
	Generation  Generation `json:"generation"`
	Incarnation string     `json:"incarnation"` // random, of this data directory
}

// Start is what a data directory has to do with the first start of its cluster.
type Start string

// The stages of a first start. None goes back.
const (
	StartUndecided    Start = ""             // it may bootstrap; it has voted for nobody and holds nothing
	StartBootstrapped Start = "bootstrapped" // it has the first configuration, and has fixed whom it started with
	StartJoinOnly     Start = "waits"        // it never bootstraps: it waits to be taken in
)

// Peer is what a node says of itself in a hello: its identity, and the facts
// that the leader writes into its member record.
type Peer struct {
	Identity
	BootID         string `json:"boot_id"` // random, of this process
	HTTPAddress    string `json:"http_address"`
	RaftAddress    string `json:"raft_address"`
	Version        string `json:"version"`
	CommandVersion uint32 `json:"reads"` // highest command version that it can apply
	Priority       int    `json:"priority"`
	Eligible       bool   `json:"eligible"`
	Zone           string `json:"zone,omitempty"`
	Bootstrap      string `json:"bootstrap,omitempty"` // digest of cluster-name and initial-cluster; "" when it has none
	Start          Start  `json:"start,omitempty"`
	// RecordedIndex is an index of the log as of which the node has itself on record
	// with this data directory, by what it has applied; 0 when it has not. A node
	// whose disk was wiped has not before an operator has had it taken in.
	RecordedIndex uint64 `json:"recorded,omitempty"`
	// Roster is what the node knows of the members' data directories. It is not
	// in its hello: a node without a cluster ID is told it with the verdict. Of one
	// that has none itself it is whom it started with.
	Roster *Roster `json:"-"`
}

// Member is the replicated record of one node. Its suffrage is not here: Raft's
// configuration is the only truth about that.
type Member struct {
	ID          NodeID    `json:"id"`
	RaftAddress string    `json:"raft_address"`
	HTTPAddress string    `json:"http_address"`
	Priority    int       `json:"priority"`
	Eligible    bool      `json:"eligible"`
	Zone        string    `json:"zone,omitempty"`
	Incarnation string    `json:"incarnation,omitempty"` // "" until first contact, or re-admitted
	Lifecycle   Lifecycle `json:"lifecycle"`
	Version     string    `json:"version,omitempty"`
	Reads       uint32    `json:"reads"` // 0 until first contact
	Removed     bool      `json:"removed,omitempty"`
}

// IneligibleReason says what in the record keeps this member from leading, "" when
// nothing does.
func (m Member) IneligibleReason() string {
	switch {
	case m.Lifecycle == Draining:
		return "is drained"
	case !m.Eligible:
		return "is not eligible"
	case m.Priority <= 0:
		return "has priority 0"
	}
	return ""
}

// Server is one line of Raft's configuration.
type Server struct {
	ID       NodeID   `json:"ID"`
	Address  string   `json:"Address"`
	Suffrage Suffrage `json:"Suffrage"`
}

// CountVoters counts the voters in servers.
func CountVoters(servers []Server) int {
	n := 0
	for _, s := range servers {
		if s.Suffrage == Voter {
			n++
		}
	}
	return n
}

// Quorum is the majority of n voters.
func Quorum(n int) int { return n/2 + 1 }

// FindServer returns the server with that ID.
func FindServer(servers []Server, id NodeID) (Server, bool) {
	i := slices.IndexFunc(servers, func(s Server) bool { return s.ID == id })
	if i < 0 {
		return Server{}, false
	}
	return servers[i], true
}

// DiskState is what a node knows of its own disk.
type DiskState struct {
	FsyncP99 time.Duration `json:"fsync_p99,omitempty"` // over the last minute; 0 when nothing was synced
	Syncs    uint64        `json:"syncs,omitempty"`     // in that minute
	Stalled  bool          `json:"stalled,omitempty"`   // one operation outstanding for longer than timeout-max
	ReadOnly bool          `json:"read_only,omitempty"` // less space left than the reserve
}
