package client

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"northstar/api/apiv1"
	"northstar/cluster"
)

// Errors to test for with errors.Is. An error response of a node is an *Error; errors.As finds the *Problem
// in it.
var (
	// ErrOutcomeUnknown: the write may have taken effect, and the client could not find out before the deadline. To
	// find out, repeat the call with the same idempotency key (Error.IdempotencyKey).
	ErrOutcomeUnknown error = &sentinel{"outcome unknown", cluster.CodeOutcomeUnknown}
	// ErrNoLeader: the cluster has no leader, and the request had no effect.
	ErrNoLeader error = &sentinel{"no leader", cluster.CodeNoLeader}
	// ErrNotFound: the key, role, node or member does not exist.
	ErrNotFound error = &sentinel{"not found", cluster.CodeNotFound}
	// ErrConditionFailed: IfRevision, IfAbsent or IfPresent did not hold. Error.Problem has the current revision.
	ErrConditionFailed error = &sentinel{"condition failed", cluster.CodeConditionFailed}
	// ErrFenced: the fencing token is not the role's current one.
	ErrFenced error = &sentinel{"fenced", cluster.CodeFenced}
	// ErrCompacted: the requested changes are older than the kept history, or the state was restored. Read the keys
	// again and watch from there.
	ErrCompacted error = &sentinel{"history compacted", cluster.CodeHistoryCompacted}
	// ErrSessionEnded: the session has ended or never existed.
	ErrSessionEnded error = &sentinel{"session has ended", cluster.CodeSessionEnded}
	// ErrRoleHeld: the candidate does not hold the role, because another candidate holds it or is ahead in the
	// queue.
	ErrRoleHeld error = &sentinel{"role is held", cluster.CodeRoleHeld}
	// ErrClosed: the client was closed.
	ErrClosed = errors.New("client is closed")
)

type sentinel struct {
	text string
	code cluster.Code
}

func (s *sentinel) Error() string { return s.text }

// Error is a failed call: an error response of a node, or the client's conclusion without one.
type Error struct {
	Op             string   // operation, such as "put app/config"
	Problem        *Problem // code, status, detail, current revision
	Retry          bool     // certainly had no effect: may be sent again
	Endpoint       string   // node that responded; "" if none did
	LeaderID       NodeID   // leader according to that node; "" if it knew none
	LeaderAddress  string   // HTTP host:port of that leader
	IdempotencyKey string   // key that every attempt of the write had; "" for reads
}

// Error returns the operation, the name of the code and the detail in one line.
func (e *Error) Error() string { return e.Op + ": " + e.Problem.Error() }

// Unwrap returns the *Problem.
func (e *Error) Unwrap() error { return e.Problem }

// Is matches the sentinel errors of this package.
func (e *Error) Is(target error) bool {
	s, ok := target.(*sentinel)
	return ok && s.code == e.Problem.Shown()
}

// problemOf reads an error response. ok is false if the body is not a problem document of NorthStar. Something else
// responded then, perhaps a proxy, and the error has only the status.
func problemOf(op string, a *response) (e *Error, ok bool) {
	e = &Error{Op: op, Endpoint: a.node}
	var p apiv1.Problem
	if strings.HasPrefix(a.header.Get("Content-Type"), apiv1.TypeProblem) &&
		json.Unmarshal(a.body, &p) == nil && p.Code != 0 {
		e.Problem = problemError(p, a.header)
		e.Retry, e.LeaderID, e.LeaderAddress = p.Retryable, NodeID(p.LeaderID), p.LeaderAddress
		return e, true
	}
	code := cluster.CodeBadRequest
	switch {
	case a.status == http.StatusUnauthorized:
		code = cluster.CodeUnauthenticated
	case a.status == http.StatusForbidden:
		code = cluster.CodeForbidden
	case a.status >= 500:
		code = cluster.CodeBusy
	}
	e.Problem = &Problem{
		Code: code, Status: a.status, NoRetry: true,
		Detail: fmt.Sprintf("%s responded %d %s", a.node, a.status, http.StatusText(a.status)),
	}
	return e, false
}

func problemError(p apiv1.Problem, h http.Header) *Problem {
	seconds, _ := strconv.Atoi(h.Get("Retry-After")) // 0 without the header
	e := &Problem{
		Code: cluster.Code(p.Code), Status: p.Status, Detail: cmp.Or(p.Detail, p.Title), NoRetry: !p.Retryable,
		RetryAfter: time.Duration(max(0, min(seconds, 3600))) * time.Second, Revision: p.Revision,
	}
	for _, v := range p.Votes {
		e.Votes = append(e.Votes, cluster.Vote{Voter: NodeID(v.VoterID), Granted: v.Granted, Reason: v.Reason})
	}
	return e
}

// failed returns the error of a failed attempt as the caller sees it.
func (q *call) failed(a *response, err error) error {
	var e *Error
	if errors.As(err, &e) {
		e.IdempotencyKey = q.header.Get(apiv1.HeaderIdempotencyKey)
		return e
	}
	return fmt.Errorf("%s: %s: %w", q.op, a.node, err)
}

// conclude returns the error of a write that is not sent again; nil after a success.
func (q *call) conclude(a *response, v classification) error {
	switch {
	case v.err == nil:
		return nil
	case v.mayHaveApplied:
		return q.unknown(v.err)
	}
	return q.failed(a, v.err)
}

// unknown returns the error of a write that may have taken effect.
func (q *call) unknown(cause error) error {
	problem := cluster.Errorf(cluster.CodeOutcomeUnknown, "the write may or may not have taken effect: %w", cause)
	var reported *Error
	if errors.As(cause, &reported) && reported.Problem != nil && reported.Problem.Code == cluster.CodeOutcomeUnknown {
		problem = reported.Problem // a node has said so itself
	}
	return &Error{Op: q.op, IdempotencyKey: q.header.Get(apiv1.HeaderIdempotencyKey), Problem: problem}
}

// interrupted returns the error of a call whose context ended before a final response, and that certainly changed
// nothing. cause is that of the context; last is the error of the last attempt, nil if there is none.
func interrupted(op string, cause, last error) error {
	if last == nil {
		return fmt.Errorf("%s: %w", op, cause)
	}
	return fmt.Errorf("%w (%w)", last, cause)
}
