// Package problem makes and reads the errors of the HTTP API, which are problem documents (RFC 9457).
package problem

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"time"

	"northstar/api/apiv1"
	"northstar/cluster"
)

// BadRequest is the error of a request that can never succeed.
func BadRequest(format string, args ...any) *cluster.Error {
	return cluster.Errorf(cluster.CodeBadRequest, format, args...)
}

// Status is BadRequest with another status than 400.
func Status(status int, format string, args ...any) *cluster.Error {
	err := BadRequest(format, args...)
	err.Status = status
	return err
}

// Busy refuses a request that exceeds a limit of this node.
func Busy(format string, args ...any) *cluster.Error {
	return retryable(cluster.Errorf(cluster.CodeBusy, format, args...))
}

// NoLeader is the error of a request that no leader has served.
func NoLeader(format string, args ...any) *cluster.Error {
	return retryable(cluster.Errorf(cluster.CodeNoLeader, format, args...))
}

func retryable(err *cluster.Error) *cluster.Error {
	err.RetryAfter = time.Second
	return err
}

// From returns any error as one of the API's. A deadline is CodeNoLeader of a read, CodeOutcomeUnknown of a write.
func From(err error, write bool) *cluster.Error {
	var e *cluster.Error
	switch {
	case errors.As(err, &e):
		return e
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		if write {
			return cluster.Errorf(cluster.CodeOutcomeUnknown, "deadline exceeded: the write may have been applied: %w",
				err)
		}
		return NoLeader("deadline exceeded before leadership was confirmed: %w", err)
	}
	return cluster.Errorf(cluster.CodeInternal, "%w", err)
}

// Encode returns the problem document of e, without the leader.
func Encode(e *cluster.Error) apiv1.Problem {
	code := e.Shown()
	return apiv1.Problem{
		Type:      "urn:northstar:error:" + strconv.Itoa(int(code)),
		Title:     code.Title(),
		Status:    e.HTTPStatus(),
		Detail:    short(e.Detail),
		Code:      int(code),
		Name:      code.Name(),
		Retryable: e.Retryable(),
		Votes:     EncodeVotes(e.Votes),
	}
}

// maxDetail bounds the detail of a problem. It may repeat what the client has sent, and anyone may send 32 KiB.
const maxDetail = 1 << 10

func short(detail string) string {
	if len(detail) <= maxDetail {
		return detail
	}
	return strings.ToValidUTF8(detail[:maxDetail], "") + "…"
}

// EncodeVotes returns the JSON form of an election's votes.
func EncodeVotes(votes []cluster.Vote) []apiv1.Vote {
	var wire []apiv1.Vote
	for _, v := range votes {
		wire = append(wire, apiv1.Vote{VoterID: string(v.Voter), Granted: v.Granted, Reason: v.Reason})
	}
	return wire
}

// Decode returns the problem document in a response, and whether it has one.
func Decode(status int, header http.Header, body []byte) (p apiv1.Problem, ok bool) {
	if status < 400 {
		return p, false
	}
	media, _, err := mime.ParseMediaType(header.Get("Content-Type"))
	return p, err == nil && media == apiv1.TypeProblem && json.Unmarshal(body, &p) == nil
}

// SessionEnded is the error of a request that names a session which does not exist.
func SessionEnded(id string) *cluster.Error {
	return cluster.Errorf(cluster.CodeSessionEnded, "session %q not found: expired, ended or never created", id)
}

// RoleRevoked refuses to renew a session from which an operator has revoked a role.
func RoleRevoked(session, role string, token uint64) *cluster.Error {
	return cluster.Errorf(cluster.CodeFenced, "session %q is not renewed: an operator revoked role %q from it. "+
		"Stop the work for that role, then acknowledge: DELETE %s/%s?session_id=%s&token=%d",
		session, role, apiv1.PathRoles, role, session, token)
}

// DrainTimeout limits how long DiscardBody reads.
const DrainTimeout = 5 * time.Second

const maxDrainBytes = 16 << 20

// DiscardBody sends a response that was written before the body of r was read, then discards what the client still
// sends. Closing a connection with unread bytes resets it, and many clients send everything before they read: they
// would never see the response. net/http discards the rest for the same reason, but not if the client asks to close
// the connection. A client that waits for 100-continue sends nothing after a refusal.
func DiscardBody(w http.ResponseWriter, r *http.Request) {
	if r.ContentLength == 0 || r.Header.Get("Expect") != "" {
		return
	}
	control := http.NewResponseController(w)
	if err := control.SetReadDeadline(time.Now().Add(DrainTimeout)); err != nil {
		return // a test without a connection
	}
	if err := control.Flush(); err != nil {
		return
	}
	_, _ = io.CopyN(io.Discard, r.Body, maxDrainBytes) // the connection may end here
}
