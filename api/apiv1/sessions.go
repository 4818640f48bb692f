package apiv1

import "time"

// Limits of sessions and campaigns.
const (
	DefaultSessionTTLMS = 10_000
	MaxRenewals         = 1000    // sessions in one POST /v1/sessions/renew
	MaxWaitMS           = 300_000 // of a campaign
)

// SessionCreate is the body of POST /v1/sessions.
type SessionCreate struct {
	Name  string            `json:"name,omitempty" doc:"human-readable; empty: the session's ID"`
	TTLMS *int64            `json:"ttl_ms,omitempty" doc:"500 to 86400000, default 10000"`
	Meta  map[string]string `json:"meta,omitempty" doc:"at most 4096 bytes in all"`
}

// SessionCreated is the response to it.
type SessionCreated struct {
	SessionID string `json:"session_id"`
	TTLMS     int64  `json:"ttl_ms"`
}

// Session is the response to GET /v1/sessions/{id}, and an item of GET /v1/sessions.
type Session struct {
	SessionID    string            `json:"session_id"`
	Name         string            `json:"name"`
	Identity     string            `json:"identity" doc:"role and name of the token or certificate that made it, such as client alice; empty: made by an older build"`
	TTLMS        int64             `json:"ttl_ms"`
	RemainingMS  int64             `json:"remaining_ms" doc:"before it ends, if it is not renewed; not of a stale answer"`
	CreatedAt    time.Time         `json:"created_at"`
	Meta         map[string]string `json:"meta"`
	Roles        []string          `json:"roles" doc:"that it holds"`
	RevokedRoles []Revocation      `json:"roles_taken,omitempty" doc:"that an operator revoked from it: until it has acknowledged them, it is not renewed and no other session is elected"`
	Keys         int               `json:"keys" doc:"that end with it"`
}

// Sessions is the response to GET /v1/sessions.
type Sessions struct {
	Items []Session `json:"items"`
	Next  string    `json:"next"`
}

// Renewal is the response to POST /v1/sessions/{id}/renew.
type Renewal struct {
	TTLMS int64 `json:"ttl_ms"`
}

// RenewMany is the body of POST /v1/sessions/renew.
type RenewMany struct {
	SessionIDs []string `json:"session_ids" doc:"1 to 1000"`
}

// RenewedMany is the response to it.
type RenewedMany struct {
	Renewed []string     `json:"renewed"`
	Ended   []string     `json:"ended"`
	Revoked []Revocation `json:"parted,omitempty" doc:"live, and were not renewed: an operator revoked a role from each, which a renewal of one alone answers with 4011"`
}

// Revocation is a tenure that an operator revoked from a session.
type Revocation struct {
	SessionID string `json:"session_id"`
	Role      string `json:"role"`
	Token     uint64 `json:"token"`
}

// SessionEnd is the body of DELETE /v1/sessions and DELETE /v1/sessions/{id}.
type SessionEnd struct {
	Reason string `json:"reason,omitempty" doc:"for the audit log; at most 1024 bytes"`
	DryRun bool   `json:"dry_run,omitempty" doc:"end nothing, and answer what would end"`
}

// SessionEnded is the response to DELETE /v1/sessions/{id}.
type SessionEnded struct {
	SessionID string   `json:"session_id"`
	DryRun    bool     `json:"dry_run,omitempty" doc:"true: the session has not ended"`
	Roles     []string `json:"roles,omitempty" doc:"of a dry run: the roles that would become vacant"`
	Keys      int      `json:"keys,omitempty" doc:"of a dry run: how many keys would be deleted"`
}

// SessionsEnded is the response to DELETE /v1/sessions.
type SessionsEnded struct {
	SessionIDs []string `json:"session_ids" doc:"ended by this request, oldest first"`
	More       bool     `json:"more" doc:"further sessions match"`
	DryRun     bool     `json:"dry_run,omitempty" doc:"true: no session has ended"`
	Roles      []string `json:"roles,omitempty" doc:"of a dry run: the roles that would become vacant"`
	Keys       int      `json:"keys,omitempty" doc:"of a dry run: how many keys would be deleted"`
}

// KeepAlive is the data of an alive event of GET /v1/sessions/{id}/attach.
type KeepAlive struct {
	TTLMS     int64 `json:"ttl_ms"`
	ElapsedMS int64 `json:"elapsed_ms" doc:"from when the node received the request to this renewal: a client that adds it to when it sent the request has a time not after the renewal, but for the drift of its clock; at most 100 times ttl_ms"`
}

// EventKeepAlive is the name of an attached session's keep-alive events, in addition to error and moving. A connection
// that renews its session also ends with moving when it is old, after its last event alive: attach again, to this node
// first.
const EventKeepAlive = "alive"

// AttachReport is the body of POST /v1/sessions/attached: a node's report to the leader about its connections.
type AttachReport struct {
	Live   []Attachment `json:"keep,omitempty" doc:"connections that stand, at most 400"`
	Closed []Attachment `json:"drop,omitempty" doc:"connections that have ended, at most 400"`
}

// Attachment is one attached connection.
type Attachment struct {
	SessionID string `json:"session_id"`
	StreamID  string `json:"stream_id"`
	GraceMS   int64  `json:"grace_ms,omitempty"`
	NoRenew   bool   `json:"passive,omitempty" doc:"it does not renew the session"`
}

// AttachReportResult is the response to it.
type AttachReportResult struct {
	Renewed []SessionCreated `json:"kept"`
	Ended   []string         `json:"ended"`
	Revoked []Revocation     `json:"parted,omitempty"`
}
