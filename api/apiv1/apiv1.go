// Package apiv1 holds the JSON types and header names of NorthStar's HTTP API, shared by server and client. Times are
// RFC 3339 UTC; durations are integers in milliseconds (_ms). It imports only the standard library.
package apiv1

import "net/textproto"

// Paths that clients use.
const (
	PathLeader      = "/leader"
	PathStatus      = "/status"
	PathLive        = "/livez"
	PathCluster     = "/v1/cluster"
	PathKV          = "/v1/kv"
	PathKVPrefix    = "/v1/kv/" // + the key, percent-encoded or not
	PathWatch       = "/v1/watch"
	PathSessions    = "/v1/sessions"
	PathRenew       = "/v1/sessions/renew"
	PathAttached    = "/v1/sessions/attached"
	PathRoles       = "/v1/roles"
	PathLeaderWatch = "/v1/leader/watch"
	PathEvents      = "/v1/events"
	PathElection    = "/v1/elections"
	PathMembers     = "/admin/members"
	PathTransfer    = "/admin/transfer"
	PathFailover    = "/admin/failover"
	PathEmergency   = "/admin/failover/emergency"
	PathSnapshot    = "/admin/snapshot"
	PathRestore     = "/admin/snapshot/restore"
	PathAuto        = "/admin/auto-failover"
	PathSplit       = "/admin/splitbrain"
	PathCheck       = "/admin/splitbrain/check"
)

// Names of headers beyond the standard ones.
const (
	HeaderRevision       = "X-Northstar-Revision"        // revision of the key in the response
	HeaderLastContact    = "X-Northstar-Last-Contact-Ms" // age of a stale response
	HeaderFence          = "X-Northstar-Fence"           // ROLE=TOKEN
	HeaderIdempotencyKey = "Idempotency-Key"
	HeaderLeader         = "X-Northstar-Leader"     // HTTP host:port of the leader that served a forwarded request
	HeaderCluster        = "X-Northstar-Cluster"    // of /leader: the node's cluster ID
	HeaderGeneration     = "X-Northstar-Generation" // of /leader: the generation and, after a space, the recovery ID
	HeaderChecksum       = "X-Northstar-Checksum"   // trailer of a snapshot: sha256:HEX of the body

	// Between nodes only: the forwarding node, the caller, and the time the caller still waits.
	HeaderForwardedBy = "X-Northstar-Forwarded-By"
	HeaderIdentity    = "X-Northstar-Identity"
	HeaderCaller      = "X-Northstar-Caller" // its address
	HeaderTimeout     = "X-Northstar-Timeout-Ms"
	HeaderNumber      = "X-Northstar-Number"  // of a write, with which it is applied once: see api.request.number
	HeaderDecided     = "X-Northstar-Decided" // of a refusal by the state: repeating the write changes nothing
)

// HeaderKeyNoAutoRetry returns the map key of a request header. For the idempotency key it is not the canonical form.
// net/http's Transport retries a request with the canonical key automatically, even after it was sent, and reports
// only the last attempt. The caller could then report "not applied" although an earlier attempt was applied.
// Receivers compare header names without case.
func HeaderKeyNoAutoRetry(name string) string {
	if name == HeaderIdempotencyKey {
		return "idempotency-key"
	}
	return textproto.CanonicalMIMEHeaderKey(name)
}

// Values of ?consistency=.
const (
	Linearizable = "linearizable"
	Lease        = "lease"
	Stale        = "stale"
)

// Limits of the contract.
const (
	MaxKeyBytes            = 4096
	MaxValueBytes          = 1 << 20
	MaxIdempotencyKeyBytes = 128
	DefaultTimeoutMS       = 5000
	MaxTimeoutMS           = 60000
	DefaultListLimit       = 100
	MaxListLimit           = 1000
)

// Media types.
const (
	TypeJSON        = "application/json"
	TypeProblem     = "application/problem+json"
	TypeEventStream = "text/event-stream"
	TypeBinary      = "application/octet-stream"
)

// Problem is the body of every error (RFC 9457).
type Problem struct {
	Type          string `json:"type"`
	Title         string `json:"title"`
	Status        int    `json:"status"`
	Detail        string `json:"detail"`
	Code          int    `json:"code"`
	Name          string `json:"name"`
	Retryable     bool   `json:"retryable" doc:"the request is known not to have taken effect and may be sent again"`
	LeaderID      string `json:"leader_id,omitempty"`
	LeaderAddress string `json:"leader_address,omitempty"`
	Revision      uint64 `json:"revision,omitempty" doc:"current revision of the key, with code 4014; absent when the key is"`
	Votes         []Vote `json:"votes,omitempty" doc:"what each voter answered, or would answer, with code 4006"`
}
