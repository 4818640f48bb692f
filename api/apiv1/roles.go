package apiv1

import "time"

// Campaign is the body of POST /v1/roles/{role}/campaign.
type Campaign struct {
	SessionID       string `json:"session_id"`
	Value           string `json:"value,omitempty" doc:"shown with the role while this session holds it, at most 4096 bytes"`
	WaitMS          int64  `json:"wait_ms,omitempty" doc:"0 to 300000: how long to wait in the queue"`
	TakeoverDelayMS int64  `json:"takeover_delay_ms,omitempty" doc:"0 to 3600000: how long to wait after a holder was lost involuntarily"`
	Eligible        *bool  `json:"eligible,omitempty" doc:"false: wait without being elected; default true"`
	Required        bool   `json:"required,omitempty" doc:"true: the role is to have a holder at all times; the metric northstar_role_required and the alert no_role_holder count on it. The last campaign for the role counts"`
}

// Role is a role and its holder.
type Role struct {
	Role       string          `json:"role"`
	Holder     string          `json:"holder" doc:"name of the session; empty while the role is vacant"`
	SessionID  string          `json:"session_id"`
	Token      uint64          `json:"token" doc:"fencing token: greater at every new tenure, forever"`
	Value      string          `json:"value"`
	AcquiredAt *time.Time      `json:"acquired_at" doc:"null while the role is vacant"`
	Required   bool            `json:"required,omitempty" doc:"the last campaign for it has asked for an alert while it is vacant"`
	LeaseUntil *time.Time      `json:"lease_until" doc:"when the cluster would free the role, were the session not renewed again; null in a stale answer"`
	Vacant     string          `json:"vacant,omitempty" doc:"human-readable: why the role is vacant; only of a single role"`
	Candidates []RoleCandidate `json:"candidates,omitempty" doc:"in the order in which they will be elected; only of a single role"`
}

// RoleCandidate is a session that waits for a role.
type RoleCandidate struct {
	Name            string `json:"name"`
	SessionID       string `json:"session_id"`
	Eligible        bool   `json:"eligible"`
	TakeoverDelayMS int64  `json:"takeover_delay_ms"`
}

// Roles is the response to GET /v1/roles.
type Roles struct {
	Items []Role `json:"items"`
	Next  string `json:"next"`
}

// Tenure is one session's time as holder of a role.
type Tenure struct {
	Holder     string     `json:"holder"`
	SessionID  string     `json:"session_id"`
	Token      uint64     `json:"token"`
	AcquiredAt time.Time  `json:"acquired_at"`
	EndedAt    *time.Time `json:"ended_at" doc:"null while it lasts"`
	Cause      string     `json:"cause" enum:",expired,disconnected,session_ended,resigned,evicted,transferred,restored,recovered" doc:"why it ended"`
}

// RoleHistory is the response to GET /v1/roles/{role}/history, newest first.
type RoleHistory struct {
	Items     []Tenure `json:"items"`
	Next      string   `json:"next"`
	Elections uint64   `json:"elections" doc:"that there were, also those no longer kept"`
}

// RoleEvent is the data of an event of GET /v1/roles/{role}/watch; the event's name is elected or vacated.
type RoleEvent struct {
	Role       string     `json:"role"`
	Holder     string     `json:"holder"`
	SessionID  string     `json:"session_id"`
	Token      uint64     `json:"token"`
	Value      string     `json:"value"`
	AcquiredAt time.Time  `json:"acquired_at"`
	EndedAt    *time.Time `json:"ended_at,omitempty" doc:"of vacated"`
	Cause      string     `json:"cause,omitempty" doc:"of vacated: why"`
	Revision   uint64     `json:"revision"`
}

// Event names of a role's watch, in addition to error and moving.
const (
	EventElected = "elected"
	EventVacated = "vacated"
)

// RoleResult is the response to DELETE /v1/roles/{role}: the role after the call.
type RoleResult struct {
	Role      string `json:"role"`
	Message   string `json:"message"`
	Holder    string `json:"holder" doc:"the present holder; empty: vacant"`
	SessionID string `json:"session_id"`
	Token     uint64 `json:"token"`
}

// RoleTransfer is the body of POST /admin/roles/{role}/transfer.
type RoleTransfer struct {
	ToSessionID string `json:"to_session_id" doc:"a candidate of the role"`
	Reason      string `json:"reason,omitempty"`
	DryRun      bool   `json:"dry_run,omitempty"`
	PlanID      string `json:"plan_id,omitempty" doc:"of a dry run: runs just that, or is refused with 4005"`
}

// RoleEvict is the optional body of DELETE /admin/roles/{role}.
type RoleEvict struct {
	Reason string `json:"reason,omitempty"`
	DryRun bool   `json:"dry_run,omitempty"`
	PlanID string `json:"plan_id,omitempty" doc:"of a dry run: runs just that, or is refused with 4005"`
}

// RoleChange is the response to both; the response to a dry run is a Plan.
type RoleChange struct {
	Role         string `json:"role"`
	Message      string `json:"message"`
	OldHolder    string `json:"old_holder"`
	OldSessionID string `json:"old_session_id"`
	NewHolder    string `json:"new_holder" doc:"empty: the role is vacant, or the election is still to come: message says which"`
	NewSessionID string `json:"new_session_id"`
	Token        uint64 `json:"token" doc:"of the new holder; 0: none"`
}
