package client

import (
	"errors"
	"math/rand/v2"
	"net/http"
	"net/url"
	"time"

	"northstar/cluster"
)

// classification is the meaning of one response for its call.
type classification struct {
	err            error // nil: success
	retryable      bool  // may be sent again, perhaps to another node
	mayHaveApplied bool  // this attempt may have been applied
	// rejected by the replicated state: no other attempt of this call can have another outcome
	final bool
	// the response is not from a NorthStar node: an untried node is worth an attempt
	notNorthStar bool
	noResponse   bool          // no response, or an incomplete one
	leader       string        // address of the leader according to the response; "" if none
	wait         time.Duration // minimum time before the next attempt
}

// classify depends only on its arguments.
func classify(q *call, a *response) classification {
	switch {
	case errors.Is(a.err, errTooLarge):
		return classification{err: a.err, mayHaveApplied: true}
	case a.err != nil:
		return classification{err: a.err, noResponse: true, mayHaveApplied: a.sent, retryable: mayResend(q, a.sent)}
	case a.status/100 == 2:
		return classification{}
	case a.status == http.StatusTemporaryRedirect || a.status == http.StatusPermanentRedirect:
		e, _ := problemOf(q.op, a)
		if u, err := url.Parse(a.header.Get("Location")); err == nil && u.Host != "" {
			return classification{err: e, retryable: true, leader: u.Host}
		}
		return classification{err: e}
	}
	e, ours := problemOf(q.op, a)
	v := classification{err: e, leader: e.LeaderAddress}
	code := e.Problem.Code
	switch {
	case !ours && a.status >= 500: // a proxy in between, or a broken node
		v.mayHaveApplied = true
		v.retryable = mayResend(q, true)
	case code == cluster.CodeOutcomeUnknown:
		v.mayHaveApplied = true
		v.retryable = mayResend(q, true)
	case e.Retry && (a.status == http.StatusServiceUnavailable || a.status == http.StatusTooManyRequests):
		v.retryable = true
		if code == cluster.CodeBusy {
			v.wait = e.Problem.RetryAfter
		}
	case !ours:
		v.notNorthStar = true
	case code == cluster.CodeInternal: // the request may have been applied before the error
		v.mayHaveApplied = true
	default:
		v.final = e.Problem.DecidedByState()
	}
	return v
}

// mayResend reports whether a call may be sent again after an attempt that may have reached a node (sent) or did
// not.
func mayResend(q *call, sent bool) bool { return !sent || q.retryClass != nonIdempotentWrite }

// Pauses between two rounds of attempts. They start at a few milliseconds, because a failover is short, and are
// bounded.
const (
	minBackoff    = 3 * time.Millisecond
	maxBackoff    = 250 * time.Millisecond
	maxRetryAfter = 2 * time.Second // longest Retry-After that the client honours
)

// backoff returns the jittered pause after the n-th failed round (from 0), and at least what a node asked for.
func backoff(n int, asked time.Duration) time.Duration {
	d := min(minBackoff<<min(n, 10), maxBackoff)
	d = d/2 + rand.N(d/2+1)
	return max(d, min(asked, maxRetryAfter)+d/4)
}
