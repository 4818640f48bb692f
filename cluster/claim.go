package cluster

import "time"

// Claim is a node's own report of itself and of the leader that it sees, at one moment of its own clock.
// Other nodes use it only to decide whether to start an election. The votes decide the election.
type Claim struct {
	NodeID     NodeID     `json:"node_id"`
	ClusterID  string     `json:"cluster_id,omitempty"`
	Generation Generation `json:"generation"`
	BootID     string     `json:"boot_id"`
	Term       uint64     `json:"term"`
	Role       Role       `json:"role"`

	LeaderID NodeID `json:"leader_id,omitempty"` // "" if it knows none
	// LeaderBootID names the leader's process to which this node is or was connected; "" if unknown. A node
	// that has lost its leader keeps naming the process of the last one.
	LeaderBootID string `json:"leader_boot_id,omitempty"`
	// LeaderContactAge is the time since this node's Raft last heard from that leader. It is 0 on the leader
	// itself and negative if it never heard from it.
	LeaderContactAge time.Duration `json:"leader_contact_age,omitempty"`
	// LeaderSilence is the time since the last sign of life of that leader. An append counts, and so does an
	// answer to a probe unless it reports a stalled disk. It is negative if there was none.
	LeaderSilence time.Duration `json:"leader_silence,omitempty"`
	// SilenceLimit is the LeaderSilence from which this node counts the leader as failed. 0: timeout-min, and of nodes
	// of earlier versions.
	SilenceLimit time.Duration `json:"silence_limit,omitempty"`
	// SilenceMeasured is the threshold that this node has measured for long enough. 0: none.
	SilenceMeasured time.Duration `json:"silence_measured,omitempty"`
	// NeedlessTerm is the term of the last needless election, for which this node waits for longer now. 0: none.
	NeedlessTerm uint64 `json:"needless_term,omitempty"`
	// StoppedAgo is the time since this node's process was last found to run again after it had stopped for a while,
	// as after a SIGSTOP. 0: not in the last seconds.
	StoppedAgo time.Duration `json:"stopped_ago,omitempty"`
	// LeaderProcessDead: this node has dialled the leader again, and its process LeaderBootID is dead.
	LeaderProcessDead bool `json:"leader_lost,omitempty"`

	LastLogTerm  uint64    `json:"last_log_term"`
	LastLogIndex uint64    `json:"last_log_index"`
	AppliedIndex uint64    `json:"applied_index"`
	Priority     int       `json:"priority"`
	Eligible     bool      `json:"eligible"`
	IsVoter      bool      `json:"is_voter"`
	Lifecycle    Lifecycle `json:"lifecycle"`
	Draining     bool      `json:"draining,omitempty"`
	Paused       bool      `json:"paused,omitempty"` // automatic failover is paused, as this node sees it
	Disk         DiskState `json:"disk"`
	// Yields is why this leader sends no appends, so that the others elect; "" if it does send.
	Yields   YieldCause     `json:"yields,omitempty"`
	Handover TransferNotice `json:"handover,omitzero"` // of a leader that is transferring leadership
	// CrashSocketPort is a port that the kernel closes before all others when the process dies. 0: none.
	CrashSocketPort int `json:"canary_port,omitempty"`

	ServiceRefused bool `json:"refusing,omitempty"` // it is part of a split brain and serves no client
	// Superseded: a node of another generation of the cluster refused it recently. It takes part in no election.
	Superseded bool `json:"superseded,omitempty"`
	// IDs of which it knows two processes each, separated by blanks
	DuplicateIDs string `json:"doubled,omitempty"`
}

// replayLag is how many entries of its log a node may have yet to apply: 12 to 70 ms, by what they write.
const replayLag = 1024

// Replaying returns how many entries of its log the node has yet to apply, as after a start; 0 if they are few. As a
// leader it would serve nothing before.
func (c Claim) Replaying() (entries uint64) {
	if left := c.LastLogIndex - min(c.AppliedIndex, c.LastLogIndex); left > replayLag {
		return left
	}
	return 0
}

// YieldCause is why a leader lets the others elect.
type YieldCause string

// The causes.
const (
	YieldDisk    YieldCause = "disk"    // an operation takes much longer than usual
	YieldUnheard YieldCause = "unheard" // it hears no majority of the voters
)

// String returns the cause as the end of a sentence about the leader.
func (c YieldCause) String() string {
	switch c {
	case YieldDisk:
		return "its disk hangs"
	case YieldUnheard:
		return "it hears no majority of the voters"
	}
	return string(c)
}

// TransferNotice announces a transfer and its reason, for which Raft's TimeoutNow message has no field.
type TransferNotice struct {
	To      NodeID `json:"to"`      // "": the best placed voter, which is still to be chosen
	Trigger string `json:"trigger"` // as in election records
	Reason  string `json:"reason"`

	Operator string `json:"operator,omitempty"` // the operator who requested it; "": none
}

// ReceivedClaim is the newest claim of a peer, as this node received it.
type ReceivedClaim struct {
	Claim Claim
	At    time.Time // when it was received, on this node's monotonic clock
	// LastExchange is the round trip of the newest exchange, or what the peer reports of the network. 0: unknown.
	LastExchange time.Duration
	NetworkRTT   time.Duration // of the network, without the occasional delays of a busy peer; 0: unknown
	Connected    bool          // the monitor connection with that peer is open
}

// ConnectionLoss is a monitor connection that the other end closed or reset, as when its process dies.
type ConnectionLoss struct {
	Peer   NodeID
	BootID string // of the process at the other end
	At     time.Time
	Cause  error
}

// Liveness is what a new connection attempt showed about one process of a peer.
type Liveness string

// The results of a confirmation.
const (
	LivenessDead      Liveness = "dead"      // its address refuses connections
	LivenessAlive     Liveness = "alive"     // the same process answered
	LivenessRestarted Liveness = "restarted" // another process of that node answered
	LivenessUnclear   Liveness = "unclear"   // no answer in time, or no address
)

// VoteResponse is one voter's answer to this node's own candidacy.
type VoteResponse struct {
	Term    uint64 // the term of the request
	Voter   NodeID
	Pre     bool // a pre-vote
	Granted bool
	Reason  string // human-readable, if not granted
}
