package api

import (
	"encoding/json"
	"errors"
	"strconv"
	"time"

	"northstar/api/apiv1"
	"northstar/api/problem"
	"northstar/cluster"
)

// problem returns err as it is sent to clients.
func (s *Server) problem(e *cluster.Error) apiv1.Problem {
	p := problem.Encode(e)
	leader := e.Leader // this node's leader may be a moment older
	if leader == "" {
		leader = s.leader.Current().ID
	}
	if leader != "" {
		p.LeaderID, p.LeaderAddress = string(leader), s.httpAddress(leader)
	}
	return p
}

// conditionProblem shows the revision even if it is 0: the key does not exist.
type conditionProblem struct {
	apiv1.Problem
	Revision uint64 `json:"revision"`
}

// writeError answers with the problem of err, unless the response has begun.
func (c *request) writeError(err error) {
	e := problem.From(err, c.write)
	if e.Code == cluster.CodeInternal {
		c.s.logger.Error("request failed", "route", c.routePattern(), "error", err)
	}
	if e.Code == cluster.CodeOutcomeUnknown && !c.forwarded { // the forwarding node may find out, or counts it
		c.s.deps.Metrics.OutcomeUnknown()
	}
	if c.wrote {
		return
	}
	c.failed = e
	p := c.s.problem(e)
	h := c.Header()
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
	case e.Code == cluster.CodeConditionFailed && c.write:
		shown = conditionProblem{p, e.Revision}
	case errors.As(err, &held):
		shown = roleProblem{p, held.role}
	}
	body, err := json.Marshal(shown)
	if err != nil {
		panic(err) // a struct of strings and numbers can always be encoded
	}
	_ = c.respond(p.Status, typeProblem, append(body, '\n')) // never fails
}

// drainRejectedBody discards what the client of an answered request still sends. A client that was too slow gets no
// more time. With HTTP/2 only the stream ends.
func (c *request) drainRejectedBody() {
	if !c.bodyTimedOut && c.r.ProtoMajor == 1 {
		problem.DiscardBody(c.ResponseWriter, c.r)
	}
}
