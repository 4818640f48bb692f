// Package consensus owns the Raft library's node: it starts and stops it, proposes to it, reads through it, and runs
// the tasks that run only while this node leads. DESIGN.md has the reasons for its structure.
package consensus

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/hashicorp/go-hclog"

	"northstar/cluster"
	"northstar/consensus/raftnode"
	"northstar/consensus/storage"
	"northstar/state"
)

// stopWait bounds each step of stopping.
const stopWait = 5 * time.Second

// lostAnswerWait is how long a stop waits for answers after everything else has ended: most have come before.
const lostAnswerWait = 100 * time.Millisecond

// FirstMember is one member in initial-cluster.
type FirstMember struct {
	ID          cluster.NodeID
	RaftAddress string
	HTTPAddress string
}

// Config is the fixed configuration of a Node. A follower's timeout is drawn from [TimeoutMin, TimeoutMax).
type Config struct {
	// Self is what this node tells peers about itself: NodeID, BootID, addresses, version, priority, eligible, zone.
	// Node fills in the other fields of Identity, CommandVersion and Bootstrap.
	Self           cluster.Peer
	ClusterName    string
	InitialCluster []FirstMember // used only on an empty data directory
	Join           bool          // on an empty data directory, without InitialCluster: wait to be added

	TimeoutMin, TimeoutMax time.Duration
	Lease                  bool
	LeaseDrift             float64 // 0.1: clocks of two nodes run apart by at most a tenth
	AutoFailover           bool    // first value of the cluster's setting
	// a voter silent for so long is removed if the others can do without it; 0: never
	DeadAfter time.Duration

	SnapshotThreshold uint64
	SnapshotInterval  time.Duration
	TrailingLogs      uint64
	LogBytes          uint64 // as in raftnode.Config; 0: raftnode.DefaultLogBytes
}

// Transport carries Raft's messages.
type Transport = raftnode.Transport

// Acks returns which peers acknowledged appends sent when. Its methods do not block; any goroutine may call them.
type Acks interface {
	// QuorumSince reports whether a majority of voters has acknowledged an append of term that was sent at or after
	// start. self counts as one.
	QuorumSince(term uint64, self cluster.NodeID, voters []cluster.NodeID, start time.Time) bool
	// LeaseTime returns the newest send time that a majority of voters has acknowledged, each with a promise to vote
	// for no other node for lease at least; the zero time when there is none. self counts as now.
	LeaseTime(term uint64, self cluster.NodeID, voters []cluster.NodeID, lease time.Duration) time.Time
	// Changed is closed at the next acknowledgement.
	Changed() <-chan struct{}
}

// Hooks are called for metrics and events, from many goroutines. They must not block. A nil one is skipped.
type Hooks struct {
	Proposal func(result string)                  // ok, refused, quota_exceeded, not_proposed, unknown, busy, read_only
	Applied  func(took time.Duration)             // one batch of log entries was applied
	Leader   func(id cluster.NodeID, term uint64) // the (leader, term) that this node sees changed; "" is none
	// a candidacy of this node ended, or is unresolved for a while
	Election func(Election)
	Snapshot func(restored bool) // a snapshot was restored, or written
	// Recovered is called when this node has started a new generation, after a permanent loss of the quorum.
	Recovered func(Recovered)
	// SetAside is called when this node has set its data aside, as a survivor of a recovery: it must be restarted.
	SetAside func()

	CaughtUp  func(StartTimes) // the state holds what was committed when this node started
	Unaudited func()           // a command was proposed without its audit record, which some member cannot read yet
}

// Recovered is a recovery that has become part of the log.
type Recovered struct {
	Generation       cluster.Generation
	Voters           []cluster.NodeID // the other voters of the previous configuration
	Reason, Operator string
}

// Election is one election in which this node was a candidate.
type Election struct {
	Term       uint64
	FromTerm   uint64 // unless won: the lowest term that it can be of
	Candidate  cluster.NodeID
	Trigger    string // startup, timeout, or what Deps.Facts says
	Reason     string
	Operator   string // the operator who requested it; "": none
	Won        bool
	Open       bool           // unresolved: no leader yet
	Votes      []cluster.Vote // as far as they are known
	StartedAt  time.Time
	Duration   time.Duration // candidacy to leader-start applied, or to the other leader
	Leaderless time.Duration // since the last contact with the last leader
	LedAt      time.Time     // when this node was first sampled as leader; zero when lost, or never sampled
}

// ElectionFacts is what other packages know about an election of this node. A zero field is unknown.
type ElectionFacts struct {
	Trigger, Reason, Operator string
	// OverLiveLeader: voters ignored a leader that may have a lease. This node serves nothing until that has expired.
	OverLiveLeader  bool
	StartedAt       time.Time
	LeaderlessSince time.Time // last contact with the previous leader
	Votes           []cluster.Vote
}

