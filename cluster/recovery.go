package cluster

import (
	"cmp"
	"fmt"
	"slices"
)

// RecoveryRequest asks for the recovery of a lost quorum.
type RecoveryRequest struct {
	Survivors []NodeID // all remaining nodes, as the operator states
	Confirm   string   // must be the cluster's ID
	Operator  string   // the operator who requested it
	Reason    string
}

// Survivor is the report of one remaining node about itself.
type Survivor struct {
	ID        NodeID
	Voter     bool
	Priority  int
	LastTerm  uint64 // of its last entry
	LastIndex uint64
}

// compareUpToDate orders survivors by their logs, as Raft compares them: the more up-to-date log first. Equal
// logs are ordered by suffrage, priority and ID.
func compareUpToDate(a, b Survivor) int {
	return cmp.Or(
		cmp.Compare(b.LastTerm, a.LastTerm), cmp.Compare(b.LastIndex, a.LastIndex),
		CompareBool(b.Voter, a.Voter), cmp.Compare(b.Priority, a.Priority), cmp.Compare(a.ID, b.ID),
	)
}

// RecoveryInputs is everything that a recovery is decided from. Servers is the latest configuration of the deciding
// node. Responses are its report and those of other nodes of the same cluster and generation.
type RecoveryInputs struct {
	Identity Identity // of the deciding node
	Servers  []Server
	// ElectionBlocked: the deciding node must not start an election, not even as the only voter: its configuration is
	// older than its own re-admission.
	ElectionBlocked bool
	Responses       map[NodeID]Survivor
	// NextGeneration is the number of the new generation, if it is not the next one.
	NextGeneration uint64
}

// RecoveryPlan is the effect of a recovery.
type RecoveryPlan struct {
	ClusterID  string
	Generation uint64     // of the new generation
	Chosen     NodeID     // becomes the only voter
	Survivors  []Survivor // most up to date first
	Lost       []NodeID   // members that are not among the survivors
	Voters     int        // in the configuration
	Needed     int        // for a quorum
}

// PlanRecovery decides about a request. It returns CodeBadRequest with the name of the field, or
// CodeQuorumExists while a quorum answers.
//
// The operator must name exactly the nodes that answer. A node that answers and is not named would keep data
// of the old generation. A node that is named and does not answer may have a newer log than the others.
func PlanRecovery(o RecoveryRequest, in RecoveryInputs) (RecoveryPlan, error) {
	if in.Identity.ClusterID == "" {
		return RecoveryPlan{}, Errorf(CodeBadRequest, "confirm: this node, %s, belongs to no cluster yet",
			in.Identity.NodeID)
	}
	if o.Confirm != in.Identity.ClusterID {
		return RecoveryPlan{}, Errorf(CodeBadRequest, "confirm: must be the cluster's ID %s (got %q)",
			in.Identity.ClusterID,
			o.Confirm)
	}
	plan := RecoveryPlan{
		ClusterID: in.Identity.ClusterID, Generation: max(in.NextGeneration, in.Identity.Generation.Number+1),
		Voters: CountVoters(in.Servers), Needed: Quorum(CountVoters(in.Servers)),
	}
	answering := 0
	for _, s := range in.Servers {
		if _, ok := in.Responses[s.ID]; ok && s.Suffrage == Voter {
			answering++
		}
	}
	me, _ := FindServer(in.Servers, in.Identity.NodeID)
	alone := in.ElectionBlocked && plan.Voters == 1 && me.Suffrage == Voter
	if answering >= plan.Needed && !alone {
		return plan, Errorf(CodeQuorumExists,
			"%d of %d voters answer, and %d are a quorum: nothing is lost, the cluster can elect a leader without help",
			answering, plan.Voters, plan.Needed)
	}
	if err := plan.partition(o.Survivors, in); err != nil {
		return plan, err
	}
	plan.Chosen = plan.Survivors[0].ID
	return plan, nil
}

