package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"math"
	"mime"
	"net/http"
	"net/url"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"northstar/api/apiv1"
	"northstar/api/forward"
	"northstar/api/openapi"
	"northstar/api/problem"
	"northstar/cluster"
)

// Header values shared by many responses. net/http does not change them.
var (
	noStore     = []string{"no-store"}
	noSniff     = []string{"nosniff"}
	typeJSON    = []string{apiv1.TypeJSON}
	typeBinary  = []string{apiv1.TypeBinary}
	typeText    = []string{"text/plain; charset=utf-8"}
	typeProblem = []string{apiv1.TypeProblem}
	crossOrigin = http.NewCrossOriginProtection()
)

const maxJSONBody = 64 << 10

// request is one request being served, and its ResponseWriter, so that metrics and errors see the status.
type request struct {
	http.ResponseWriter
	s         *Server
	r         *http.Request
	ctx       context.Context // on routes with ?timeout_ms it limits the whole request
	route     *openapi.Route[handler]
	param     string     // the parameter in the path, decoded
	body      []byte     // read by the handler; the leader gets it unchanged
	query     url.Values // validated against the route; nil if empty
	redirect  bool       // redirect to the leader instead of forwarding
	write     bool       // without a response the outcome is unknown
	caller    identity   // zero on routes without authentication
	forwarded bool       // another node has forwarded it: it is not forwarded again
	repeated  bool       // that node repeats it until it knows the outcome
	from      string     // address of the caller
	via       string     // node that forwarded it and asserted caller and address; "": none

	status int
	wrote  bool

	auditFields  auditFields    // for its audit record
	failed       *cluster.Error // error of the response
	bodyTimedOut bool           // the body did not arrive in time
	recordRead   bool           // it is recorded although it is a GET
	place        *budget        // in which the request has a place; nil: none
	bodyBytes    int64          // of the budget of bodies
	answerBytes  int64          // of the budget of answers
	asHolder     shareholder    // set by holder
	holderKnown  bool
	audited      bool // the audit record was made, here or by the node that responded
	memberPage   bool // a member's dashboard made the request
}

