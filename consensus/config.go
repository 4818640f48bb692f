// Package consensus is the only owner of the Raft library's node: it starts and
// stops it, proposes to it, reads through it, and runs what may only run while
// this node leads. DESIGN.md says why it has this shape.
package consensus

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/hashicorp/go-hclog"

	"northstar/cluster"
	"northstar/consensus/raftnode"
	"northstar/consensus/storage"
	"northstar/state"
)

// Limits that are not worth a configuration key.
const (
	// stopWait bounds each step of stopping.
	stopWait = 5 * time.Second
)

// FirstMember is one line of initial-cluster.
type FirstMember struct {
	ID          cluster.NodeID
	RaftAddress string
	HTTPAddress string
}

// Config is what a Node is told once. Times are the library's: a follower's
// timeout is drawn from [TimeoutMin, TimeoutMax).
type Config struct {
	// Self is what this node says of itself: NodeID, BootID, addresses, version,
	// priority, eligible, zone. Identity's other fields, Reads and Bootstrap are
	// filled in by Node.
	Self           cluster.Peer
	ClusterName    string
	InitialCluster []FirstMember // used only on an empty data directory
	Join           bool          // on an empty data directory, without InitialCluster: wait to be taken in

	TimeoutMin, TimeoutMax time.Duration
	Lease                  bool
	LeaseDrift             float64       // 0.1: clocks of two nodes run apart by at most a tenth
	AutoFailover           bool          // first value of the cluster's setting
	DeadAfter              time.Duration // of silence, after which a voter is removed where the others can do without; 0: never

	SnapshotThreshold uint64
	SnapshotInterval  time.Duration
	TrailingLogs      uint64
	HistoryBytes      int // of values kept for watches; 0: 64 MiB
}

// Transport carries Raft's messages.
type Transport = raftnode.Transport

// PeerAck is what this node's transport knows of a peer from its answers.
type PeerAck struct {
	Incarnation string    // the data directory that Term and MatchIndex are of
	Term        uint64    // the newest term it acknowledged an append in; MatchIndex is of it
	MatchIndex  uint64    // highest index it is known to hold
	LastContact time.Time // when it last answered anything; zero: never
}

// Acks tells when which peer acknowledged an append, by the time the append was
// sent. Methods may be called from any goroutine and do not block.
type Acks interface {
	// QuorumSince says whether a majority of voters, self counting as one, has
	// acknowledged an append of that term sent at or after start.
	QuorumSince(term uint64, self cluster.NodeID, voters []cluster.NodeID, start time.Time) bool
	// QuorumTime is the newest send time that a majority of voters has
	// acknowledged, self counting as now; the zero time when there is none.
	QuorumTime(term uint64, self cluster.NodeID, voters []cluster.NodeID) time.Time
	// Changed is closed at the next acknowledgement.
	Changed() <-chan struct{}
}

// Hooks are told what happens, for metrics and events. A nil one is left out.
// They must not block; they are called from many goroutines.
type Hooks struct {
	Proposal          func(result string)                  // ok, refused, not_proposed, unknown, busy, read_only
	Applied           func(took time.Duration)             // one batch of log entries was applied
	Leader            func(id cluster.NodeID, term uint64) // the (leader, term) that this node sees changed; "" is none
	Election          func(Election)                       // this node won an election, or stood and another leads, or stands and nobody does
	LeadershipChanged func(term uint64, leading bool)      // this node has begun to lead (its leader-start is applied), or stopped
	Snapshot          func(restored bool)                  // a snapshot was restored, or written
	// Recovered: this node has begun a new generation, after a quorum was lost for good.
	Recovered func(Recovered)

	Unaudited func() // a command was proposed without its audit record, which some member cannot read yet
}

// Recovered is a recovery that has become part of the log.
type Recovered struct {
	Generation       cluster.Generation
	Voters           []cluster.NodeID // the others that were voters before
	Reason, Operator string
}

// Election is one election that this node stood in.
type Election struct {
	Term       uint64
	FromTerm   uint64 // unless won: it is of no term before this one
	Candidate  cluster.NodeID
	Trigger    string // startup, timeout, or what Deps.Facts says
	Reason     string
	Operator   string // who ordered it; "": nobody
	Won        bool
	Open       bool           // it goes on: nobody leads yet
	Votes      []cluster.Vote // as far as they are known
	StartedAt  time.Time
	Duration   time.Duration // candidacy to leader-start applied, or to the other leader
	Leaderless time.Duration // since the last leader was last heard
	LedAt      time.Time     // Raft said that this node leads; zero when lost, or not sighted
}

// ElectionFacts is what others know of an election that this node stood in. What
// is zero is not known.
type ElectionFacts struct {
	Trigger, Reason, Operator string
	// Ordered: voters passed over a leader that they knew, and that may have a
	// lease. This node serves nothing until it has run out.
	OverLiveLeader  bool
	StartedAt       time.Time
	LeaderlessSince time.Time // when the leader before was last heard
	Votes           []cluster.Vote
}

