package apiv1

import (
	"time"
)

// MemberAdd is the body of POST /admin/members.
type MemberAdd struct {
	ID          string `json:"id"`
	RaftAddress string `json:"raft_address"`
	HTTPAddress string `json:"http_address"`
	Suffrage    string `json:"suffrage,omitempty" enum:"voter,nonvoter" doc:"voter (the default): promoted once caught up and stable; nonvoter: stays one"`
	Reason      string `json:"reason,omitempty"`
	DryRun      bool   `json:"dry_run,omitempty" doc:"answer what would be done, and do nothing"`
	PlanID      string `json:"plan_id,omitempty" doc:"of a dry run of this call: do exactly that"`
}

// MemberPatch is the body of PATCH /admin/members/{id}. An absent field stays as it is.
type MemberPatch struct {
	Priority    *int    `json:"priority,omitempty"`
	Eligible    *bool   `json:"eligible,omitempty"`
	Zone        *string `json:"zone,omitempty"`
	Suffrage    *string `json:"suffrage,omitempty" enum:"voter,nonvoter"`
	RaftAddress *string `json:"raft_address,omitempty"`
	HTTPAddress *string `json:"http_address,omitempty"`
	Readmit     bool    `json:"readmit,omitempty" doc:"accept the node with another data directory: its disk was replaced"`
	Reason      string  `json:"reason,omitempty"`
	DryRun      bool    `json:"dry_run,omitempty" doc:"answer what would be done, and do nothing"`
	PlanID      string  `json:"plan_id,omitempty" doc:"of a dry run of this call: do exactly that"`
}

// MemberRemove is the optional body of DELETE /admin/members/{id}.
type MemberRemove struct {
	Reason string `json:"reason,omitempty"`
	DryRun bool   `json:"dry_run,omitempty" doc:"answer what would be done, and do nothing"`
	PlanID string `json:"plan_id,omitempty" doc:"of a dry run of this call: do exactly that"`
}

// Drain is the optional body of POST /admin/nodes/{id}/drain and undrain.
type Drain struct {
	Reason string `json:"reason,omitempty"`
	DryRun bool   `json:"dry_run,omitempty" doc:"answer what would be done, and do nothing"`
	PlanID string `json:"plan_id,omitempty" doc:"of a dry run of this call: do exactly that"`
}

// MemberResult is the response to the five requests above.
type MemberResult struct {
	ID      string `json:"id"`
	Message string `json:"message"`
}

// Transfer is the body of POST /admin/transfer.
type Transfer struct {
	TargetLeaderID string `json:"target_leader_id,omitempty" doc:"absent: the best placed voter"`
	TargetZone     string `json:"target_zone,omitempty" doc:"the new leader must be in this zone; refused if the leader is there already"`
	TimeoutMS      *int64 `json:"timeout_ms,omitempty" doc:"default 30000"`
	Reason         string `json:"reason,omitempty"`
	DryRun         bool   `json:"dry_run,omitempty" doc:"answer what would be done, and do nothing"`
	PlanID         string `json:"plan_id,omitempty" doc:"of a dry run of this call: do exactly that"`
}

// Failover is the body of POST /admin/failover.
type Failover struct {
	TargetLeaderID string `json:"target_leader_id,omitempty" doc:"absent: the best placed voter"`
	Reason         string `json:"reason,omitempty"`
	DryRun         bool   `json:"dry_run,omitempty" doc:"answer what would be done, and do nothing"`
	PlanID         string `json:"plan_id,omitempty" doc:"of a dry run of this call: do exactly that"`
}

// Emergency is the body of POST /admin/failover/emergency.
type Emergency struct {
	TargetLeaderID string `json:"target_leader_id" doc:"required"`
	Force          bool   `json:"force,omitempty" doc:"must be true, but for a dry run"`
	Reason         string `json:"reason,omitempty" doc:"required, but for a dry run"`
	DryRun         bool   `json:"dry_run,omitempty" doc:"answer what would be done, and do nothing"`
	PlanID         string `json:"plan_id,omitempty" doc:"of a dry run of this call: do exactly that"`
}

// TransferResult is the response to the three requests above.
type TransferResult struct {
	Success     bool   `json:"success"`
	Message     string `json:"message"`
	OldLeaderID string `json:"old_leader_id"`
	NewLeaderID string `json:"new_leader_id"`
	Term        uint64 `json:"term"`
	DurationMS  int64  `json:"duration_ms"`
}

// AutoFailover is the body of POST /admin/auto-failover.
type AutoFailover struct {
	Enabled *bool  `json:"enabled" doc:"required; false pauses automatic failover for the whole cluster"`
	TTLMS   *int64 `json:"ttl_ms,omitempty" doc:"a pause ends automatically after so long, at most 30 days; absent: it lasts until it is ended"`
	Reason  string `json:"reason,omitempty"`
	DryRun  bool   `json:"dry_run,omitempty" doc:"only say what would be done"`
	PlanID  string `json:"plan_id,omitempty" doc:"of a dry run: do exactly that"`
}

