package cluster

import (
	"errors"
	"fmt"
	"net/http"
	"time"
)

// Code is the number of an error in the API. Codes are part of the contract and are never renumbered.
type Code int

// The error codes. Status returns the HTTP status of each.
const (
	CodeElectionFailed   Code = 4001
	CodeNoLeader         Code = 4002
	CodeTransferFailed   Code = 4003
	CodeSplitBrain       Code = 4004
	CodeTermStale        Code = 4005
	CodeVoteDenied       Code = 4006
	CodeOutcomeUnknown   Code = 4010
	CodeFenced           Code = 4011
	CodeSessionEnded     Code = 4012
	CodeRoleHeld         Code = 4013
	CodeConditionFailed  Code = 4014
	CodeHistoryCompacted Code = 4015
	CodeQuorumAtRisk     Code = 4016
	CodeBusy             Code = 4017
	CodeReadOnly         Code = 4018
	CodeQuorumExists     Code = 4019
	CodeQuotaExceeded    Code = 4020
	CodeBadRequest       Code = 4400
	CodeUnauthenticated  Code = 4401
	CodeForbidden        Code = 4403
	CodeNotFound         Code = 4404 // shown for CodeBadRequest with status 404, see Error.Shown
	CodeInternal         Code = 4500 // a defect of this program
)

type codeInfo struct {
	name, title string
	status      int
	retryable   bool
}

var codes = map[Code]codeInfo{
	// An election may have been held, so a retry is not free of effects.
	CodeElectionFailed:   {"ERR_ELECTION_FAILED", "election failed", http.StatusServiceUnavailable, false},
	CodeNoLeader:         {"ERR_NO_LEADER", "no leader", http.StatusServiceUnavailable, true},
	CodeTransferFailed:   {"ERR_LEADER_TRANSFER_FAILED", "leader transfer failed", http.StatusConflict, false},
	CodeSplitBrain:       {"ERR_SPLIT_BRAIN", "split brain", http.StatusConflict, false},
	CodeTermStale:        {"ERR_TERM_STALE", "term or plan is stale", http.StatusConflict, false},
	CodeVoteDenied:       {"ERR_VOTE_DENIED", "votes denied", http.StatusConflict, false},
	CodeOutcomeUnknown:   {"ERR_OUTCOME_UNKNOWN", "outcome unknown", http.StatusGatewayTimeout, false},
	CodeFenced:           {"ERR_FENCED", "fencing token is not current", http.StatusConflict, false},
	CodeSessionEnded:     {"ERR_SESSION_ENDED", "session has ended", http.StatusNotFound, false},
	CodeRoleHeld:         {"ERR_ROLE_HELD", "role is held", http.StatusConflict, true},
	CodeConditionFailed:  {"ERR_CONDITION_FAILED", "condition failed", http.StatusPreconditionFailed, false},
	CodeHistoryCompacted: {"ERR_HISTORY_COMPACTED", "history is gone", http.StatusGone, false},
	CodeQuorumAtRisk:     {"ERR_QUORUM_AT_RISK", "quorum at risk", http.StatusConflict, false},
	CodeBusy:             {"ERR_BUSY", "too busy", http.StatusServiceUnavailable, true},
	CodeReadOnly:         {"ERR_READ_ONLY", "read-only: disk full or stalled", http.StatusServiceUnavailable, true},
	CodeQuorumExists:     {"ERR_QUORUM_EXISTS", "a quorum exists", http.StatusConflict, false},
	CodeQuotaExceeded:    {"ERR_QUOTA_EXCEEDED", "quota exceeded", http.StatusInsufficientStorage, false},
	CodeBadRequest:       {"ERR_BAD_REQUEST", "bad request", http.StatusBadRequest, false},
	CodeUnauthenticated:  {"ERR_UNAUTHENTICATED", "not authenticated", http.StatusUnauthorized, false},
	CodeForbidden:        {"ERR_FORBIDDEN", "not allowed", http.StatusForbidden, false},
	CodeNotFound:         {"ERR_NOT_FOUND", "not found", http.StatusNotFound, false},
	CodeInternal:         {"ERR_INTERNAL", "internal error", http.StatusInternalServerError, false},
}

// Name returns the symbolic name, such as ERR_NO_LEADER.
func (c Code) Name() string { return codes[c].name }

// Title returns the short fixed description of the code.
func (c Code) Title() string { return codes[c].title }

// Status returns the code's usual HTTP status.
func (c Code) Status() int { return codes[c].status }

// Retryable reports whether the same request may usually be sent again.
func (c Code) Retryable() bool { return codes[c].retryable }

// Error is an error of the contract. It is a value: it travels from the place of the failure to the one place
// that writes it to the wire. Package state keeps it with the results that it remembers.
type Error struct {
	Code       Code
	Detail     string        // one sentence: the field, the value, what is allowed
	Status     int           // 0: Code.Status()
	NoRetry    bool          // overrides Code.Retryable
	RetryAfter time.Duration // 0: none
	Revision   uint64        // current revision, for CodeConditionFailed
	Votes      []Vote        // the voters' answers, for CodeVoteDenied
	Leader     NodeID        // the leader that the error refers to; "": the leader that the node knows
	Err        error         // cause, not shown to users
}

// Errorf returns an Error. A %w in the format becomes its cause.
func Errorf(code Code, format string, args ...any) *Error {
	err := fmt.Errorf(format, args...)
	return &Error{Code: code, Detail: err.Error(), Err: errors.Unwrap(err)}
}

// Error returns the code's name and the detail.
func (e *Error) Error() string { return e.Code.Name() + ": " + e.Detail }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// HTTPStatus returns the HTTP status of the answer with this error.
func (e *Error) HTTPStatus() int {
	if e.Status != 0 {
		return e.Status
	}
	return e.Code.Status()
}

// Shown returns the code that clients see. What is not there has a code of its own for them. Inside, and in results
// that package state keeps, it is CodeBadRequest with status 404, as it has always been.
func (e *Error) Shown() Code {
	if e.Code == CodeBadRequest && e.HTTPStatus() == http.StatusNotFound {
		return CodeNotFound
	}
	return e.Code
}

// Retryable reports whether the request is known to have had no effect and may be sent again.
func (e *Error) Retryable() bool { return e.Code.Retryable() && !e.NoRetry }

// DiskStalls reports whether the error is that of a disk that stalls and may go on at any time. CodeReadOnly is also
// that of a full disk, which has no RetryAfter.
func (e *Error) DiskStalls() bool { return e.Code == CodeReadOnly && e.RetryAfter > 0 }

// DecidedByState reports whether the state machine refused the request, and remembers that under its idempotency key.
// Any other refusal is that of one node at one moment, and has no meaning for other attempts.
func (e *Error) DecidedByState() bool {
	switch e.Code {
	case CodeConditionFailed, CodeFenced, CodeSessionEnded, CodeQuotaExceeded, CodeNotFound:
		return true
	case CodeBadRequest:
		return e.HTTPStatus() == http.StatusNotFound || e.HTTPStatus() == http.StatusUnprocessableEntity
	}
	return false
}

// IsCode reports whether err is, or wraps, an Error with that code.
func IsCode(err error, code Code) bool {
	if e, ok := err.(*Error); ok { // as in most cases, and faster than what follows
		return e.Code == code
	}
	var e *Error
	return errors.As(err, &e) && e.Code == code
}