// Deps is what a Node works with. All but the fields said to be optional are
// required.
type Deps struct {
	// Storage is closed by Run, or by Close when Run is never called.
	Storage storage.Storage
	// Transport gives a transport for one run of Raft, which closes it when it
	// stops; the next call gives a new one.
	Transport  func() Transport
	Bind       func(RaftCallbacks) // called when Raft runs on the last transport given
	Acks       Acks
	PeerAck    func(cluster.NodeID) PeerAck
	ResetPeers func() // say hello again on every connection
	// Probe says hello to addr and gives what the node there says of itself, and
	// its verdict on this one, also beside an error when either side refuses the
	// other.
	Probe func(ctx context.Context, addr string) (cluster.Peer, cluster.Admission, error)
	// Poll asks peers for their claims, and gives those that answered.
	Poll   func(ctx context.Context, peers []cluster.NodeID) map[cluster.NodeID]cluster.ReceivedClaim
	Logger hclog.Logger

	Entropy    io.Reader            // of cluster IDs and incarnations
	LeaseClock func() time.Duration // runs on while the machine is suspended; required with Config.Lease
	// MayWrite says what keeps a leader from serving writes, other than this package's
	// own commands; it is asked before each batch. Nil: nothing ever does.
	MayWrite func() error
	// HeldWrites is how many writes have waited for a leader on this node and are not
	// answered yet. Once it leads they are proposed within moments. It must not
	// block. Optional.
	HeldWrites func() int
	// Announce tells a peer, before it is told to stand, that this node hands
	// leadership to it and why, and says so to whoever asks until retract is
	// called. It takes a few milliseconds. Optional.
	Announce func(ctx context.Context, h cluster.TransferNotice) (retract func())
	// Facts says what is known of the election of that term, which this node has
	// won. Optional.
	Facts func(term uint64) ElectionFacts
	Hooks Hooks
	// ObserveDisk is told the duration of each storage operation (the
	// storage.Op names) as it ends; it must not block. Optional.
	ObserveDisk func(op string, took time.Duration)
}

// LeaseWait is how long no lease can outlast that was valid before an election: its
// length, with the clocks' drift. 0 without leases.
func (c *Config) LeaseWait() time.Duration {
	if !c.Lease {
		return 0
	}
	return time.Duration(float64(c.TimeoutMin) * (1 - c.LeaseDrift) * (1 + c.LeaseDrift))
}

func (c *Config) validate() error {
	var errs []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	_, err := cluster.ParseNodeID(string(c.Self.NodeID))
	check(err == nil, "id: %w", err)
	check(c.Self.RaftAddress != "", "raft-advertise: must not be empty")
	check(c.Self.BootID != "", "boot ID: must not be empty")
	check(c.TimeoutMin >= 10*time.Millisecond, "election.timeout-min %v: want at least 10ms", c.TimeoutMin)
	check(c.TimeoutMax == 2*c.TimeoutMin, "election.timeout-max %v: must be twice election.timeout-min, %v", c.TimeoutMax, c.TimeoutMin)
	check(c.TrailingLogs >= raftnode.MinTrailingLogs, "snapshot.trailing-logs %d: want at least %d", c.TrailingLogs, raftnode.MinTrailingLogs)
	check(c.SnapshotThreshold > 0, "snapshot.threshold: must not be 0")
	check(c.SnapshotInterval >= raftnode.MinSnapshotInterval, "snapshot.interval %v: want at least %v", c.SnapshotInterval, raftnode.MinSnapshotInterval)
	check(c.LeaseDrift >= 0 && c.LeaseDrift < 1, "election.lease-drift %v: want 0 to 1", c.LeaseDrift)
	return errors.Join(errs...)
}

func (d *Deps) validate(c *Config) error {
	missing := map[string]bool{
		"Storage": d.Storage == nil, "Transport": d.Transport == nil,
		"Acks": d.Acks == nil, "PeerAck": d.PeerAck == nil, "Bind": d.Bind == nil, "ResetPeers": d.ResetPeers == nil, "Probe": d.Probe == nil, "Poll": d.Poll == nil,
		"Logger": d.Logger == nil, "Entropy": d.Entropy == nil, "LeaseClock": c.Lease && d.LeaseClock == nil,
	}
	var names []string
	for name, isMissing := range missing {
		if isMissing {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return nil
	}
	slices.Sort(names)
	return fmt.Errorf("consensus: dependencies missing: %v", names)
}

// raft returns the part of the configuration that is Raft's.
func (c *Config) raft() raftnode.Config {
	return raftnode.Config{
		Self: c.Self.NodeID, TimeoutMin: c.TimeoutMin, TimeoutMax: c.TimeoutMax,
		SnapshotThreshold: c.SnapshotThreshold, SnapshotInterval: c.SnapshotInterval, TrailingLogs: c.TrailingLogs,
	}
}

func (c *Config) stateOptions() state.Options {
	bytes := c.HistoryBytes
	if bytes == 0 {
		bytes = 64 << 20
	}
	return state.Options{HistoryRevisions: int(c.TrailingLogs), HistoryBytes: bytes}
}