// Deps is what a Node works with. All fields are required unless they say otherwise.
type Deps struct {
	// Storage is closed by Run, or by Close when Run is never called.
	Storage storage.Storage
	// Transport returns a transport for one run of Raft, which closes it when it stops. Each call returns a new one.
	Transport  func() Transport
	Bind       func(RaftCallbacks) // called when Raft runs on the last transport
	Acks       Acks
	PeerAck    func(cluster.NodeID) cluster.PeerAck
	ResetPeers func() // repeat the hello on every connection
	// Probe sends a hello to addr. It returns the description that the node there sends and its admission of this node,
	// also beside an error when either side refuses the other.
	Probe func(ctx context.Context, addr string) (cluster.Peer, cluster.Admission, error)
	// Poll requests the claims of peers, and returns those that respond in time.
	Poll   func(ctx context.Context, peers []cluster.NodeID) map[cluster.NodeID]cluster.ReceivedClaim
	Logger hclog.Logger

	Entropy    io.Reader            // for cluster IDs and incarnations
	LeaseClock func() time.Duration // runs on while the machine is suspended
	// MayWrite returns what prevents a leader from serving users' writes. It is called before each batch, and before
	// and after the merge of a restore. Optional.
	MayWrite func() error
	// HeldWrites returns how many writes wait here for a leader, to be proposed next. It must not block. Optional.
	HeldWrites func() int
	// Announce informs a peer that this node transfers leadership to it and why, before it sends TimeoutNow. Claims
	// repeat that until retract is called. It takes a few milliseconds. Optional.
	Announce func(ctx context.Context, h cluster.TransferNotice) (retract func())
	// Facts returns what is known about the election of term, which this node has won. Optional.
	Facts func(term uint64) ElectionFacts
	Hooks Hooks
	// DiskHangs is called when a storage operation takes much longer than usual, and again while that lasts. It must
	// not block. Optional.
	DiskHangs func()
	// ObserveDisk is called when a storage operation (the storage.Op names) ends. It must not block. Optional.
	ObserveDisk func(op string, took time.Duration)
}

// LeasePromise returns for how long this node votes for no other one after a leader's message; 0 without leases. It is
// longer than the lease, also by a clock that drifts.
func (c *Config) LeasePromise() time.Duration {
	if !c.Lease {
		return 0
	}
	return c.TimeoutMin
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
	check(c.TimeoutMin >= 10*time.Millisecond, "election.timeout-min: must be at least 10ms (got %v)", c.TimeoutMin)
	check(c.TimeoutMax == 2*c.TimeoutMin, "election.timeout-max: must be twice election.timeout-min, %v (got %v)",
		c.TimeoutMin, c.TimeoutMax)
	check(c.TrailingLogs >= raftnode.MinTrailingLogs, "snapshot.trailing-logs: must be at least %d (got %d)",
		raftnode.MinTrailingLogs, c.TrailingLogs)
	check(c.SnapshotThreshold > 0, "snapshot.threshold: must not be 0")
	check(c.SnapshotInterval >= raftnode.MinSnapshotInterval, "snapshot.interval: must be at least %v (got %v)",
		raftnode.MinSnapshotInterval, c.SnapshotInterval)
	check(c.LeaseDrift >= 0 && c.LeaseDrift < 1, "election.lease-drift: must be at least 0 and less than 1 (got %v)",
		c.LeaseDrift)
	return errors.Join(errs...)
}

func (d *Deps) validate() error {
	missing := map[string]bool{
		"Storage": d.Storage == nil, "Transport": d.Transport == nil,
		"Acks": d.Acks == nil, "PeerAck": d.PeerAck == nil, "Bind": d.Bind == nil, "ResetPeers": d.ResetPeers == nil,
		"Probe": d.Probe == nil, "Poll": d.Poll == nil,
		"Logger": d.Logger == nil, "Entropy": d.Entropy == nil, "LeaseClock": d.LeaseClock == nil,
	}
	maps.DeleteFunc(missing, func(_ string, isMissing bool) bool { return !isMissing })
	if len(missing) == 0 {
		return nil
	}
	return fmt.Errorf("consensus: dependencies missing: %v", slices.Sorted(maps.Keys(missing)))
}

// stateOptions returns how much history is kept for watches: at least what a restarted follower may lag behind.
func (c *Config) stateOptions() state.Options {
	return state.Options{HistoryRevisions: max(int(c.TrailingLogs), state.DefaultHistoryRevisions)}
}
