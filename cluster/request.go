package cluster

// The actions that move leadership, as plans name them.
const (
	ActionTransfer  = "transfer"
	ActionFailover  = "failover"
	ActionEmergency = "emergency"
)

// LeadershipRequest is an operator's request to move leadership.
type LeadershipRequest struct {
	Action    string // one of the above
	Target    NodeID // the next leader; "": the best placed node
	Reason    string
	Operator  string // the operator who requests it
	Forwarded bool   // another node has chosen this one to carry it out
}

// ElectionCause is the reason for which a node starts an election.
type ElectionCause int

const (
	// CauseLeaderFailed: the node has detected by itself that the leader has failed. The node must be allowed
	// to start elections, and voters rely on their own evidence.
	CauseLeaderFailed ElectionCause = iota
	// CauseTransferFailed: the node transferred leadership to one that does not lead. It starts an election
	// even while automatic failover is paused. Voters rely on their own evidence.
	CauseTransferFailed
	// CauseOperator: an operator requests it. The node need not be allowed to start elections, and voters are
	// asked to disregard the leader that they know.
	CauseOperator
)
