package cluster

import "time"

// NodeStatus is what a node knows of itself and of its cluster at one moment.
// It is a value: the slices are never changed after it was handed out.
type NodeStatus struct {
	Identity
	Role              Role
	Term              uint64
	LeaderID          NodeID        // "" when it knows none
	LeaderRaftAddress string        // "" when it knows none
	LeaderContactAge  time.Duration // since it last heard from that leader; 0 on the leader, < 0 when it never did
	LeaderSince       time.Time     // when this reign's leader-start was applied; zero on any other node
	LeaseRemaining    time.Duration // 0: no lease
	CommitIndex       uint64
	AppliedIndex      uint64
	LastLogIndex      uint64
	Lifecycle         Lifecycle
	DeadReason        string   // for people, when Lifecycle is Dead
	CaughtUp          bool     // has applied what was committed when it started
	Servers           []Server // Raft's latest configuration
	Disk              DiskState
}

// Suffrage is this node's own place in the configuration: NonVoter too when it
// is not in it (yet).
func (s NodeStatus) Suffrage() Suffrage {
	if me, ok := FindServer(s.Servers, s.NodeID); ok && me.Suffrage == Voter {
		return Voter
	}
	return NonVoter
}

// PeerStatus is what one node, usually the leader, knows of one server of the
// configuration other than itself.
type PeerStatus struct {
	ID              NodeID
	Healthy         bool
	Reasons         []string      // for people, why it is not healthy
	Silent          bool          // one of Reasons is that it was not heard from in time
	Contacted       bool          // LastContact and MatchIndex say something
	LastContact     time.Duration // since its last answer
	MatchIndex      uint64        // highest log index known to be on its disk
	LagEntries      uint64        // behind this node's last log index; 0 when not leading
	Dead            bool          // refused for good, or refuses this node for good
	TransferBlocked string        // why this leader must not hand leadership to it in this term; "" when it may
}

// AddSilence adds the reason that the peer was not heard from for so long.
func (p *PeerStatus) AddSilence(silent time.Duration) {
	p.Silent, p.Reasons = true, append(p.Reasons, "silent for "+silent.Round(time.Millisecond).String())
}

// MemberAdd asks for a new member. It starts as a non-voter.
type MemberAdd struct {
	ID          NodeID `json:"ID"`
	RaftAddress string `json:"RaftAddress"`
	HTTPAddress string `json:"HTTPAddress"`
	Promote     bool   `json:"Promote"` // becomes a voter once it is caught up and stable
}

// MemberPatch changes a member; a nil field stays as it is.
type MemberPatch struct {
	Priority    *int      `json:"Priority"`
	Eligible    *bool     `json:"Eligible"`
	Zone        *string   `json:"Zone"`
	Suffrage    *Suffrage `json:"Suffrage"`
	RaftAddress *string   `json:"RaftAddress"`
	HTTPAddress *string   `json:"HTTPAddress"`
	Drain       *bool     `json:"Drain"` // true: the node leads no more until false; it goes on voting
	// forget the recorded incarnation: the next data directory that says hello counts
	Readmit bool `json:"Readmit"`
}

// TransferOutcome is a leadership transfer that arrived: the new leader was
// seen leading.
type TransferOutcome struct {
	OldLeader NodeID
	NewLeader NodeID
	Term      uint64
	Duration  time.Duration
}

// Vote is one voter's answer in an election. The votes of a leader-start record
// are the JSON of a []Vote.
type Vote struct {
	Voter   NodeID `json:"voter_id"`
	Granted bool   `json:"granted"`
	Reason  string `json:"reason"`
}
