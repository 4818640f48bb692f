package cluster

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Plan is the effect of one operator's request, computed before anything is done. A dry run returns it, and
// the request itself follows it, so the two cannot differ. It is a value: making one changes nothing.
type Plan struct {
	Action     string // what the call is, such as transfer or member_remove: no dots
	Term       uint64 // in which it was made
	Membership string // MembershipDigest at that time
	Leader     NodeID // at that time; "" if none was known
	Target     NodeID // the node that it concerns, or the next leader; "": none
	Executor   NodeID // for a move of leadership: the node that carries it out, which is the leader or the target
	Method     Method // of a move of leadership
	// MovesLeader: it concerns the leader, which transfers leadership first.
	MovesLeader bool
	Params      string // the request's other parameters that change its effect, in one fixed form

	Summary    string // the effect, in one sentence
	Refusal    *Error // the error that the request would end with; nil: it would be carried out
	Candidates []TargetOption
	Affected   Affected
	Gap        Gap
	Risk       Risk
	Warnings   []string
	Survivors  []Survivor // of a recovery, most up to date first
}

// MemberChange is one change of the membership: an addition, a patch, or, if both are nil, a removal.
type MemberChange struct {
	ID    NodeID       `json:"ID"`
	Add   *MemberAdd   `json:"Add"`
	Patch *MemberPatch `json:"Patch"`
	// Membership is the MembershipDigest that the change was planned for; "": it was not planned.
	Membership string `json:"-"`
}

// Action returns the name of the change in a plan.
func (c MemberChange) Action() string {
	switch {
	case c.Add != nil:
		return "member_add"
	case c.Patch == nil:
		return "member_remove"
	case c.Patch.Drain == nil:
		return "member_set"
	case *c.Patch.Drain:
		return "drain"
	}
	return "undrain"
}

// TargetOption is one node from which the target of a plan was chosen.
type TargetOption struct {
	ID         NodeID
	Eligible   bool
	Reason     string // the check that excludes it; "": none does
	Voter      bool
	LogBehind  bool // a majority cannot vote for it, and a voter's newer log is one cause
	Priority   int
	ZoneRank   int    // place of its zone in the order of preferred zones, 0 being the first
	LagEntries uint64 // behind the end of the log, as far as is known
}

// Affected is the effect of a plan on parts other than the leader.
type Affected struct {
	Roles    int // that are held; they stay held while leadership moves quickly
	Sessions int
}

// Gap is the expected pause of writes, from this cluster's records of similar cases.
type Gap struct {
	Expected time.Duration // the median
	Worst    time.Duration // the longest
	Samples  int           // 0: no case is recorded, and the other fields mean nothing
}

// Method is the way in which leadership moves.
type Method string

// The ways to move leadership: the leader transfers it, or the target is elected without the leader's help.
const (
	MethodTransfer Method = "transfer"
	MethodElection Method = "election"
)

// Risk is the possible damage of a plan.
type Risk string

// The risks: a pause of writes, an election that may take several rounds, the loss of the quorum or of data.
const (
	RiskLow    Risk = "low"
	RiskMedium Risk = "medium"
	RiskHigh   Risk = "high"
)

// ID returns the plan's name: action, term and target in readable form, and a digest of all inputs. It is the
// same on every node that sees the same term and membership, so no node has to remember it.
func (p Plan) ID() string {
	h := sha256.New()
	for _, s := range []string{p.Action, strconv.FormatUint(p.Term, 10), p.Membership, string(p.Target), p.Params} {
		fmt.Fprintf(h, "%d:%s", len(s), s)
	}
	return fmt.Sprintf("%s.%d.%s.%s", p.Action, p.Term, p.Target, hex.EncodeToString(h.Sum(nil)[:8]))
}

// Check returns nil if id is the ID of this plan, made just now for the same request. The error is CodeTermStale if
// term or membership have changed since, and CodeBadRequest if id is of another request or malformed.
func (p Plan) Check(id string) *Error {
	if id == p.ID() {
		return nil
	}
	action, term, target, err := ParsePlanID(id)
	switch {
	case err != nil:
		return err
	case action != p.Action:
		return Errorf(CodeBadRequest, "plan_id: %q is a plan of %s, this call is %s", id, action, p.Action)
	case target != p.Target:
		return Errorf(CodeBadRequest, "plan_id: %q is about node %q, this call about %q", id, target, p.Target)
	case term != p.Term:
		return Errorf(CodeTermStale, "plan_id: the plan was made in term %d, the term is %d now: make a new one", term,
			p.Term)
	}
	return Errorf(CodeTermStale,
		"plan_id: the membership, or what the call would do, has changed since the plan was made: make a new one")
}

// ParsePlanID splits an ID into its parts. The error is CodeBadRequest.
func ParsePlanID(id string) (action string, term uint64, target NodeID, err *Error) {
	bad := Errorf(CodeBadRequest, "plan_id: must be the plan_id of a dry run (got %q)", id)
	action, rest, ok := strings.Cut(id, ".")
	number, rest, ok2 := strings.Cut(rest, ".")
	at := strings.LastIndexByte(rest, '.') // node IDs may contain dots
	if !ok || !ok2 || at < 0 || len(id) > maxPlanID {
		return "", 0, "", bad
	}
	term, perr := strconv.ParseUint(number, 10, 64)
	if perr != nil {
		return "", 0, "", bad
	}
	if at > 0 {
		if target, perr = ParseNodeID(rest[:at]); perr != nil {
			return "", 0, "", bad
		}
	}
	return action, term, target, nil
}

const maxPlanID = 160

// MembershipDigest returns a digest of all facts about the members on which a plan depends.
func MembershipDigest(servers []Server, members []Member) string {
	var lines []string
	for _, s := range servers {
		lines = append(lines, fmt.Sprintf("server %s %q %s", s.ID, s.Address, s.Suffrage))
	}
	for _, m := range members {
		lines = append(lines, fmt.Sprintf("member %s %d %v %s %v %q", m.ID, m.Priority, m.Eligible, m.Lifecycle,
			m.Removed,
			m.Incarnation))
	}
	slices.Sort(lines)
	sum := sha256.Sum256([]byte(strings.Join(lines, "\n")))
	return hex.EncodeToString(sum[:8])
}

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
	Zone      string // the next leader's zone, for a transfer; "": any
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
