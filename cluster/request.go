package cluster

// The actions that move leadership, as plans name them.
const (
	ActionTransfer  = "transfer"
	ActionFailover  = "failover"
	ActionEmergency = "emergency"
)

// LeadershipRequest is an operator's call to move leadership.
type LeadershipRequest struct {
	Action    string // one of the above
	Target    NodeID // who is to lead; "": whoever is best placed
	Reason    string
	Operator  string // who gives it
	Forwarded bool   // another node found that this one is to carry it out
}

// ElectionCause is what a node stands for election by.
type ElectionCause int

const (
	// CauseLeaderFailed: it has found out by itself that the leader is gone. It must
	// be allowed to stand, and voters go by evidence of their own.
	CauseLeaderFailed ElectionCause = iota
	// CauseTransferFailed: whom it handed leadership to does not lead. It stands also
	// while automatic failover is paused; voters go by evidence of their own.
	CauseTransferFailed
	// CauseOperator: an operator wants it. It need not be allowed to stand, and
	// voters are asked to pass over the leader that they know.
	CauseOperator
)
