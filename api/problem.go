package api

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
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
	if e.Code == cluster.CodeOutcomeUnknown {
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

// Limits for reading the body of a rejected request.
const (
	maxDrainBytes = 16 << 20
	drainTimeout  = 5 * time.Second
)

// drainRejectedBody sends a response that was written before the body was read, then discards what the client still
// sends. Closing a connection with unread bytes resets it, and many clients send everything before they read: they
// would never see the response. net/http discards the rest for the same reason, but not if the client asks to close
// the connection.
func (c *request) drainRejectedBody() {
	// With HTTP/2 only the stream ends. A client that waits for 100-continue sends nothing after a refusal. A client
	// that was too slow gets no more time.
	if c.bodyTimedOut || c.r.ContentLength == 0 || c.r.ProtoMajor != 1 || c.r.Header.Get("Expect") != "" {
		return
	}
	control := http.NewResponseController(c.ResponseWriter)
	if err := control.SetReadDeadline(time.Now().Add(drainTimeout)); err != nil {
		return // a test without a connection
	}
	if err := control.Flush(); err != nil {
		return
	}
	_, _ = io.CopyN(io.Discard, c.r.Body, maxDrainBytes) // the connection is closed anyway
}
