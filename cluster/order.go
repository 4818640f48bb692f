package cluster

// The actions that move leadership, as plans name them.
const (
	ActionTransfer  = "transfer"
	ActionFailover  = "failover"
	ActionEmergency = "emergency"
)

// Order is an operator's call to move leadership.
type Order struct {
	Action   string // one of the above
	Target   NodeID // who is to lead; "": whoever is best placed
	Reason   string
	Operator string // who gives it
	Here     bool   // another node found that this one is to carry it out
}

// Mandate is what a node stands for election by.
type Mandate int

const (
	// MandateEvidence: it has found out by itself that the leader is gone. It must
	// be allowed to stand, and voters go by evidence of their own.
	MandateEvidence Mandate = iota
	// MandateReturn: whom it handed leadership to does not lead. It stands also
	// while automatic failover is paused; voters go by evidence of their own.
	MandateReturn
	// MandateOrder: an operator wants it. It need not be allowed to stand, and
	// voters are asked to pass over the leader that they know.
	MandateOrder
)
