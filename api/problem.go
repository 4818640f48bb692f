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

// problem is err as it goes over the wire.
func (s *Server) problem(e *cluster.Error) apiv1.Problem {
	p := problem.Encode(e)
	leader := e.Leader // what this node follows may be a moment older
	if leader == "" {
		leader = s.leader.Current().ID
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
	e := problem.From(err, c.write)
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

// How much of the body of a rejected request is read, and for how long.
const (
	maxDrainBytes = 16 << 20
	drainTimeout  = 5 * time.Second
)

// drainRejectedBody sends a refusal that came before the whole body had, and then reads
// and drops what the client still sends. A connection that is closed with unread bytes is
// reset, and many clients, which send everything before they read, never see the answer
// then. net/http reads the rest for this reason, but not where the client asks for the
// connection to be closed.
func (c *request) drainRejectedBody() {
	// With HTTP/2 the stream alone is given up. A client that waits for 100-continue
	// sends nothing after a refusal. A client that was too slow is not waited for again.
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
	_, _ = io.CopyN(io.Discard, c.r.Body, maxDrainBytes) // the rest is given up
}
