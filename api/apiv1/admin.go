package apiv1

import "time"

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
	TTLMS   *int64 `json:"ttl_ms,omitempty" doc:"a pause ends by itself after so long, at most 30 days; absent: it lasts until it is ended"`
	Reason  string `json:"reason,omitempty"`
	DryRun  bool   `json:"dry_run,omitempty" doc:"only say what would be done"`
	PlanID  string `json:"plan_id,omitempty" doc:"of a dry run: do exactly that"`
}

// AutoFailoverState is the response to it and to GET /admin/auto-failover.
type AutoFailoverState struct {
	Enabled     bool       `json:"enabled" doc:"false while it is paused"`
	PausedUntil *time.Time `json:"paused_until,omitempty" doc:"when a pause ends by itself"`
	Reason      string     `json:"reason" doc:"of the last change"`
	Operator    string     `json:"operator" doc:"who made it; empty: never changed"`
}

// RestoreResult is the response to POST /admin/snapshot/restore.
type RestoreResult struct {
	Revision uint64 `json:"revision" doc:"of the state after the restore"`
	Message  string `json:"message"`
}