// partition divides the members into survivors and lost ones.
func (p *RecoveryPlan) partition(named []NodeID, in RecoveryInputs) error {
	for i, id := range named {
		switch s, answers := in.Responses[id]; {
		case slices.Contains(named[:i], id):
			return Errorf(CodeBadRequest, "survivors: %s is named twice", id)
		case !answers:
			if _, ok := FindServer(in.Servers, id); !ok {
				return Errorf(CodeBadRequest, "survivors: %s is not a member of this cluster", id)
			}
			return Errorf(CodeBadRequest,
				"survivors: %s does not answer node %s: its log may be fresher than the others; start it, or leave it out if it is lost permanently", id, in.Identity.NodeID)
		default:
			p.Survivors = append(p.Survivors, s)
		}
	}
	for _, s := range in.Servers {
		if slices.Contains(named, s.ID) {
			continue
		}
		if _, answers := in.Responses[s.ID]; answers {
			return Errorf(CodeBadRequest, "survivors: %s answers and is not named: name it, or stop it", s.ID)
		}
		p.Lost = append(p.Lost, s.ID)
	}
	if len(p.Survivors) == 0 {
		return Errorf(CodeBadRequest, "survivors: name the nodes that are left")
	}
	slices.SortFunc(p.Survivors, compareUpToDate)
	return nil
}

// ActionRecover is the Action of a recovery's Plan.
const ActionRecover = "recover"

// Plan returns the recovery in the form that a dry run answers with. The node that made it was in that term
// and knew that membership. refusal is the error of PlanRecovery, if any.
func (p RecoveryPlan) Plan(term uint64, membership string, refusal *Error) Plan {
	out := Plan{
		Action: ActionRecover, Term: term, Membership: membership, Target: p.Chosen, Refusal: refusal,
		Risk: RiskHigh, Survivors: p.Survivors,
	}
	for _, s := range p.Survivors {
		c := TargetOption{ID: s.ID, Eligible: s.ID == p.Chosen, Voter: s.Voter, Priority: s.Priority}
		if best := p.Survivors[0]; !c.Eligible {
			c.LagEntries = best.LastIndex - min(best.LastIndex, s.LastIndex)
			c.Reason = fmt.Sprintf("its log ends at term %d, index %d; that of node %s at term %d, index %d",
				s.LastTerm,
				s.LastIndex, best.ID, best.LastTerm, best.LastIndex)
		}
		out.Candidates = append(out.Candidates, c)
		out.Params += string(s.ID) + " "
	}
	if p.Chosen == "" {
		out.Summary = "nothing: the request is refused"
		return out
	}
	out.Summary = p.Summary()
	out.Warnings = []string{
		"lost: " + p.Losses(), p.Warning(),
		"all sessions end and all roles are vacated, for 10 s at least and for the TTL of sessions that may hold them; all watches end; every key gets a new revision",
	}
	return out
}

// Summary returns a sentence on the effect of the recovery.
func (p RecoveryPlan) Summary() string {
	text := fmt.Sprintf("node %s becomes the only voter of generation %d of cluster %s", p.Chosen, p.Generation,
		p.ClusterID)
	if len(p.Survivors) > 1 {
		var others []NodeID
		for _, s := range p.Survivors[1:] {
			others = append(others, s.ID)
		}
		text += fmt.Sprintf("; %s set their data aside and come back as non-voters, then voters", JoinIDs(others))
	}
	if len(p.Lost) > 0 {
		text += fmt.Sprintf("; %s stay out until they are wiped and re-admitted", JoinIDs(p.Lost))
	}
	return text
}

// Losses returns sentences on what the recovery can lose.
func (p RecoveryPlan) Losses() string {
	best := p.Survivors[0]
	return fmt.Sprintf(
		"every write that node %s does not hold: what the lost nodes (%s) acknowledged after entry %d of term %d. What it holds and was never acknowledged may take effect now",
		best.ID, JoinIDs(p.Lost), best.LastIndex, best.LastTerm)
}

// Warning returns a sentence on what no recovery can prevent.
func (p RecoveryPlan) Warning() string {
	return fmt.Sprintf(
		"nodes of the old generation that reach no node of generation %d can still form a quorum of their own (%d of %d voters): make sure that %s are gone, or stay off until they are wiped",
		p.Generation, p.Needed, p.Voters, JoinIDs(p.Lost))
}