// AutoFailoverState is the response to it and to GET /admin/auto-failover.
type AutoFailoverState struct {
	Enabled     bool       `json:"enabled" doc:"false while it is paused"`
	PausedUntil *time.Time `json:"paused_until,omitempty" doc:"when a pause ends automatically"`
	Reason      string     `json:"reason" doc:"of the last change"`
	Operator    string     `json:"operator" doc:"who made it; empty: never changed"`
}

// RestoreResult is the response to POST /admin/snapshot/restore.
type RestoreResult struct {
	Revision uint64 `json:"revision" doc:"of the state after the restore"`
	Message  string `json:"message"`
}

// Plan is the response to an operator's call with dry_run: the effects of the call. The same call with plan_id
// executes exactly this plan. It is refused with 4005 if the term or the membership has changed.
type Plan struct {
	DryRun        bool              `json:"dry_run" doc:"always true: nothing was done"`
	PlanID        string            `json:"plan_id"`
	Action        string            `json:"action"`
	Term          uint64            `json:"term"`
	Membership    string            `json:"membership" doc:"stands for everything about the members that the plan depends on"`
	LeaderID      string            `json:"leader_id" doc:"empty: no leader is known"`
	TargetID      string            `json:"target_id" doc:"whom the call is about: of a move of leadership, the node that would lead; empty: no target"`
	How           string            `json:"how,omitempty" enum:"transfer,election" doc:"of a move of leadership: the leader transfers it, or the target is elected without its help"`
	Summary       string            `json:"summary" doc:"what would be done, in one sentence"`
	Possible      bool              `json:"possible" doc:"false: the call would be refused, as refusal says"`
	Refusal       *PlannedError     `json:"refusal,omitempty"`
	Candidates    []TargetCandidate `json:"candidates"`
	Affected      Affected          `json:"affected"`
	ExpectedGapMS *int64            `json:"expected_gap_ms" doc:"how long writes would wait: the median of like cases in this cluster's own history; null: there were none"`
	WorstGapMS    *int64            `json:"worst_gap_ms" doc:"the longest of them"`
	GapSamples    int               `json:"gap_samples" doc:"how many there were"`
	Risk          string            `json:"risk" enum:"low,medium,high" doc:"low: a pause of writes; medium: an election that may take several rounds; high: the quorum, or data, may be lost"`
	Warnings      []string          `json:"warnings"`
	Survivors     []Survivor        `json:"survivors,omitempty" doc:"of a recovery: the nodes that are left, freshest first"`
}

// PlannedError is the error that the call would return.
type PlannedError struct {
	Code   int    `json:"code"`
	Name   string `json:"name"`
	Status int    `json:"status"`
	Detail string `json:"detail"`
	Votes  []Vote `json:"votes,omitempty" doc:"with code 4006: what each voter would answer"`
}

// TargetCandidate is a node considered as the target.
type TargetCandidate struct {
	ID         string `json:"id"`
	Eligible   bool   `json:"eligible"`
	Reason     string `json:"reason" doc:"the check that rules it out; empty: none does"`
	Voter      bool   `json:"voter"`
	Priority   int    `json:"priority"`
	LagEntries uint64 `json:"lag_entries" doc:"as lag_entries of a member, as far as the answering node knows"`
}

// Affected is what a plan affects in addition to the leader.
type Affected struct {
	Roles    int `json:"roles" doc:"that are held; they stay so"`
	Sessions int `json:"sessions"`
}

// Recover is the body of POST /admin/recover.
type Recover struct {
	Survivors []string       `json:"survivors" doc:"every node that is left; the one with the most up-to-date log becomes the only voter of a new generation"`
	Confirm   string         `json:"confirm" doc:"the cluster's ID"`
	Force     bool           `json:"force" doc:"must be true, but for a dry run: what the survivors never received is lost"`
	Reason    string         `json:"reason" doc:"required, but for a dry run"`
	DryRun    bool           `json:"dry_run,omitempty"`
	PlanID    string         `json:"plan_id,omitempty"`
	Follow    *RecoverFollow `json:"follow,omitempty" doc:"sets this node's data aside, to come back as a member of that generation; the recovered node sends it to the other survivors"`
}

// RecoverFollow names an existing generation of the cluster.
type RecoverFollow struct {
	LeaderID   string `json:"leader_id" doc:"the node that was recovered"`
	Generation uint64 `json:"generation"`
	RecoveryID string `json:"recovery_id"`
}

// RecoverResult is the response to POST /admin/recover.
type RecoverResult struct {
	RecoveredID string     `json:"recovered_id" doc:"the only voter of the new generation"`
	ClusterID   string     `json:"cluster_id"`
	Generation  uint64     `json:"generation"`
	RecoveryID  string     `json:"recovery_id"`
	Term        uint64     `json:"term"`
	Revision    uint64     `json:"revision" doc:"every revision of the generations before is below those of the new one"`
	Survivors   []Survivor `json:"survivors" doc:"freshest first"`
	LostIDs     []string   `json:"lost_ids" doc:"members that are to be wiped and re-admitted, or removed"`
	Message     string     `json:"message"`
	Warnings    []string   `json:"warnings" doc:"what can have been lost, and what can still go wrong"`
}

