// Package apiv1 holds the JSON values of NorthStar's HTTP API, shared by server
// and client, and the names of its headers. Times are RFC 3339 UTC, durations
// integers in milliseconds (_ms). It imports nothing but the standard library.
package apiv1

import "net/textproto"

// Paths that clients use.
const (
	PathLeader    = "/leader"
	PathStatus    = "/status"
	PathLive      = "/livez"
	PathCluster   = "/v1/cluster"
	PathKV        = "/v1/kv"
	PathKVPrefix  = "/v1/kv/" // + the key, percent-encoded at will
	PathWatch     = "/v1/watch"
	PathSessions  = "/v1/sessions"
	PathRenew     = "/v1/sessions/renew"
	PathAttached  = "/v1/sessions/attached"
	PathRoles     = "/v1/roles"
	PathEvents    = "/v1/events"
	PathElection  = "/v1/elections"
	PathMembers   = "/admin/members"
	PathTransfer  = "/admin/transfer"
	PathFailover  = "/admin/failover"
	PathEmergency = "/admin/failover/emergency"
	PathSnapshot  = "/admin/snapshot"
	PathRestore   = "/admin/snapshot/restore"
	PathAuto      = "/admin/auto-failover"
	PathSplit     = "/admin/splitbrain"
	PathCheck     = "/admin/splitbrain/check"
)

// Names of headers beyond the standard ones.
const (
	HeaderRevision       = "X-Northstar-Revision"        // revision of the key in the answer
	HeaderLastContact    = "X-Northstar-Last-Contact-Ms" // age of a stale answer
	HeaderFence          = "X-Northstar-Fence"           // ROLE=TOKEN
	HeaderIdempotencyKey = "Idempotency-Key"
	HeaderLeader         = "X-Northstar-Leader"     // of an answer that was forwarded: HTTP host:port of the leader that gave it
	HeaderCluster        = "X-Northstar-Cluster"    // of /leader: ID of the cluster that the node belongs to
	HeaderGeneration     = "X-Northstar-Generation" // of /leader: its generation, and the recovery's ID behind a space
	HeaderChecksum       = "X-Northstar-Checksum"   // trailer of a snapshot: sha256:HEX of the body

	// Between nodes only: who forwarded, for whom, and how long the caller
	// still waits.
	HeaderForwardedBy = "X-Northstar-Forwarded-By"
	HeaderIdentity    = "X-Northstar-Identity"
	HeaderCaller      = "X-Northstar-Caller" // its address
	HeaderTimeout     = "X-Northstar-Timeout-Ms"
)

// HeaderKeyNoAutoRetry is the key of a header in a request's map. That of the idempotency
// key is not its canonical form: net/http's Transport repeats by itself a request in whose
// map it finds that, also after it was sent, and then only the last try's answer is
// seen. "Nothing happened" would be said of a write that an earlier try has done.
// Names of headers are the same in any case to who receives them.
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
	MaxKeyBytes            = 1024
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

// Problem is every error's body (RFC 9457).
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
