package api

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"time"

	"northstar/api/apiv1"
	"northstar/cluster"
)

// statusError is a bad request with another status than 400.
func statusError(status int, format string, args ...any) *cluster.Error {
	err := cluster.Errorf(cluster.CodeBadRequest, format, args...)
	err.Status = status
	return err
}

func badRequest(format string, args ...any) *cluster.Error {
	return cluster.Errorf(cluster.CodeBadRequest, format, args...)
}

// busy is what a client gets that asks for more than the limits allow.
func busy(format string, args ...any) *cluster.Error {
	err := cluster.Errorf(cluster.CodeBusy, format, args...)
	err.RetryAfter = time.Second
	return err
}

func noLeader(format string, args ...any) *cluster.Error {
	err := cluster.Errorf(cluster.CodeNoLeader, format, args...)
	err.RetryAfter = time.Second
	return err
}

// asError makes any error one of the contract's. A context that ended is
// CodeNoLeader where nothing can have happened (write false), and else unknown.
func asError(err error, write bool) *cluster.Error {
	var e *cluster.Error
	switch {
	case errors.As(err, &e):
		return e
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		if write {
			return cluster.Errorf(cluster.CodeOutcomeUnknown, "the request's time ran out before its outcome was known: %w", err)
		}
		return noLeader("the request's time ran out before a leader confirmed it: %w", err)
	}
	return cluster.Errorf(cluster.CodeInternal, "%w", err)
}

// problem is err as it goes over the wire.
func (s *Server) problem(e *cluster.Error) apiv1.Problem {
	p := apiv1.Problem{
		Type:      problemType(e.Code),
		Title:     e.Code.Title(),
		Status:    e.HTTPStatus(),
		Detail:    e.Detail,
		Code:      int(e.Code),
		Name:      e.Code.Name(),
		Retryable: e.Retryable(),
	}
	p.Votes = wireVotes(e.Votes)
	leader := e.Leader // what this node follows may be a moment older
	if leader == "" {
		leader = s.leader.snapshot().id
	}
	if leader != "" {
		p.LeaderID, p.LeaderAddress = string(leader), s.httpAddress(leader)
	}
	return p
}

// conditionProblem shows the revision also where it is 0: there is no such key.
type conditionProblem struct {
	apiv1.Problem
	Revision uint64 `json:"revision"`
}

// writeError answers with the problem of err, unless the answer has begun.
func (c *request) writeError(err error) {
	e := asError(err, c.mutates())
	if e.Code == cluster.CodeInternal {
		c.s.logger.Error("request failed", "route", c.routePattern(), "error", err)
	}
	if c.wrote {
		return
	}
	c.failed = e
	p := c.s.problem(e)
	h := c.Header()
	h.Del("Content-Length")
	h["Content-Type"] = []string{apiv1.TypeProblem}
	h["Cache-Control"] = noStore
	h["X-Content-Type-Options"] = noSniff
	if e.RetryAfter > 0 || p.Retryable {
		h["Retry-After"] = []string{strconv.Itoa(max(1, int((e.RetryAfter+time.Second-1)/time.Second)))}
	}
	if e.Code == cluster.CodeConditionFailed && e.Revision > 0 {
		h["Etag"] = []string{etag(e.Revision)}
	}
	if e.Code == cluster.CodeUnauthenticated {
		h["Www-Authenticate"] = []string{`Bearer realm="northstar"`}
	}
	var shown any = p
	var held *roleError
	switch {
	case e.Code == cluster.CodeConditionFailed:
		shown = conditionProblem{p, e.Revision}
	case errors.As(err, &held):
		shown = roleProblem{p, held.role}
	}
	body, err := json.Marshal(shown)
	if err != nil {
		c.s.logger.Error("cannot encode a problem", "error", err)
		c.WriteHeader(http.StatusInternalServerError)
		return
	}
	h["Content-Length"] = []string{strconv.Itoa(len(body) + 1)}
	c.WriteHeader(p.Status)
	_, _ = c.Write(append(body, '\n')) // the client is gone: nobody left to tell
}