// Survivor is a surviving node and the end of its log.
type Survivor struct {
	ID        string `json:"id"`
	Voter     bool   `json:"voter" doc:"it was one"`
	LastTerm  uint64 `json:"last_term"`
	LastIndex uint64 `json:"last_index"`
	Outcome   string `json:"outcome,omitempty" doc:"what became of it: recovered, set aside, or why its data was not set aside"`
}

// PathRecover is the path of the recovery of a lost quorum.
const PathRecover = "/admin/recover"

// SplitBrainCheck is the optional body of POST /admin/splitbrain/check.
type SplitBrainCheck struct {
	Reason string `json:"reason,omitempty"`
	DryRun bool   `json:"dry_run,omitempty" doc:"makes no difference: a check changes nothing but what is known"`
}

// SplitBrain is the response to it and to GET /admin/splitbrain: what the answering node makes of all claims.
type SplitBrain struct {
	Verdict   string              `json:"verdict" enum:"ok,unreachable,stale_leader,foreign_cluster,split_brain" doc:"the gravest of the findings"`
	Findings  []SplitBrainFinding `json:"findings"`
	Claims    []SplitBrainClaim   `json:"claims"`
	CheckedAt time.Time           `json:"checked_at"`
	CheckedBy string              `json:"checked_by" doc:"the node whose view this is"`
	Refusing  bool                `json:"refusing" doc:"that node is part of a conflict: it serves stale reads and watches, and answers the rest with 4004"`
}

// SplitBrainFinding is one inconsistency.
type SplitBrainFinding struct {
	Verdict  string   `json:"verdict" enum:"unreachable,stale_leader,foreign_cluster,split_brain"`
	Detail   string   `json:"detail"`
	Nodes    []string `json:"nodes" doc:"whom it is about"`
	Refusing bool     `json:"refusing" doc:"the answering node refuses service because of it"`
}

// SplitBrainClaim is what one node reports about itself and the leader.
type SplitBrainClaim struct {
	NodeID     string    `json:"node_id"`
	Source     string    `json:"source" enum:"self,peer,http" doc:"peer: said on a connection between peers, which counts; http: its answer to GET /leader, which is only shown"`
	Address    string    `json:"address"`
	BootID     string    `json:"boot_id,omitempty"`
	ClusterID  string    `json:"cluster_id"`
	Generation uint64    `json:"generation"`
	RecoveryID string    `json:"recovery_id,omitempty"`
	Term       uint64    `json:"term" doc:"0: not said"`
	Leads      bool      `json:"leads" doc:"it says that it leads"`
	LeaderID   string    `json:"leader_id"`
	At         time.Time `json:"at" doc:"when it was said"`
	Error      string    `json:"error,omitempty" doc:"why there is no claim"`
}

// PathAudit is the audit log.
const PathAudit = "/admin/audit"

// AuditRecord is the caller, origin, reason and result of one call.
type AuditRecord struct {
	Seq         string         `json:"seq" doc:"place in the log: for since"`
	When        time.Time      `json:"when" doc:"when it was answered; of a write: when it was proposed"`
	Who         string         `json:"who" doc:"name of the token or certificate; empty when the node asks for neither"`
	Role        string         `json:"role" doc:"observer, client, operator or node"`
	From        string         `json:"from" doc:"address that the call came from"`
	ForwardedBy string         `json:"forwarded_by,omitempty" doc:"node that the call came to, and that passed the caller's identity on"`
	What        string         `json:"what" doc:"method and path"`
	Request     map[string]any `json:"request,omitempty" doc:"body of a call to /admin, up to 2 KiB"`
	Reason      string         `json:"reason" doc:"that the caller gave"`
	Result      string         `json:"result" doc:"ok, or the name of the error"`
	Status      int            `json:"status" doc:"of the answer"`
	Code        int            `json:"code" doc:"of the error; 0: none"`
	Detail      string         `json:"detail,omitempty" doc:"of the error"`
	Class       string         `json:"class" enum:"operators,clients" doc:"operators: calls of /admin that were allowed; clients: all others. Each has bounds of its own"`
	Node        string         `json:"node" doc:"that answered"`
	DryRun      bool           `json:"dry_run,omitempty"`
	Delayed     bool           `json:"delayed,omitempty" doc:"it waited on the disk of that node until a leader took it"`
}

// AuditDropped is the number of records that are missing.
type AuditDropped struct {
	Operators uint64 `json:"operators" doc:"dropped for age or number"`
	Clients   uint64 `json:"clients" doc:"dropped for age or number"`
	Lost      uint64 `json:"lost" doc:"never replicated: a node could not keep so many"`
}

// Audit is the response to GET /admin/audit.
type Audit struct {
	Items   []AuditRecord `json:"items"`
	Next    string        `json:"next" doc:"for since: what comes after this page"`
	Dropped AuditDropped  `json:"dropped"`
}
