// Package cluster defines the types that all other packages share: identities, members, claims, plans, events
// and errors. It holds values and pure functions only: no goroutine, no clock, no I/O.
package cluster

import (
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// NodeID names a node for the life of its data, unique in its cluster. Its form is [a-z0-9][a-z0-9._-]{0,62}.
type NodeID string

var nodeIDPattern = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,62}$`)

// ParseNodeID checks the form of a node ID.
func ParseNodeID(s string) (NodeID, error) {
	if !nodeIDPattern.MatchString(s) {
		return "", fmt.Errorf(
			"node ID must be 1 to 63 characters of a-z, 0-9, '.', '_' and '-', and start with a letter or digit (got %q)", s)
	}
	return NodeID(s), nil
}

// JoinIDs returns the IDs, separated by commas.
func JoinIDs(ids []NodeID) string {
	names := make([]string, len(ids))
	for i, id := range ids {
		names[i] = string(id)
	}
	return strings.Join(names, ", ")
}

// Suffrage is a member's voting right: it counts towards the quorum or it does not.
type Suffrage string

// The two kinds of membership.
const (
	Voter    Suffrage = "voter"
	NonVoter Suffrage = "nonvoter"
)

// Lifecycle is a node's stage between joining and leaving.
type Lifecycle string

// The stages of a node's life. The cluster permanently refuses a dead node, or the other nodes have lost it.
const (
	Joining  Lifecycle = "joining"
	Active   Lifecycle = "active"
	Draining Lifecycle = "draining"
	Dead     Lifecycle = "dead"
)

// Role is a node's state in Raft, as the API shows it.
type Role string

// The states of a Raft node. A node that is shut down or has no configuration yet counts as a follower.
const (
	Follower  Role = "follower"
	Candidate Role = "candidate"
	Leader    Role = "leader"
)

// Limits and defaults of a member's priority and zone.
const (
	DefaultPriority = 100 // of 0 to MaxPriority; a higher one is preferred as leader
	MaxPriority     = 255
	MaxZoneBytes    = 256

	MaxClusterNameBytes = 128
)

// CheckZone returns what is wrong with a zone, nil if a member may have it; "" means none.
func CheckZone(zone string) error {
	switch {
	case len(zone) > MaxZoneBytes:
		return fmt.Errorf("must be at most %d bytes (got %d)", MaxZoneBytes, len(zone))
	case !utf8.ValidString(zone) || strings.ContainsFunc(zone, func(r rune) bool { return !unicode.IsPrint(r) }):
		return fmt.Errorf("%q is not printable", zone)
	}
	return nil
}

// CheckClusterName returns what is wrong with the name of a cluster, which is the host in the URIs of certificates.
// Such a name has no '@' and no empty part between dots. A colon must begin a port.
func CheckClusterName(name string) error {
	const want = "must be 1 to %d characters that can be the host of a URL, without an empty part between dots"
	uri := "northstar://" + name + "/node/n1"
	u, err := url.Parse(uri)
	if err != nil || u.Host != name || u.String() != uri || url.PathEscape(name) != name ||
		len(name) > MaxClusterNameBytes || slices.Contains(strings.Split(name, "."), "") {
		return fmt.Errorf(want, MaxClusterNameBytes)
	}
	return nil
}

// Generation counts the quorum-loss recoveries of a cluster. A recovery keeps the cluster ID and raises the
// generation. RecoveryID is random: it distinguishes two separate recoveries that gave the same number.
type Generation struct {
	Number     uint64 `json:"number"`
	RecoveryID string `json:"recovery_id,omitempty"`
}

// HeaderValue returns the value of the header of a generation: "1", or "2 RECOVERY" after a recovery.
func (g Generation) HeaderValue() string {
	if g.RecoveryID == "" {
		return strconv.FormatUint(g.Number, 10)
	}
	return fmt.Sprintf("%d %s", g.Number, g.RecoveryID)
}

// ParseGeneration reads what HeaderValue returns.
func ParseGeneration(s string) (g Generation, err error) {
	number, recovery, _ := strings.Cut(s, " ")
	if g.Number, err = strconv.ParseUint(number, 10, 64); err != nil {
		return g, fmt.Errorf("generation must be a number, or a number, a space and a recovery ID (got %q)", s)
	}
	g.RecoveryID = recovery
	return g, nil
}

// Identity identifies a data directory, durably. Only the adoption of a cluster ID and a recovery change it.
type Identity struct {
	NodeID      NodeID     `json:"node_id"`
	ClusterID   string     `json:"cluster_id,omitempty"` // "" until adopted
	Generation  Generation `json:"generation"`
	Incarnation string     `json:"incarnation"` // random, of this data directory
}

// Start is the role of a data directory in the first start of its cluster.
type Start string

// The stages of a first start. A directory never returns to an earlier stage.
const (
	StartUndecided    Start = ""             // it may bootstrap; it has granted no vote and holds no entries
	StartBootstrapped Start = "bootstrapped" // it has the first configuration, and has recorded its first peers
	StartJoinOnly     Start = "waits"        // it never bootstraps: it waits until a leader adds it
)

// Peer is a node's report of itself in a hello: its identity, and what the leader writes into its member record.
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
	EtcdURL        string `json:"etcd_url,omitempty"`  // for etcd clients; "": it serves none, or is an older build
	Bootstrap      string `json:"bootstrap,omitempty"` // digest of cluster-name and initial-cluster; "" if it has none
	Start          Start  `json:"start,omitempty"`
	// LeasePromise is for how long this process votes for no other node after a leader's message: election.timeout-min
	// with election.lease. 0: it does not promise it, or is of an earlier version.
	LeasePromise time.Duration `json:"lease_promise,omitempty"`
	// RecordedIndex is a log index at which the node's applied state records this data directory; 0 if it
	// does not. A node whose disk was wiped has 0 until an operator re-admits it.
	RecordedIndex uint64 `json:"recorded,omitempty"`
	// Survivors has the survivors of the recovery by which this node got to its generation that have not come back
	// yet, with the data directory of the old generation that each of them is to set aside.
	Survivors map[NodeID]string `json:"survivors,omitempty"`
	// Roster is the node's knowledge of the members' data directories, or without a cluster ID the nodes that it
	// started with. The hello does not contain it: an admitted node receives it with the verdict.
	Roster *Roster `json:"-"`
}

// Member is the replicated record of one node. It has no suffrage: only Raft's configuration holds that.
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

// IneligibleReason returns why the record forbids this member to lead, or "" if it does not.
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

// Server is one entry of Raft's configuration.
type Server struct {
	ID       NodeID   `json:"ID"`
	Address  string   `json:"Address"`
	Suffrage Suffrage `json:"Suffrage"`
}

// CountVoters returns the number of voters in servers.
func CountVoters(servers []Server) int {
	n := 0
	for _, s := range servers {
		if s.Suffrage == Voter {
			n++
		}
	}
	return n
}

// CompareBool orders false before true.
func CompareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

// Quorum returns the size of a majority of n voters.
func Quorum(n int) int { return n/2 + 1 }

// FindServer returns the server with that ID.
func FindServer(servers []Server, id NodeID) (Server, bool) {
	i := slices.IndexFunc(servers, func(s Server) bool { return s.ID == id })
	if i < 0 {
		return Server{}, false
	}
	return servers[i], true
}

// DiskState is a node's knowledge of its own disk.
type DiskState struct {
	FsyncP99 time.Duration `json:"fsync_p99,omitempty"` // over the last minute; 0 if nothing was synced
	Syncs    uint64        `json:"syncs,omitempty"`     // in that minute
	Stalled  bool          `json:"stalled,omitempty"`   // one operation has been outstanding for too long
	ReadOnly bool          `json:"read_only,omitempty"` // less free space than the reserve
	// RecentSync is the median of the last 5 to 10 seconds; 0 if nothing was synced, and of other nodes.
	RecentSync time.Duration `json:"-"`
	// Hangs: an operation takes much longer than usual, so another node had better lead.
	Hangs bool `json:"hangs,omitempty"`
}

// EventTypes lists all types of events.
var EventTypes = []string{
	"election", "failover", "transfer", "member", "health", "splitbrain", "role", "disk", "quota", "node",
}

// Event is one occurrence on one node, for the event log, the API's event stream and people.
type Event struct {
	Seq     string         `json:"seq"`  // opaque; orders the events of one node's process
	Node    NodeID         `json:"node"` // the node whose event log has it
	Type    string         `json:"type"` // one of EventTypes
	At      time.Time      `json:"at"`
	Term    uint64         `json:"term,omitempty"`
	Message string         `json:"message"`
	Fields  map[string]any `json:"fields,omitempty"`
}
