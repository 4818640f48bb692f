package cluster

import "time"

// Claim is what a node says of itself and of the leader that it sees, at one
// moment of its own clock. It is never believed further than for starting, or
// not starting, an election: votes decide.
type Claim struct {
	NodeID     NodeID     `json:"node_id"`
	ClusterID  string     `json:"cluster_id,omitempty"`
	Generation Generation `json:"generation"`
	BootID     string     `json:"boot_id"`
	Term       uint64     `json:"term"`
	Role       Role       `json:"role"`

	LeaderID NodeID `json:"leader_id,omitempty"` // "" when it knows none
	// LeaderBootID is the leader's process that it is or was connected with; ""
	// when it is not known. A node that knows no leader any more goes on naming the
	// process of the last one.
	LeaderBootID string `json:"leader_boot_id,omitempty"`
	// LeaderContactAge is the time since its Raft last heard from that leader: 0
	// on the leader itself, < 0 when it never did.
	LeaderContactAge time.Duration `json:"leader_contact_age,omitempty"`
	// LeaderSilence is the time since that leader last gave any sign of life: an
	// append, or an answer to a probe that did not say that its disk is stalled;
	// < 0 when it never did.
	LeaderSilence time.Duration `json:"leader_silence,omitempty"`
	// LeaderProcessDead says that it has confirmed by itself, by dialling again, that
	// the leader's process LeaderBootID is dead.
	LeaderProcessDead bool `json:"leader_lost,omitempty"`

	LastLogTerm  uint64         `json:"last_log_term"`
	LastLogIndex uint64         `json:"last_log_index"`
	AppliedIndex uint64         `json:"applied_index"`
	Priority     int            `json:"priority"`
	Eligible     bool           `json:"eligible"`
	IsVoter      bool           `json:"is_voter"`
	Lifecycle    Lifecycle      `json:"lifecycle"`
	Draining     bool           `json:"draining,omitempty"`
	Paused       bool           `json:"paused,omitempty"` // automatic failover is paused, as this node sees it
	Disk         DiskState      `json:"disk"`
	Handover     TransferNotice `json:"handover,omitzero"` // of a leader that is handing leadership over
	// CrashSocketPort is a port of its host that is closed before all others when its
	// process dies; 0: none.
	CrashSocketPort int `json:"canary_port,omitempty"`

	ServiceRefused bool `json:"refusing,omitempty"` // it is part of a split brain, and serves nobody
	// IDs that it knows to be borne by two processes each, with blanks between
	DuplicateIDs string `json:"doubled,omitempty"`
}

// TransferNotice is what a leader is about to do, so that the next leader can say why
// it was elected: the message that tells it to stand has no room for that.
type TransferNotice struct {
	To      NodeID `json:"to"`      // "": the best placed voter, where that is still to be chosen
	Trigger string `json:"trigger"` // as in election records
	Reason  string `json:"reason"`

	Operator string `json:"operator,omitempty"` // who ordered it; "": nobody
}

// ReceivedClaim is the newest claim of a peer, as this node received it.
type ReceivedClaim struct {
	Claim        Claim
	At           time.Time     // when it was received, on this node's monotonic clock
	LastExchange time.Duration // of the newest exchange, or what the peer says of the network; 0 when neither is known
	NetworkRTT   time.Duration // of the network, without what a busy peer took now and then; 0: not known
	Connected    bool          // the monitor connection with that peer stands
}

// ConnectionLoss is a monitor connection that the other end has closed or reset, as the
// kernel does for a process that has died.
type ConnectionLoss struct {
	Peer   NodeID
	BootID string // of the process at the other end
	At     time.Time
	Cause  error
}

// Liveness is what dialling a peer again has shown of one of its processes.
type Liveness string

// The answers of a confirmation.
const (
	LivenessDead      Liveness = "dead"      // nobody listens at its address
	LivenessAlive     Liveness = "alive"     // the same process answered
	LivenessRestarted Liveness = "restarted" // another process of that node answered
	LivenessUnclear   Liveness = "unclear"   // no answer in time, or no address
)

// VoteResponse is one voter's answer to this node's own candidacy.
type VoteResponse struct {
	Term    uint64 // that was asked for
	Voter   NodeID
	Pre     bool // a pre-vote
	Granted bool
	Reason  string // for people, when not granted
}
