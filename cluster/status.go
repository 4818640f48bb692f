package cluster

import "time"

// NodeStatus is a node's knowledge of itself and of its cluster at one moment. Its slices never change.
type NodeStatus struct {
	Identity
	Role              Role
	Term              uint64
	LeaderID          NodeID        // "" if it knows none
	LeaderRaftAddress string        // "" if it knows none
	LeaderContactAge  time.Duration // since Raft heard a leader, granted a vote or led; 0 on the leader, < 0: never
	StateAge          time.Duration // since its state was known to be current; 0 on the leader, < 0: never
	LeaderSince       time.Time     // when the leader-start of this leader's term was applied; zero on any other node
	LeaseRemaining    time.Duration // 0: no lease
	CommitIndex       uint64
	AppliedIndex      uint64
	LastLogIndex      uint64
	StartLogIndex     uint64 // LastLogIndex when Raft started, 0 before
	Lifecycle         Lifecycle
	DeadReason        string   // human-readable, if Lifecycle is Dead
	NotFollowed       string   // human-readable, without a leader: the peers that this node would not follow, and why
	CaughtUp          bool     // has applied what was committed when it started
	Servers           []Server // Raft's latest configuration
	Disk              DiskState
}

// Suffrage returns this node's own voting right, NonVoter if the configuration does not contain the node.
func (s NodeStatus) Suffrage() Suffrage {
	if me, ok := FindServer(s.Servers, s.NodeID); ok && me.Suffrage == Voter {
		return Voter
	}
	return NonVoter
}

// CheckCaughtUp returns an error until the node has applied what was committed when it started. Its log holds that,
// and only a leader knows which part is committed. Before that its state may lack acknowledged writes that it had,
// unless it has applied its log as of then.
func (s NodeStatus) CheckCaughtUp() error {
	if s.CaughtUp || s.StartLogIndex > 0 && s.AppliedIndex >= s.StartLogIndex {
		return nil
	}
	return Errorf(CodeNoLeader, "node %s has started and has not learned from a leader what of its log is committed "+
		"(applied index %d of %d)", s.NodeID, s.AppliedIndex, s.StartLogIndex)
}

// PeerStatus is one node's knowledge, usually the leader's, of another server of the configuration.
type PeerStatus struct {
	ID              NodeID
	Healthy         bool
	Reasons         []string      // human-readable: why it is not healthy
	Silent          bool          // one of Reasons is that it was not heard from in time
	Contacted       bool          // LastContact and MatchIndex are known
	LastContact     time.Duration // since its last answer
	MatchIndex      uint64        // highest log index known to be on its disk
	LagEntries      uint64        // behind the end of the log, or yet to be applied if that is more
	Dead            bool          // one of the two nodes permanently refuses the other
	TransferBlocked string        // why this leader must not transfer leadership to it in this term; "" if it may
}

// PeerAck is what a node knows about a peer from its responses.
type PeerAck struct {
	Incarnation   string        // the data directory that all fields but LastContact are about
	Term          uint64        // newest term in which it acknowledged an append; the next three are of that term
	LastSendAcked time.Time     // newest send time of an acknowledged append
	LeasePromise  time.Duration // of the process that acknowledged it, or of a later one of that node
	MatchIndex    uint64        // highest index that it is known to hold
	LastContact   time.Time     // of its last response to anything, also a refusal; zero: never
}

// Asker is a node that asks the leader for a read index, as it is after the reads began for which it asks.
type Asker struct {
	ID          NodeID
	Incarnation string // its data directory
	Term        uint64 // its current term; 0: unknown
	Applied     uint64 // index up to which its state reflects the log
}

// AddSilence adds the reason that the peer has been silent for that time.
func (p *PeerStatus) AddSilence(silent time.Duration) {
	p.Silent, p.Reasons = true, append(p.Reasons, "silent for "+silent.Round(time.Millisecond).String())
}

// MemberAdd requests a new member. It starts as a non-voter.
type MemberAdd struct {
	ID          NodeID `json:"ID"`
	RaftAddress string `json:"RaftAddress"`
	HTTPAddress string `json:"HTTPAddress"`
	Promote     bool   `json:"Promote"` // becomes a voter once it is caught up and stable
	// ByNode: the node itself requests it, and no operator. A removed node must not.
	ByNode bool `json:"-"`
}

// MemberPatch changes a member; a nil field stays unchanged.
type MemberPatch struct {
	Priority    *int      `json:"Priority"`
	Eligible    *bool     `json:"Eligible"`
	Zone        *string   `json:"Zone"`
	Suffrage    *Suffrage `json:"Suffrage"`
	RaftAddress *string   `json:"RaftAddress"`
	HTTPAddress *string   `json:"HTTPAddress"`
	Drain       *bool     `json:"Drain"` // true: the node does not lead until false is set; it keeps voting
	// Readmit removes the recorded incarnation: the data directory of the next hello is recorded.
	Readmit bool `json:"Readmit"`
}

// TransferOutcome is a completed leadership transfer: the new leader was seen leading.
type TransferOutcome struct {
	OldLeader NodeID
	NewLeader NodeID
	Term      uint64
	Duration  time.Duration
}

// Vote is one voter's answer in an election. The votes of a leader-start record are the JSON of a []Vote.
type Vote struct {
	Voter   NodeID `json:"voter_id"`
	Granted bool   `json:"granted"`
	Reason  string `json:"reason"`
	Pre     bool   `json:"pre,omitempty"` // the answer to a pre-vote, which promises nothing
}

// VoteGiven is a voter's answer to a candidate.
type VoteGiven struct {
	Term      uint64
	Candidate NodeID
	Vote
}

// VotePending is the reason of a vote that has not arrived.
const VotePending = "no answer yet"