// WriteHeader implements http.ResponseWriter.
func (c *request) WriteHeader(status int) {
	if !c.wrote {
		c.wrote, c.status = true, status
		if !c.audited {
			c.audit(status)
		}
	}
	c.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (c *request) Write(p []byte) (int, error) {
	if !c.wrote {
		c.WriteHeader(http.StatusOK)
	}
	return c.ResponseWriter.Write(p)
}

// Unwrap is for http.ResponseController.
func (c *request) Unwrap() http.ResponseWriter { return c.ResponseWriter }

func (c *request) routePattern() string {
	if c.route == nil {
		return "unmatched"
	}
	return c.route.Pattern
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	start := time.Now()
	c := &request{ResponseWriter: w, s: s, r: r, ctx: r.Context(), status: http.StatusOK, from: r.RemoteAddr}
	c.write = r.Method != http.MethodGet && r.Method != http.MethodHead && r.Method != http.MethodOptions
	c.forwarded = firstValue(r.Header, apiv1.HeaderForwardedBy) != ""
	if conn := connOf(r.Context()); conn != nil {
		if !conn.begin() {
			panic(http.ErrAbortHandler) // closed because it was idle
		}
		defer conn.end()
	}
	defer func() {
		if c.failed != nil {
			c.drainRejectedBody()
		}
	}()
	s.deps.Metrics.HTTPStarted()
	if s.deps.Tracer != nil {
		defer c.trace()()
	}
	defer func() {
		p := recover()
		if p != nil && p != http.ErrAbortHandler {
			s.logger.Error("panic while serving a request", "route", c.routePattern(), "panic", p,
				"stack", string(debug.Stack()))
			c.writeError(cluster.Errorf(cluster.CodeInternal,
				"internal error while serving the request; see the node's log for the stack trace"))
		}
		took := time.Since(start)
		s.deps.Metrics.HTTPDone(c.routePattern(), r.Method, c.status, took)
		if c.route != nil && !c.route.SkipAudit { // a renewal writes nothing
			s.history.observe(c, took)
		}
		if p == http.ErrAbortHandler {
			panic(p)
		}
	}()
	if err := c.serve(); err != nil && err != forward.ErrResponseWritten {
		c.writeError(err)
	}
}

// serve finds the route and checks, in this order, the caller, the limits and the query. Then it calls the handler.
func (c *request) serve() error {
	if c.allowMemberPage() {
		return nil
	}
	res, value := c.s.routes.Find(c.r.URL.EscapedPath(), c.r.URL.Path)
	if res == nil {
		return problem.Status(http.StatusNotFound, "path: no route matches %q", c.r.URL.Path)
	}
	rt := res.Methods[c.r.Method]
	if rt == nil {
		c.Header()["Allow"] = []string{res.Allow}
		return problem.Status(http.StatusMethodNotAllowed, "method: %s supports %s, not %s", res.Pattern, res.Allow,
			c.r.Method)
	}
	c.route, c.param = rt, value
	if err := c.authorize(); err != nil {
		return err
	}
	if err := c.admit(); err != nil {
		return err
	}
	defer c.release()
	if c.isLong() {
		defer c.s.auth.follow(c)()
	}
	if err := c.checkHeaders(); err != nil {
		return err
	}
	if err := c.parseQuery(); err != nil {
		return err
	}
	if slices.Contains(rt.Query, timeoutParam) {
		limit, err := c.queryInt("timeout_ms", apiv1.DefaultTimeoutMS, 1, apiv1.MaxTimeoutMS)
		if err != nil {
			return err
		}
		ctx, cancel := c.contextWithLimit(time.Duration(limit) * time.Millisecond)
		defer cancel()
		c.ctx = ctx
	}
	return rt.Handle(c)
}

// firstValue is h.Get for a name in canonical form, which most requests do not have: Get would check each letter.
func firstValue(h http.Header, name string) string {
	if values := h[name]; len(values) > 0 {
		return values[0]
	}
	return ""
}

func (c *request) wantsStream() bool {
	return c.r.Method != http.MethodHead && strings.Contains(c.r.Header.Get("Accept"), apiv1.TypeEventStream)
}

// checkHeaders refuses headers on whose effect the client relies, on routes where they have none.
func (c *request) checkHeaders() error {
	for _, name := range [...]string{apiv1.HeaderIdempotencyKey, apiv1.HeaderFence} {
		if c.r.Header[name] == nil || c.route.LimitExempt {
			continue
		}
		if !slices.ContainsFunc(c.route.Headers, func(p openapi.Param) bool { return p.Name == name }) {
			return problem.BadRequest("%s: has no effect on %s %s", name, c.r.Method, c.route.Pattern)
		}
	}
	return nil
}

// parseQuery refuses unknown and repeated parameters: a misspelt timeout or condition must not be ignored.
func (c *request) parseQuery() error {
	if c.r.URL.RawQuery == "" {
		return nil
	}
	q, err := url.ParseQuery(c.r.URL.RawQuery)
	if err != nil {
		return problem.BadRequest("query: %v", err)
	}
	for name, values := range q {
		known := slices.ContainsFunc(c.route.Query, func(p openapi.Param) bool { return p.Name == name })
		if !known {
			return problem.BadRequest("query: unknown parameter %q", name)
		}
		if len(values) > 1 {
			return problem.BadRequest("%s: given %d times", name, len(values))
		}
	}
	c.query = q
	c.redirect, err = c.queryBool("redirect")
	return err
}

// queryInt reads an integer parameter within bounds.
func (c *request) queryInt(name string, def, lowest, highest int64) (int64, error) {
	if !c.query.Has(name) {
		return def, nil
	}
	n, err := strconv.ParseInt(c.query.Get(name), 10, 64)
	if err != nil || n < lowest || n > highest {
		if highest == math.MaxInt64 {
			return 0, problem.BadRequest("%s: must be an integer of at least %d (got %q)", name, lowest, c.query.Get(name))
		}
		return 0, problem.BadRequest("%s: must be an integer from %d to %d (got %q)", name, lowest, highest,
			c.query.Get(name))
	}
	return n, nil
}

// queryLimit reads ?limit=. An empty one, as in ?prefix=&limit=&after=, counts as absent. A value above the maximum
// is accepted: a page may always be shorter than requested.
func (c *request) queryLimit(def int64) (int, error) {
	if c.query.Get("limit") == "" {
		return int(def), nil
	}
	n, err := c.queryInt("limit", def, 1, math.MaxInt64)
	return int(min(n, apiv1.MaxListLimit)), err
}

// queryBool reads a parameter that needs no value: ?verbose.
func (c *request) queryBool(name string) (bool, error) {
	if !c.query.Has(name) {
		return false, nil
	}
	switch v := c.query.Get(name); v {
	case "", "1", "true":
		return true, nil
	case "0", "false":
		return false, nil
	default:
		return false, problem.BadRequest("%s: must be true or false (got %q)", name, v)
	}
}

// contextWithLimit returns a context for limit, or for as long as a forwarding node waits if that is less.
func (c *request) contextWithLimit(limit time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(c.r.Context(), min(limit, c.remainingBudget(apiv1.MaxTimeoutMS*time.Millisecond)))
}

// remainingBudget returns the time that a forwarding node leaves for the request, at most limit.
func (c *request) remainingBudget(limit time.Duration) time.Duration {
	if c.forwarded {
		left, err := strconv.ParseInt(c.r.Header.Get(apiv1.HeaderTimeout), 10, 64)
		if err == nil && left > 0 && left <= limit.Milliseconds() {
			return time.Duration(left) * time.Millisecond
		}
	}
	return limit
}

// withBody returns a handler that first reads one JSON object without unknown fields; an empty body counts as {}.
func withBody[T any](handle func(c *request, in T) error) handler {
	return func(c *request) error {
		var in T
		if err := c.decodeBody(&in); err != nil {
			return err
		}
		return handle(c, in)
	}
}

// emptyBody is the body of a call that has none: each key in it is unknown. A dry run must not be taken for the real
// call.
type emptyBody struct{}

func (c *request) decodeBody(v any) (err error) {
	if err := c.checkContentEncoding(); err != nil || c.r.ContentLength == 0 {
		return err
	}
	if err := c.checkMedia(apiv1.TypeJSON); err != nil {
		return err
	}
	// A request may wait for long with its body: a campaign, for another leader.
	if err := c.takeBody(maxJSONBody); err != nil {
		return err
	}
	err = c.receiveBody(time.Now().Add(jsonBodyTimeout), jsonBodyTimeout.String(), func() (err error) {
		c.body, err = io.ReadAll(io.LimitReader(c.r.Body, maxJSONBody+1))
		return err
	})
	c.keepBody(len(c.body))
	switch {
	case err != nil, len(c.body) == 0: // chunks say only at their end that there is nothing
		return err
	case len(c.body) > maxJSONBody:
		return problem.Status(http.StatusRequestEntityTooLarge, "body: must be at most %d bytes", maxJSONBody)
	}
	c.captureAuditFields(c.body)
	return decodeJSON(c.body, v)
}

// checkMedia refuses a body of another type than want. A missing type, and curl's default type, are accepted. Pages
// of other origins could send such a request; authorize refuses them.
func (c *request) checkMedia(want string) error {
	said := c.r.Header.Get("Content-Type")
	if said == "" {
		return nil
	}
	if media, _, err := mime.ParseMediaType(said); err == nil &&
		(media == want || media == "application/x-www-form-urlencoded") {
		return nil
	}
	return problem.Status(http.StatusUnsupportedMediaType, "Content-Type: must be %s (got %q)", want, said)
}

// reply answers 200 with v as JSON. A large answer counts until its client has read it, but not that to what has
// changed something: that has been done, and cannot be refused.
func (c *request) reply(v any) error {
	var body bytes.Buffer
	encoder := json.NewEncoder(&body)
	encoder.SetEscapeHTML(false) // a client's text would get six times as long
	err := encoder.Encode(v)
	if err == nil && (!c.write || c.auditFields.DryRun) {
		err = c.takeAnswer(body.Len())
	}
	if err != nil {
		return err
	}
	return c.replyJSON(body.Bytes())
}

func (c *request) replyJSON(body []byte) error {
	return c.respond(http.StatusOK, typeJSON, body)
}

// respond writes a whole response. Values come from clients: a browser must not render them as a page of this origin,
// and no cache may store them.
func (c *request) respond(status int, contentType []string, body []byte) error {
	h := c.Header()
	h["Content-Type"] = contentType
	h["Content-Length"] = []string{strconv.Itoa(len(body))}
	if h["Cache-Control"] == nil {
		h["Cache-Control"] = noStore
	}
	h["X-Content-Type-Options"] = noSniff
	c.WriteHeader(status)
	_, err := c.Write(body)
	return c.ignoreWriteError(err)
}

// ignoreWriteError drops the error of a write to a client that is gone.
func (c *request) ignoreWriteError(err error) error {
	if err != nil && !errors.Is(err, http.ErrBodyNotAllowed) {
		c.s.logger.Trace("client went away", "route", c.routePattern(), "error", err)
	}
	return nil
}
